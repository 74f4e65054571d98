"""`captioner push` to a small Hub; uploads are read back with huggingface_hub."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from captioner import Captioner
from captioner.checkpoint import Checkpoint, load_checkpoint
from captioner.cli import main
from captioner.trust.trust import digest_weights
from captioner_training.recipe import load_recipe
from captioner_training.report.card import write_card
from captioner_training.run_folder import plain, write_json
from tests.conftest import make_trust
from tests.hub_server import TOKEN, Hub
from tests.launcher import Run
from tests.training.runs import write_own

# huggingface_hub calls its own HTTP client in a deprecated way.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that is measured on 10 validation photos."""
    place = write_own(tmp_path_factory.mktemp("place"), train=20, val=10)
    fields = ["--data.root", str(place), "--out", str(place / "run")]
    assert main(["train", str(place / "own.yaml"), *fields]) == 0
    return place / "run"


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)


def read_card(text: str | bytes) -> Any:
    from huggingface_hub import ModelCard

    return ModelCard(text if isinstance(text, str) else text.decode())


@pytest.mark.slow
def test_a_run_is_uploaded_with_its_card_and_captions_from_the_hub(
    hub: Hub, token: None, trained: Path, photo: Path, tmp_path: Path, run_main: Run
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    best = run / "best.safetensors"
    words = len(load_checkpoint(best).vocabulary)
    make_trust(words=words, weights=digest_weights(best)).save(run / "best.trust.safetensors")
    done = run_main("push", run, "user/model", "--license", "mit")
    assert (done.returncode, done.stdout) == (0, f"{hub.url}/user/model\n"), done.stderr
    uploaded = hub.repositories["user/model"].files("main")
    assert uploaded["captioner.safetensors"] == best.read_bytes()
    assert uploaded["captioner.trust.safetensors"] == (run / "best.trust.safetensors").read_bytes()
    here, there = (
        Captioner.from_pretrained(source, dtype="float32").caption(photo)
        for source in (run, "user/model")
    )
    assert (there.text, there.score, there.trust) == (here.text, here.score, here.trust)
    assert there.trust is not None
    card = read_card(uploaded["README.md"])
    gain = json.loads((trained / "finished.json").read_text())["gain"]
    assert (card.data.license, card.data.pipeline_tag) == ("mit", "image-to-text")
    (result,) = card.data.eval_results
    assert (result.dataset_name, result.dataset_split) == ("data", "val")
    assert result.metric_value == round(gain["after"], 1)
    assert "| data | data |" in card.text and "| licence | mit |" in card.text
    assert "| initial weights | encoder: none, all random |" in card.text
    assert f"| data | val | 10 | Treebank tokens | 1 | {gain['after']:.1f} [" in card.text
    assert str(trained.parent) not in card.content  # no path of this machine
    assert "--checkpoint user/model\n" in card.text


@pytest.mark.parametrize(
    ("fields", "data", "origin"),
    [
        ({"weights": "/home/me/runs/a/best.safetensors"}, "mine", "best.safetensors"),
        ({}, "notes", "checkpoint bundled with Captioner"),
        (
            {"data.train": "[flickr, more/coco]", "weights": "null"}, "flickr, coco",
            "encoder: checkpoint bundled with Captioner",
        ),
        ({"weights": "user/model"}, "mine", "user/model"),
    ],
)  # fmt: skip
def test_a_card_names_data_and_weights_without_the_paths_of_this_machine(
    fields: dict[str, str], data: str, origin: str, tiny_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    recipe = load_recipe("finetune", {"data.root": "/home/me/mine", **fields})
    values = {**plain(recipe), "keep_states": 2}  # as 0.2 wrote it
    if data == "notes":
        source = {"captions": "/home/me/notes.json", "images": "/home/me/photos"}
        values["data"] |= {"train": [source], "validation": [{**source, "style": "short"}]}
    write_json(tmp_path / "recipe.json", values)
    card, _ = write_card(tiny_checkpoint, tmp_path, repository="user/model")
    assert f"| data | {data} |" in card and f"| initial weights | {origin} " in card


def test_a_dry_run_needs_no_network_and_lists_the_files(
    hub: Hub, saved_tiny: Path, run_main: Run
) -> None:
    done = run_main("push", saved_tiny, "user/model", "--dry-run")
    assert done.returncode == 0 and hub.requests == []
    size = saved_tiny.stat().st_size
    assert f"would upload captioner.safetensors ({size:,} bytes) to user/model" in done.stderr
    assert "would upload README.md" in done.stderr and "trust.safetensors" not in done.stderr
    for missing in ("license; --license", "data; --data"):
        assert f"the model card has no {missing}" in done.stderr
    card = read_card(done.stdout)
    assert card.data.license is None and "Not measured." in card.text
    for row in (
        "| name | tiny, version 1 |",
        "| encoder | mobilenet_v3_small, photos of 96 x 96 pixels (squash), grid of 3 x 3 cells |",
        "| decoder | lstm, additive attention, 1 head, 24 units |",
        "| vocabulary | 10 words, tokenizer `words` |",
        "| trust | not included |",
    ):
        assert f"\n{row}\n" in card.text


def test_a_card_that_was_edited_is_kept(
    hub: Hub, token: None, saved_tiny: Path, run_main: Run
) -> None:
    mine = {"README.md": b"my own card"}
    hub.add("user/model", mine)
    done = run_main("push", saved_tiny, "user/model")
    assert done.returncode == 0 and "README.md of user/model is kept" in done.stderr
    files = hub.repositories["user/model"].files
    assert files("main").keys() == {"README.md", "captioner.safetensors"}
    assert files("main")["README.md"] == b"my own card"
    assert run_main("push", saved_tiny, "user/model", "--replace-card").returncode == 0
    assert files("main")["README.md"].startswith(b"---\nlibrary_name: captioner\n")


def test_a_branch_is_made_and_main_stays(
    hub: Hub, token: None, saved_tiny: Path, run_main: Run
) -> None:
    hub.add("user/model", {"README.md": b"main"})
    for _ in range(2):
        done = run_main("push", saved_tiny, "user/model", "--revision", "v2")
        assert (done.returncode, done.stdout) == (0, f"{hub.url}/user/model/tree/v2\n"), done.stderr
    assert Captioner.from_pretrained("user/model@v2").name == "tiny"
    assert hub.repositories["user/model"].files("main") == {"README.md": b"main"}
    hub.repositories["user/model"].commit({"notes.txt": b""}, "bare")  # which has no card
    assert run_main("push", saved_tiny, "user/model", "--revision", "bare").returncode == 0
    assert hub.repositories["user/model"].files("bare")["README.md"].startswith(b"---\n")


def test_private_means_private(hub: Hub, token: None, saved_tiny: Path, run_main: Run) -> None:
    assert run_main("push", saved_tiny, "user/secret", "--private").returncode == 0
    assert hub.repositories["user/secret"].private
    public = hub.add("user/public", {"README.md": b""})
    done = run_main("push", saved_tiny, "user/public", "--private")
    assert done.returncode == 1 and "user/public is public" in done.stderr
    assert public.files("main").keys() == {"README.md"}


@pytest.mark.parametrize(
    ("name", "token", "status", "text"),
    [
        ("user/model", None, 1, "without a token: run `hf auth login`, or set HF_TOKEN."),
        ("user/model", "hf_wrong", 1, "Invalid credentials in Authorization header"),
        ("other/model", TOKEN, 1, "`hf auth login` with a token that may write there"),
        ("model", TOKEN, 2, "model is no name for a model on the Hub: use OWNER/MODEL"),
        ("user/a--b", TOKEN, 1, "user/a--b cannot be written"),
        ("user/model@v1", TOKEN, 2, "user/model@v1 is no name"),
    ],
)
def test_what_cannot_be_uploaded_is_one_sentence(
    name: str, token: str | None, status: int, text: str, hub: Hub, saved_tiny: Path,
    run_main: Run, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if token is not None:
        monkeypatch.setenv("HF_TOKEN", token)
    done = run_main("push", saved_tiny, name, "--license", "mit", "--data", "COCO")
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.count("\n") == 1 and text in done.stderr
    assert hub.repositories == {}


def test_without_a_network_nothing_is_uploaded(
    hub: Hub, token: None, saved_tiny: Path, run_main: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    for offline, text in (True, "HF_HUB_OFFLINE"), (False, ":9/user/model cannot be written"):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        done = run_main("push", saved_tiny, "user/model")
        assert done.returncode == 1 and "Traceback" not in done.stderr
        assert text in done.stderr.splitlines()[-1]


def test_trust_of_other_weights_is_left_out(
    hub: Hub, token: None, tiny_file: Path, run_main: Run
) -> None:
    make_trust(weights="others").save(tiny_file.with_name("tiny.trust.safetensors"))
    done = run_main("push", tiny_file, "user/model")
    assert done.returncode == 0 and "belongs to other weights and is not uploaded" in done.stderr
    assert hub.repositories["user/model"].files("main").keys() == {
        ".gitattributes", "README.md", "captioner.safetensors",
    }  # fmt: skip
