"""`captioner evaluate` on a Hugging Face model, beside a checkpoint of ours."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from PIL import Image

from captioner import Caption, Captioner
from captioner.checkpoint import Checkpoint
from captioner.cli import main
from captioner.huggingface.captioner import HuggingFaceCaptioner
from captioner_training.evaluation import fit_trust
from captioner_training.evaluation.words import FUNCTION_WORDS
from tests.captioner.hugging_face import save_tiny
from tests.conftest import rewrite_header
from tests.launcher import Run
from tests.training.runs import noise, write_data, write_split

pytestmark = pytest.mark.slow

import_module("transformers")
REFERENCES = [("a dog runs on the grass", "two red balls")] * 4 + [
    ("one cat sleeps in the snow", "a grey sofa and a lamp")
]


class Evaluated(NamedTuple):
    """A model that is evaluated on five photos with two captions each.

    options: the split, as options of the command.
    report: the printed report.
    rows: the images with their captions.
    """

    folder: Path
    model: Path
    options: list[str]
    report: dict[str, Any]
    rows: list[dict[str, Any]]


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Evaluated:
    folder = tmp_path_factory.mktemp("evaluated")
    write_split(folder, "val", noise(5, width=80, height=60), REFERENCES)
    options = ["--captions", str(folder / "captions_val.json"), "--images", str(folder / "val")]
    options += ["--dtype", "float32", "--deletion"]
    model = save_tiny("git", folder / "git")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), pytest.MonkeyPatch.context() as patch:
        patch.setattr(HuggingFaceCaptioner, "batch_size", 3)  # of five photos
        command = ["evaluate", *options, "--checkpoint", f"hf:{model}", "--json"]
        assert main([*command, "--report", str(folder / "report")]) == 0
    rows = json.loads((folder / "report" / "report.json").read_text())["per_image"]
    return Evaluated(folder, model, options, json.loads(printed.getvalue()), rows)


def test_captions_and_effects_of_a_hugging_face_model_are_those_of_captioner(
    evaluated: Evaluated,
) -> None:
    report = evaluated.report
    assert report["checkpoint"]["name"] == "git" and "CIDEr" in report["nltk"]
    captioner = Captioner.from_pretrained(f"hf:{evaluated.model}", dtype="float32")
    photos = sorted((evaluated.folder / "val").iterdir())
    results = captioner.caption(photos, check_attention=True, errors="return")
    captions = [result for result in results if isinstance(result, Caption)]
    texts = [result.text if isinstance(result, Caption) else "" for result in results]
    assert [row["caption"] for row in evaluated.rows] == texts
    effects = [
        word.effect
        for caption in captions
        for word in caption.words
        if word.text not in FUNCTION_WORDS and word.effect is not None
    ]
    content = report["deletion"]["content"]
    assert content["words"] == len(effects)
    assert content["effect"] == pytest.approx(sum(effects) / len(effects), abs=1e-3)


def test_models_are_compared_in_one_call(
    evaluated: Evaluated, tiny_file: Path, tmp_path: Path, run_main: Run
) -> None:
    report, other = tmp_path / "report", f"hf:{evaluated.model}"
    common = ("evaluate", *evaluated.options, "--checkpoint", tiny_file)
    done = run_main(*common, "--compare", other, "--report", report)
    assert done.returncode == 0, done.stderr
    alone = [json.loads(run_main(*common, "--json").stdout), evaluated.report]
    written = json.loads((report / "report.json").read_text())
    rows = written.pop("per_image")
    (difference,) = written.pop("comparisons")
    assert [written, difference["report"]] == alone
    assert difference["with"]["name"] == "git"
    ciders = [one["nltk"]["CIDEr"] for one in alone]
    assert difference["CIDEr"] == pytest.approx(ciders[0] - ciders[1])
    low, high = difference["intervals"]["CIDEr"]
    assert low <= difference["CIDEr"] <= high
    assert all(len(row["others"]) == 1 for row in rows)
    page = (report / "report.html").read_text()
    assert "Compared with git, version local" in done.stdout
    for one in alone:
        effect = f"{one['deletion']['content']['effect']:.3f}"
        assert effect in done.stdout and effect in page
    assert max(map(len, done.stdout.splitlines()[2:])) <= 80  # a path comes first
    # Both captions of three photos, with the attention of their content words.
    section = page.partition("<h2>Attention</h2>")[2].partition("<h2>")[0]
    assert section.count("git, version local</small>") == 3
    assert section.count('<div class="maps">') >= 3


def test_a_style_is_that_of_the_first_model_alone(
    evaluated: Evaluated, styled: Checkpoint, tiny_file: Path, tmp_path: Path, run_main: Run
) -> None:
    """And models whose captions have other tokens are not compared."""
    styled.save(tmp_path / "styled.safetensors")
    letters = Path(shutil.copy(tiny_file, tmp_path / "letters.safetensors"))
    rewrite_header(letters, lambda header: header.update(tokenizer="characters"))
    command = ("evaluate", *evaluated.options[:4], "--json", "--beam-size", 2, "--checkpoint")
    styles = ("--style", "short", "--compare", tiny_file)
    done = run_main(*command, tmp_path / "styled.safetensors", *styles)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    reports = [report, *(part["report"] for part in report["comparisons"])]
    assert [one.get("style") for one in reports] == ["short", None]
    assert [one["beam_size"] for one in reports] == [2, 2]
    done = run_main(*command, tiny_file, "--compare", letters)
    assert done.returncode == 1 and "split captions into different tokens" in done.stderr


def test_captioner_trust_fits_a_hugging_face_model(
    tmp_path: Path, run_main: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit_trust, "MIN_FOR_CONSENSUS", 40)
    monkeypatch.setattr(fit_trust, "MIN_PHOTOS", 40)
    monkeypatch.setattr(fit_trust, "_MIN_WORDS", 40)  # words
    write_data(tmp_path / "data", photos=40)
    folder = save_tiny("vit-gpt2", tmp_path / "model")
    checkpoint, photo = f"hf:{folder}", tmp_path / "data" / "val" / "20.png"
    plain = Captioner.from_pretrained(checkpoint, dtype="float32").caption(photo)
    assert plain.trust is None and plain.familiarity is None
    done = run_main("trust", checkpoint, tmp_path / "data", "--dtype", "float32")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(folder / "captioner.trust.safetensors")
    assert "Held-out photos: words: right, %: " in done.stderr
    trusted = Captioner.from_pretrained(checkpoint, dtype="float32")
    strange = Image.radial_gradient("L").convert("RGB")
    alike, unlike = trusted.caption([photo, strange])
    assert alike.text == plain.text and alike.familiarity is not None
    assert unlike.familiarity is not None and unlike.familiarity < 0.01 < alike.familiarity
    claims = [
        word for word in alike.words if word.text.strip("'") not in ("a", "on", "the", "s", "")
    ]
    assert claims and all(0 < (word.trust or 0) < 1 for word in claims)
    # Consensus chooses among the sentences of the beam when it is asked for.
    beam = trusted.caption(photo, beam_size=4, captions=4)
    chosen = trusted.caption(photo, beam_size=4, consensus=True)
    assert chosen.text in [beam.text, *(other.text for other in beam.alternatives)]
    assert trusted.consensus is not None
    # Other weights do not use it, and a damaged file is replaced.
    save_tiny("vit-gpt2", folder, seed=1)
    assert Captioner.from_pretrained(checkpoint).trust is None
    (folder / "captioner.trust.safetensors").write_bytes(b"nothing")
    done = run_main("caption", photo, "--checkpoint", checkpoint)
    assert done.returncode == 1 and "again with `captioner trust`" in done.stderr
    assert run_main("trust", checkpoint, tmp_path / "data").returncode == 0
    assert run_main("caption", photo, "--checkpoint", checkpoint).returncode == 0
