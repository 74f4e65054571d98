"""What is refused at once, and leaves no trace."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launcher import refuse

Photos = Callable[..., Path]


def test_mistakes_are_answered_at_once(
    photos: Photos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = photos(2)
    (tmp_path / "empty").mkdir()
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.cr2").touch()
    (tmp_path / "mine.csv").write_text("the work of years")
    (tmp_path / "t.csv").write_text(f"path\n{folder}/p000.jpg\n")
    (tmp_path / "begun.jsonl").touch()
    known = {"format": 1, "settings": {"model": {"name": "another"}, "beam_size": 2}}
    (tmp_path / "begun.jsonl.progress.jsonl").write_text(json.dumps(known) + "\n")
    begun = {
        "photos --output begun.jsonl": (2, "--beam-size was 2 and is 5"),
        "photos --output begun.jsonl --restart --captions 21": (2, "--captions 21"),
    }
    new = {
        "photos --captions 30": (2, "--captions 30 is out of range"),
        "photos --beam-size 2 --captions 3": (2, "it is at most --beam-size, 2"),
        "photos --device quantum": (1, "no such kind of device"),
        "photos --dtype float8": (2, "--dtype 'float8' is not one of"),
        "photos --checkpoint missing": (1, "there is no checkpoint missing"),
        "photos --maps sheet --maps-to photos/maps": (2, "--maps-to photos/maps: the maps would"),
        "photos --ray --workers 2": (2, "decodes on each of its CPUs: leave --workers out"),
        "photos --maps sheet --maps-to mine.csv": (1, "mine.csv is not a folder"),
        "shots.tar photos/p000.jpg --sidecar txt": (2, "has no folder for a file"),
        "phots": (1, "there is no folder phots, did you mean photos?"),
        "photos phots/": (1, "there is no folder phots, did you mean photos?"),
        "phots/p000.jpg": (1, "there is no file phots/p000.jpg: phots does not exist"),
        "photos/p00.jpg": (1, "did you mean photos/p001.jpg?"),
        "photos/*.png": (1, "nothing matches photos/*.png"),
        "photos x*/y.jpg": (1, "nothing matches x*/y.jpg"),
        "empty": (1, "the inputs hold no photo"),
        "raw": (1, "hold no photo; left out, as these are not images: 1 .cr2"),
        "--list photos": (1, "photos is a folder and no list"),
        "--list lst": (1, "there is no list lst"),
        "photos --root phots": (1, "there is no folder phots"),
        "none.csv --column path": (1, "there is no file none.csv"),
        "t.csv --column file": (1, "t.csv has no column 'file'; it has path"),
    }
    commands = {
        **begun,
        "photos --output mine.csv": (1, "mine.csv already exists"),
        **{f"{line} --output c.jsonl": told for line, told in new.items()},
    }
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    told = refuse(*(f"batch {line}" for line in commands))
    for (line, (wanted, words)), (status, _, said) in zip(commands.items(), told, strict=True):
        assert status == str(wanted), (line, said)
        assert words in said, line
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_the_server_too(tmp_path: Path) -> None:
    lines = {
        "serve --device quantum": (1, "no such kind of device"),
        "serve --dtype float8": (2, "--dtype 'float8'"),
        f"serve --checkpoint {tmp_path}/missing": (1, "there is no checkpoint"),
    }
    for (line, (wanted, words)), told in zip(lines.items(), refuse(*lines), strict=True):
        assert told[0] == str(wanted), line
        assert words in told[2]
