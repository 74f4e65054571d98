"""Fifty kills, with a table and sidecars on: nothing lost, nothing twice, nothing half written."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median

import pytest

from captioner import Captioner
from captioner_serving.batch import caption_batch

Run = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., subprocess.Popen[str]]
Photos = Callable[..., Path]

KILLS = 50
PHOTOS = 160
LINES = (
    "captions.parquet.journal.jsonl",
    "captions.parquet.errors.jsonl",
    "unsure.jsonl",
)
MINE = """<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF
 xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description rdf:about=""
 xmlns:dc="http://purl.org/dc/elements/1.1/"
 dc:description="mine"/></rdf:RDF></x:xmpmeta>"""


def contents(folder: Path, pattern: str = "*") -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob(pattern)}


def make(photos: Photos) -> Path:
    """Photos, twins, broken files; and some sidecars that are there."""
    folder = photos(PHOTOS)
    for number in range(0, PHOTOS, 25):
        shutil.copy(folder / f"p{number:03}.jpg", folder / f"p{number + 3:03} twin.jpg")
        (folder / f"p{number + 5:03} bad.jpg").write_bytes(b"\xff\xd8\xff")
    for number in range(0, PHOTOS, 3):
        (folder / f"p{number:03}.xmp").write_text(MINE)
    return folder


@pytest.mark.slow
def test_killed_at_50_random_moments(
    run_batch: Run, start_batch: Start, photos: Photos, tiny: Captioner, tmp_path: Path
) -> None:
    """Each time the command goes on, and in the end all is as if nobody had killed it."""
    folder = make(photos)
    before = contents(folder)
    scores = [record.get("score", 0) for record in caption_batch(folder, captioner=tiny)]
    options = ("--captions", 2, "--batch-size", 8, "--sidecar", "xmp", "--existing", "append")
    options += ("--quiet", "--min-score", median(scores), "--review")

    def arguments(place: Path) -> tuple[object, ...]:
        output = place / "captions.parquet"
        return (folder, "--output", output, *options, place / "unsure.jsonl")

    def take_back(place: Path) -> None:
        """Begin anew; what was written beside the photos is gone, and the rest as it was."""
        more = ("--output", place / "captions.parquet", "--restart", "--quiet")
        assert run_batch(folder / "p000.jpg", *more).returncode == 0
        assert contents(folder) == before
        shutil.rmtree(place)
        place.mkdir()

    place = tmp_path / "run"
    place.mkdir()
    started = time.monotonic()
    assert run_batch(*arguments(place)).returncode == 1
    duration = time.monotonic() - started
    wanted = {name: (place / name).read_bytes() for name in (*LINES, "captions.parquet")}
    beside = contents(folder, "*.xmp")
    assert all(wanted.values()) and len(beside) > PHOTOS / 3
    assert sum(b"mine " in data for data in beside.values()) > PHOTOS / 9
    take_back(place)

    moments = random.Random(0)
    kills = whole = 0
    while kills < KILLS:
        process, started = start_batch(*arguments(place)), time.monotonic()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=moments.uniform(0, duration))
            duration = time.monotonic() - started  # the machine has less to do than it had
        process.send_signal(signal.SIGKILL)
        process.communicate()
        done = process.returncode != -signal.SIGKILL
        kills += not done
        _check_lines(place, wanted)
        for name, data in contents(folder, "*.xmp").items():
            assert data in (before.get(name), beside.get(name)), name
        if done:
            assert process.returncode == 1
            _check_end(place, folder, wanted, before | beside)
            take_back(place)
            whole += 1
    assert run_batch(*arguments(place)).returncode == 1
    _check_end(place, folder, wanted, before | beside)
    take_back(place)
    print(f"{kills} kills, {whole + 1} runs to the end")


def _check_lines(place: Path, wanted: dict[str, bytes]) -> None:
    """What a killed run had committed of its files is what they shall be."""
    state = place / "captions.parquet.run.json"
    if not state.exists():
        return
    for name, end in zip(LINES, json.loads(state.read_text())["ends"], strict=True):
        data = (place / name).read_bytes()[:end] if end else b""
        assert len(data) == end, name
        if name == "unsure.jsonl":  # which is sorted at the end
            assert set(data.splitlines()) <= set(wanted[name].splitlines())
        else:
            assert wanted[name].startswith(data), name
    output = place / "captions.parquet"
    assert not output.exists() or output.read_bytes() == wanted[output.name]


def _check_end(
    place: Path, folder: Path, wanted: dict[str, bytes], beside: dict[str, bytes]
) -> None:
    assert {name: (place / name).read_bytes() for name in wanted} == wanted
    assert contents(folder) == beside  # and no part of a file that a killed run was writing
