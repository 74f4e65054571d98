"""The end of a run: its gain, trust and report."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from captioner import Captioner
from captioner.checkpoint import load_checkpoint
from captioner.errors import DataError, OutputError
from captioner.trust.trust import trust_file
from captioner.vocabulary import Vocabulary
from captioner_training import conclusion
from captioner_training.conclusion import describe_gain
from captioner_training.data.captions import new_word_nats
from captioner_training.data.grids import GRIDS_FILES
from captioner_training.data.images import Captioned, CaptionedImage
from captioner_training.data.reading import read_dataset
from captioner_training.evaluation import fit_trust
from captioner_training.recipe import load_recipe
from captioner_training.run_folder import RunFolder
from tests.conftest import make_tiny
from tests.launcher import Run
from tests.training.runs import OWN, records, write_own, write_photos


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_own(tmp_path_factory.mktemp("place"), train=30, val=10, test=20)


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """The folder of a run whose best checkpoint is the tiny model, with sentences as in OWN."""
    (tmp_path / "origin").mkdir()
    tiny = make_tiny()
    short = replace(tiny.generation, maximum_length=10)
    replace(tiny, generation=short).save(tmp_path / "origin" / "best.safetensors")
    return tmp_path / "origin"


def train(run: Run, place: Path, out: Path, *fields: object) -> str:
    result = run("train", place / "own.yaml", "--data.root", place, "--out", out, *fields)
    assert (result.returncode, result.stdout) == (0, f"{out / 'best.safetensors'}\n"), result.stderr
    return result.stderr


@pytest.mark.slow
def test_gain_is_measured_on_test_like_evaluate_and_missing_parts_are_made(
    run_main: Run, place: Path, origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    learns = ("--weights", origin, "--stages.1.epochs", 2, "--stages.1.learning_rate", 1e-2)
    said = train(run_main, place, out, *learns)
    finished = json.loads((out / "finished.json").read_text())
    gain, (stage, epoch) = finished["gain"], finished["progress"]["best_at"]
    assert (gain["split"], gain["images"]) == ("test", 20)
    assert gain["gain"] == pytest.approx(gain["after"] - gain["before"])
    low, high = gain["intervals"]["gain"]
    assert low < gain["gain"] < high
    assert f"{describe_gain(gain)} ({out}/best.safetensors)\n" in said
    assert f"gained {gain['gain']:.1f} [{low:.1f}, {high:.1f}]" in said
    assert "on 20 test photos" in said
    # Closing line, report and `evaluate` have one CIDEr for the same model and photos.
    for checkpoint, name in ((out, "after"), (origin, "before")):
        result = run_main(
            "evaluate", place / "data", "--split", "test", "--checkpoint", checkpoint, "--json",
            "--beam-size", 1,
        )  # fmt: skip
        assert json.loads(result.stdout)["nltk"]["CIDEr"] == pytest.approx(gain[name])
    page = (out / "report.html").read_text()
    assert describe_gain(gain) in page and f"<dt>CIDEr</dt><dd>{gain['after']:.1f} [" in page
    log = records(out)
    ends = {(one["stage"], one["epoch"]): one for one in log if one["event"] == "epoch"}
    score = ends[stage, epoch]["validation"]["CIDEr"]
    for name, value in (
        ("best epoch", f"stage {stage} epoch {epoch}"),
        ("its CIDEr during training", f"{score:.1f}"),
        ("CIDEr of that model during training", f"{log[0]['validation']['CIDEr']:.1f}"),
    ):
        assert f"<dt>{name}</dt><dd>{value}</dd>" in page

    monkeypatch.setattr(conclusion, "measure_gain", pytest.fail)  # it is known
    (out / "report.html").unlink()
    assert describe_gain(gain) in train(run_main, place, out, *learns)
    assert (out / "report.html").is_file()


@pytest.mark.slow
def test_a_run_from_scratch_reports_its_score_and_fits_trust(
    run_main: Run, tmp_path: Path, photo: Path
) -> None:
    out = tmp_path / "run"
    place = write_own(tmp_path, train=110, val=110, test=50)  # enough to learn trust from
    said = train(
        run_main, place, out, "--encoder.name", "efficientnet_v2_b0",
        "--encoder_weights", "bundled", "--stages.1.epochs", 4, "--stages.1.learning_rate", 1e-2,
    )  # fmt: skip
    assert trust_file(out).is_file() and "Held-out photos: words: AUROC of trust: 0." in said
    record = json.loads(run_main("caption", photo, "--checkpoint", out, "--json").stdout)
    assert {"trust", "familiarity"} <= record.keys()
    assert re.search(r"CIDEr [\d.]+ \[[\d.]+, [\d.]+\] on 50 test photos", said)
    page = (out / "report.html").read_text()
    assert (page.count('class="plot"'), page.count('<article class="photo')) == (4, 10)


def test_free_space_is_checked_before_the_first_step(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load_recipe(str(place / "own.yaml"), {})
    folder = RunFolder(recipe, tmp_path, default_precision="float32")
    model = make_tiny().model
    parameters = sum(tensor.numel() for tensor in model.parameters())
    needed = 7 * 2 * 2 * 2 * 576 + 3 * 20 * parameters  # 7 grids of 2 x 2 cells in 2 bytes
    monkeypatch.setattr(shutil, "disk_usage", lambda _: namedtuple("usage", "free")(needed - 16))
    with pytest.raises(OutputError, match=f"needs {needed / 1e9:.2f} GB"):
        folder.check_space(model, images=7)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / GRIDS_FILES.replace("*", "1")).write_bytes(bytes(16))
    folder.check_space(model, images=7)


@pytest.mark.slow
def test_parts_of_the_report_that_failed_are_made_by_the_same_command(
    run_main: Run, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(conclusion, "read_test", fail)
        said = train(run_main, place, out)
    assert "gain: the GPU has too little memory" in said
    assert "there are 30 and 10." in said
    assert (out / "report.html").is_file()
    said = train(run_main, place, out)
    assert "on 20 test photos" in said and "on 20 test photos" in (out / "report.html").read_text()
    assert len(train(run_main, place, out).splitlines()) == 1  # the run is finished


@pytest.mark.slow
def test_with_one_validation_photo_the_cross_entropy_chooses_the_epoch(
    run_main: Run, tmp_path: Path, tiny_file: Path
) -> None:
    place = write_own(tmp_path, train=12, val=1)
    said = train(run_main, place, tmp_path / "run", "--weights", tiny_file, "--log_every", 1)
    assert "note: CIDEr needs 5 validation photos, the run has 1: the cross-entropy" in said
    assert "CIDEr is not measured: it needs 5 photos" in said
    assert "gained" not in said
    assert json.loads((tmp_path / "run" / "finished.json").read_text())["progress"]["best_at"]
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.count("CIDEr") == page.count("CIDEr is not measured") == 1
    origin = records(tmp_path / "run")[0]
    assert f"before training: BLEU-4 {origin['validation']['BLEU-4']:.1f}" in said
    theirs = load_checkpoint(tiny_file).vocabulary.words
    ours = load_checkpoint(tmp_path / "run").vocabulary.words
    assert ours[: len(theirs)] == theirs and "circle" in ours[len(theirs) :]


def test_unknown_new_words_count_as_equally_likely() -> None:
    """Two of the seven tokens are new; the vocabulary has two new words."""
    captions = [("a", "b"), ("a", "b", "c"), ("a",)]
    image = cast(CaptionedImage, SimpleNamespace(words=captions))
    words, before = Vocabulary(["a", "b", "c"]), Vocabulary(["a"])
    nats = new_word_nats([image], words, before, maximum_length=2)
    assert nats == pytest.approx(2 * math.log(2) / 7)


@pytest.mark.parametrize("fewest", [30, 31])
def test_enough_photos_fit_a_consensus(
    fewest: int, place: Path, tiny_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trust is fitted on the sentences that are said then; 30 photos are of the training.

    Of the other photos each second one is for measuring.
    """
    fitted: dict[str, Any] = {}

    def fit(captioned: list[Captioned], _: object, **known: object) -> Any:
        fitted.update(known, said=[" ".join(one.words) for one in captioned])
        return SimpleNamespace(assess=lambda pooled, _: ([[None] for _ in pooled], []))

    def measure(captioned: list[Captioned], judged: list[object]) -> None:
        fitted.update(measured=[one.image.name for one in captioned], judged=len(judged))
        raise DataError("enough")

    monkeypatch.setattr(fit_trust, "MIN_FOR_CONSENSUS", fewest)
    monkeypatch.setattr(fit_trust, "fit_trust", fit)
    monkeypatch.setattr(fit_trust, "measure_trust", measure)
    captioner = Captioner(load_checkpoint(tiny_file), device="cpu", dtype="float32")
    train, held_out = (read_dataset(place / "data", split=split) for split in ("train", "val"))
    with pytest.raises(DataError, match="enough"):
        fit_trust.write_trust(captioner, tiny_file, train, held_out)
    photos = [one.open(at_least=captioner.transform.at_least) for one in held_out[::2]]
    assert fitted["said"] == [captioner.caption(photo).text for photo in photos]
    assert fitted["measured"] == [image.name for image in held_out[1::2]]
    assert fitted["judged"] == len(held_out[1::2])
    assert fitted["consensus"] is captioner.consensus
    assert (captioner.consensus is not None) == (fewest == 30)


