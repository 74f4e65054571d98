"""What a person sees of a run."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from captioner.files import digest
from captioner_serving.batch import progress as module
from captioner_serving.batch.config import Shard
from captioner_serving.batch.inputs.sources import Inputs
from captioner_serving.batch.progress import ProgressBar


def test_a_plain_line_where_there_is_no_terminal(
    photos: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    said = io.StringIO()
    shard = Shard(index=1, count=2)
    folder = photos(80)
    inputs = Inputs(sources=(str(folder),))
    mine = sum(digest(photo.name) in shard for photo in inputs.photos())
    with ProgressBar(quiet=False, stream=said) as progress:
        progress.count(inputs, shard, done=5)
        deadline = time.perf_counter() + 300
        while progress._total is None and time.perf_counter() < deadline:
            time.sleep(0.01)
        for _ in range(8):
            clock[0] += 10
            progress.update({"image": "a", "caption": "b"})
        progress.update({"image": "c", "error": {"detail": "c is broken"}})
    first, seventh = (divmod(10 * (mine - 5 - done), 60) for done in (1, 7))
    assert said.getvalue().splitlines() == [
        f"1 of {mine - 5} photos, 0.1 a second, {first[0]} min {first[1]} s left",
        f"7 of {mine - 5} photos, 0.1 a second, {seventh[0]} min {seventh[1]} s left",
        "captioner: c is broken",
    ]


def test_a_bar_on_a_terminal(photos: Callable[..., Path]) -> None:
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (24, 60))
    with (
        open(follower, "w") as terminal,  # noqa: PTH123
        ProgressBar(quiet=False, stream=terminal) as progress,
    ):
        progress.count(Inputs(sources=(str(photos(3)),)), None, done=0)
        deadline = time.perf_counter() + 300
        while progress._total is None and time.perf_counter() < deadline:
            time.sleep(0.01)
        for record in ({"caption": "a"}, {"error": {"detail": "broken"}}, {"caption": "b"}):
            time.sleep(0.15)  # tqdm draws ten times a second
            progress.update(record)
        progress.say("4 photos\n" + "words " * 20)
    shown = ""
    with contextlib.suppress(OSError):  # how Linux says that the other side has gone
        while part := os.read(leader, 4096):
            shown += part.decode()
    os.close(leader)
    assert "3/3" in shown and "photos/s" in shown and "errors=1" in shown
    assert "captioner: broken" in shown and "4 photos" in shown
    assert shown.count("words") == 20
    assert all(len(line) <= 60 for line in re.split(r"[\r\n]+", shown))


def test_quiet_names_failures_alone_and_a_name_does_not_steer_the_terminal() -> None:
    said = io.StringIO()
    with ProgressBar(quiet=True, stream=said) as progress:
        progress.update({"image": "x", "error": {"detail": "a\x1b[2J\x9b5m\u202e\n.jpg is broken"}})
        progress.say("done")
    assert said.getvalue() == "captioner: a\\x1b[2J\\x9b5m\\u202e\\n.jpg is broken\n"
