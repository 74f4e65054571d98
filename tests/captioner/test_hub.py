"""Checkpoints on the Hugging Face Hub, downloaded from a small server that speaks its protocol."""

from __future__ import annotations

import shutil
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from captioner import Captioner, CheckpointNotFoundError, ConfigError
from captioner.shared.paths import checkpoint_file
from captioner.trust.trust import digest_weights
from tests.conftest import make_tiny, make_trust
from tests.hub_server import TOKEN, Hub, Repository
from tests.launcher import Run


@pytest.fixture(scope="module")
def files(saved_tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The tiny model and its trust, as a repository holds them."""
    trust = tmp_path_factory.mktemp("trust") / "trust.safetensors"
    make_trust(weights=digest_weights(saved_tiny)).save(trust)
    return {
        "captioner.safetensors": saved_tiny.read_bytes(),
        "captioner.trust.safetensors": trust.read_bytes(),
        "README.md": b"---\n---\n# A card\n",
    }


@pytest.fixture
def model(hub: Hub, files: dict[str, bytes]) -> Repository:
    return hub.add("user/model", files)


def retrained(version: str, folder: Path) -> bytes:
    """Return the tiny model with other weights."""
    checkpoint = make_tiny()
    checkpoint.model.decoder.output_bias.data.add_(0.5)
    replace(checkpoint, version=version).save(folder / "retrained.safetensors")
    return (folder / "retrained.safetensors").read_bytes()


def test_a_name_captions_as_the_file_does_with_trust(
    hub: Hub, model: Repository, photo: Path, saved_tiny: Path
) -> None:
    expected = Captioner.from_pretrained(saved_tiny, dtype="float32").caption(photo)
    for _ in range(2):  # the files are downloaded once
        caption = Captioner.from_pretrained("user/model", dtype="float32").caption(photo)
        assert (caption.text, caption.score) == (expected.text, pytest.approx(expected.score))
        assert caption.trust is not None and expected.trust is None
    downloads = [request for request in hub.requests if request.startswith("GET /user/")]
    files = ["captioner.safetensors", "captioner.trust.safetensors"]  # not the README
    assert sorted(request.rpartition("/")[2] for request in downloads) == files


def test_a_revision_is_a_branch_tag_or_commit(hub: Hub, model: Repository, tmp_path: Path) -> None:
    assert Captioner.from_pretrained("user/model").version == "1"
    first = model.branches["v1"] = model.branches["refs/pr/1"] = model.branches["main"]
    model.commit({"captioner.safetensors": retrained("2", tmp_path)})
    new = Captioner.from_pretrained("user/model")  # the new commit is found
    assert (new.version, new.trust) == ("2", None)  # the trust is of the weights of v1
    old = Captioner.from_pretrained("user/model", revision="v1")
    assert old.version == "1" and old.trust is not None
    for name in ("v1", "refs/pr/1", first):
        assert checkpoint_file(f"user/model@{name}").samefile(checkpoint_file("user/model@v1"))


@pytest.mark.parametrize("trust", [True, False])
def test_the_cache_is_enough_offline_and_when_the_hub_is_down(
    trust: bool, hub: Hub, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    chosen = {name: content for name, content in files.items() if trust or "trust" not in name}
    hub.add("user/model", chosen)
    Captioner.from_pretrained("user/model")
    asked = len(hub.requests)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert (Captioner.from_pretrained("user/model").trust is not None) == trust
    assert len(hub.requests) == asked
    with pytest.raises(CheckpointNotFoundError, match=r"user/other .*cannot be reached"):
        Captioner.from_pretrained("user/other")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert (Captioner.from_pretrained("user/model").trust is not None) == trust


def test_a_hub_that_does_not_answer_is_given_up(
    hub: Hub, model: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    Captioner.from_pretrained("user/model")
    monkeypatch.setattr("captioner.hub._TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://{address}")
        assert Captioner.from_pretrained("user/model").trust is not None
        with pytest.raises(CheckpointNotFoundError, match=f"{address} cannot be reached"):
            Captioner.from_pretrained("user/other")


def test_a_local_path_is_preferred(
    hub: Hub, model: Repository, saved_tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "user" / "model").mkdir(parents=True)
    shutil.copy(saved_tiny, tmp_path / "user" / "model" / "best.safetensors")
    assert Captioner.from_pretrained("user/model").trust is None
    assert hub.requests == []
    with pytest.raises(ConfigError, match="user/model is a local path, which has no revisions"):
        Captioner.from_pretrained("user/model@v1")
    (tmp_path / "user" / "model" / "best.safetensors").unlink()  # a run that has just begun
    with pytest.raises(CheckpointNotFoundError, match=r"user/model has no best\.safetensors"):
        Captioner.from_pretrained("user/model")
    assert hub.requests == []


@pytest.mark.parametrize("path", [None, "best.safetensors", "/somewhere/model", "user/model@v2"])
def test_a_revision_needs_a_name_on_the_hub(path: str | None) -> None:
    with pytest.raises(ConfigError, match=r"revision v1: .*leave the revision out"):
        Captioner.from_pretrained(path, revision="v1")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("user/nothing", "neither a local file or folder nor a model on 127.0.0.1:"),
        ("user/model@v9", "user/model has no revision v9"),
        ("user/gated", "accept its terms at http://127.0.0.1:"),
        ("user/private", "A private model needs `hf auth login`"),
        ("user/empty", "has no captioner.safetensors: it is not a Captioner checkpoint"),
        ("user/a--b", "check the name"),
    ],
)
def test_what_cannot_be_downloaded_is_one_sentence(
    name: str, text: str, hub: Hub, model: Repository, files: dict[str, bytes], photo: Path,
    run_main: Run,
) -> None:  # fmt: skip
    hub.add("user/gated", files, gated=True)
    hub.add("user/private", files, private=True)
    hub.add("user/empty", {"model.safetensors": b""})
    done = run_main("caption", photo, "--checkpoint", name)
    assert (done.returncode, done.stdout) == (1, "")
    last = done.stderr.splitlines()[-1]  # huggingface_hub may warn before
    assert last.startswith(f"captioner: {name}") and text in last


def test_a_token_opens_a_private_model_and_a_wrong_one_is_named(
    hub: Hub, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("user/private", files, private=True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert checkpoint_file("user/private").is_file()
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(CheckpointNotFoundError, match="rejects the token"):
        checkpoint_file("user/private")


def test_average_takes_names(
    hub: Hub, model: Repository, saved_tiny: Path, tmp_path: Path, run_main: Run
) -> None:
    done = run_main("average", "user/model", saved_tiny, "--out", tmp_path / "mean.safetensors")
    assert done.returncode == 0, done.stderr
    mean = Captioner.from_pretrained(tmp_path / "mean.safetensors")
    assert mean.fingerprint == Captioner.from_pretrained(saved_tiny).fingerprint


def test_trust_is_not_written_into_the_cache(
    hub: Hub, model: Repository, tmp_path: Path, run_main: Run
) -> None:
    done = run_main("trust", "user/model@v1", tmp_path)
    assert done.returncode == 2 and "hf download user/model --revision v1" in done.stderr
    assert hub.requests == []