def test_trust_is_not_fitted_on_captions_in_another_language(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for split in ("train", "val"):
        write_photos(tmp_path / "data", split, [["Hund läuft über Wiese"]] * 4)
    (tmp_path / "own.yaml").write_text(OWN)
    recipe = load_recipe(str(tmp_path / "own.yaml"), {"data.root": str(tmp_path)})
    conclusion.conclude(recipe, out=tmp_path / "run", device=torch.device("cpu"))
    assert "No trust is fitted: the captions are not English." in capsys.readouterr().err


def test_captioner_trust_draws_equally_many_photos_of_each_data_set(
    run_main: Run, place: Path, tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for split, count in (("train", 3), ("val", 9)):
        write_photos(tmp_path / "more", split, [["a dog"]] * count)
    drawn: list[list[str]] = []

    def write_trust(*given: Any) -> list[str]:
        drawn.extend([image.name for image in split] for split in given[2:])
        return []

    monkeypatch.setattr(fit_trust, "MIN_PHOTOS", 4)
    monkeypatch.setattr(fit_trust, "write_trust", write_trust)
    command = ("trust", tiny_file, place / "data", tmp_path / "more", "--photos", 12)
    assert run_main(*command).stdout == f"{trust_file(tiny_file)}\n"
    train, val = drawn
    # 6 of 30 and all of 3; then half as many: 3 of 10 and 3 of 9.
    assert (len(train), len(val), train[6:]) == (9, 6, [f"{at}.png" for at in range(3)])
    every = [image.name for image in read_dataset(place / "data", split="train")]
    assert [name for name in every if name in train] == train[:6] != every[:6]
