"""Batch captioning on a Ray cluster of this machine, with an actor killed in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from captioner import Captioner
from captioner_serving.batch import caption_batch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="the extra `cluster` is not installed"),
]


def family(pid: int) -> Iterator[int]:
    """A process and all below it."""
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            yield from family(int(child))


def actors(pid: int) -> list[int]:
    """The processes that caption, by the name that Ray gives them."""
    found = []
    for member in family(pid):
        try:
            name = Path(f"/proc/{member}/cmdline").read_bytes()
        except OSError:
            continue
        if b"CaptionActor" in name:
            found.append(member)
    return found


def test_an_actor_that_is_killed_costs_nothing(
    start_batch: Callable[..., subprocess.Popen[str]],
    photos: Callable[..., Path],
    tiny: Captioner,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
    folder = photos(400)
    (folder / "p100.jpg").write_bytes(b"")
    wanted = list(caption_batch(folder, captioner=tiny))
    output = tmp_path / "captions.jsonl"
    arguments = (folder, "--output", output, "--ray", "local", "--batch-size", 4)
    environment = {"PYTHONWARNINGS": "ignore"}  # Ray warns of itself
    process = start_batch(*arguments, environment=environment)
    try:
        deadline = time.monotonic() + 240
        while not (output.exists() and output.stat().st_size):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        victims = actors(process.pid)
        assert victims and len(output.read_bytes().splitlines()) < 399
        os.kill(victims[0], signal.SIGKILL)
        _, said = process.communicate(timeout=240)
    finally:
        for member in reversed(list(family(process.pid))):
            if member != process.pid or process.poll() is None:
                os.kill(member, signal.SIGKILL)
    assert process.returncode == 1, said
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert [(record["image"], record["caption"]) for record in records] == [
        (record["image"], record["caption"]) for record in wanted if "caption" in record
    ]
    (error,) = map(json.loads, Path(f"{output}.errors.jsonl").read_text().splitlines())
    assert error["image"] == str(folder / "p100.jpg")
    assert error["error"]["type"] == "image-empty"
    # The journal is the same with and without Ray: nothing is left to do.
    assert not list(caption_batch(folder, output=output, captioner=tiny))
