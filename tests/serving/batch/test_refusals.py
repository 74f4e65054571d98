"""Refused commands: a one-line error, and no files are left."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from captioner import Captioner
from captioner_serving.batch import BatchConfig, caption_batch
from tests.launcher import Run
from tests.refusals import Refusals, check_refusals
from tests.serving.batch.conftest import Photos

# What follows `captioner batch ... --output c.jsonl`, where no other output is named.
REFUSED: Refusals = {
    # Settings
    "": (2, "there are no inputs: add"),
    "photos --output x.xls": (2, "it must end in .jsonl, .csv, .parquet, .json"),
    "photos --shard 0/4": (2, "in I/N, I must be from 1 to N"),
    "photos --sidecar pdf": (2, "it should be 'txt', 'caption', 'json' or 'xmp'"),
    "photos --existing append": (2, "existing is 'append'; it requires sidecar"),
    "photos --embed --sidecar txt": (2, "embed requires sidecar xmp"),
    "photos --sidecar json --existing append": (2, "use skip or overwrite for json sidecars"),
    "photos --minimum-trust 2 --checkpoint missing": (2, "--minimum-trust: 2 is not between"),
    "photos --minimum-trust 0.5": (2, "minimum_trust needs a trust file, but the checkpoint tiny"),
    "photos --template photo": (2, "must have the field {caption}"),
    "photos --template {caption}\udcff": (2, "is not UTF-8: correct it"),
    "photos --replace =x": (2, "replace has no word to replace: write OLD=NEW"),
    "photos --language x-default": (2, "use a language tag"),
    "photos --batch-size 0": (2, "batch_size 0 is out of range: it should be greater"),
    "photos --beam-size 2 --captions 3": (2, "it is at most beam_size, 2"),
    "photos --dtype float8": (2, "dtype 'float8' is not one of"),
    "photos --checkpoint missing": (1, "there is no checkpoint missing"),
    # Inputs
    "t.csv": (2, "add --column"),
    "photos/p000.jpg --column path": (2, "no input is a table"),
    "shots.tar photos/p000.jpg --sidecar txt": (2, "shots.tar is an archive or URL"),
    "photos phots/": (1, "there is no folder phots, did you mean photos?"),
    "phots/p000.jpg": (1, "there is no file phots/p000.jpg: phots does not exist"),
    "photos/p00.jpg": (1, "did you mean photos/p001.jpg?"),
    "photos/*.png": (1, "nothing matches photos/*.png"),
    "empty": (1, "there are no photos"),
    "raw": (1, "no photos in the inputs; skipped: 2 .cr2, 1 without suffix"),
    "--list photos": (1, "photos is a folder, not a list"),
    "--list lst": (1, "there is no list lst"),
    "photos --root phots": (1, "there is no folder phots"),
    "t.csv --column file": (1, "t.csv has no column 'file'; it has path"),
    # Outputs
    "photos --output mine.csv": (1, "mine.csv exists and is not from an earlier run"),
    "photos --output t.jsonl": (1, "t.jsonl exists and is not from an earlier run"),
    "photos --output no/c.jsonl": (1, "there is no folder"),
    "photos --output mine.csv --ray --workers 2 --checkpoint missing": (2, "leave out --workers"),
    "t.csv --column path --output t.csv": (2, "is an input"),
    "t.csv --column path --output link.csv --restart": (2, "is an input"),
    "--list t.jsonl --output t.jsonl": (2, "is an input"),
    "photos --output begun.jsonl --beam-size 3": (2, "--beam-size was 5 and is 3"),
}


@pytest.fixture
def place(photos: Photos, tmp_path: Path, tiny: Captioner, monkeypatch: Any) -> Path:
    monkeypatch.chdir(tmp_path)
    photos(2)
    for name in ("empty", "raw"):
        (tmp_path / name).mkdir()
    for name in ("a.cr2", "b.CR2", "notes"):
        (tmp_path / "raw" / name).touch()
    (tmp_path / "mine.csv").write_text("the work of years")
    (tmp_path / "t.csv").write_text("path\nphotos/p000.jpg\n")
    (tmp_path / "link.csv").symlink_to("t.csv")
    (tmp_path / "t.jsonl").write_text("photos/p000.jpg\n")
    list(caption_batch("photos", output="begun.jsonl", captioner=tiny, config=BatchConfig()))
    return tmp_path


def test_what_cannot_work_is_refused_and_leaves_no_trace(place: Path, run_batch: Run) -> None:
    def run(*given: object) -> subprocess.CompletedProcess[str]:
        return run_batch(*given, *([] if "--output" in given else ["--output", "c.jsonl"]))

    check_refusals(run, REFUSED, place)


def test_another_language_needs_captions_in_it(run_main: Run, place: Path) -> None:
    result = run_main("batch", "photos", "--output", "c.jsonl", "--language", "de")
    assert (result.returncode, Path("c.jsonl").exists()) == (2, False)
    assert "--language is de, but the bundled model writes English" in result.stderr
    # Any English is refused for the next reason.
    result = run_main("batch", "photos", "--output", "no/c.jsonl", "--language", "EN-gb")
    assert result.returncode == 1 and "there is no folder" in result.stderr
