"""Interrupted runs: killed, out of disk, started again; the result is that of an unbroken run."""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from torch.optim.optimizer import register_optimizer_step_post_hook

from captioner.errors import DataError
from tests.launcher import start
from tests.training.runs import (
    RECIPE,
    assert_same,
    link_states,
    newest_state,
    records,
    train_here,
    wait_for_lines,
)

pytestmark = pytest.mark.slow

STEPS = 21  # 2 x 6 frozen, 6 of fine-tuning, 3 self-critical
WITHIN = (9, 15, 21)  # steps, one in each stage; a state is saved after each step


@contextmanager
def acting(acts: Mapping[int, Callable[[], object]]) -> Iterator[None]:
    """Do something within steps of a run in this process, counted from its start here."""
    steps = count(1)
    hook = register_optimizer_step_post_hook(lambda *_: acts.get(next(steps), lambda: None)())
    try:
        yield
    finally:
        hook.remove()


def go(recipe: Path, out: Path, *, workers: int = 0) -> None:
    """Run, or go on, in this process. Grids and scenes are shared by all such runs."""
    train_here(recipe, out, shared=recipe.parent / "all", keep_states=True, data__workers=workers)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "miniature.yaml"
    path.write_text(RECIPE)
    return path


@pytest.fixture(scope="module")
def unbroken(recipe: Path) -> Path:
    """An uninterrupted run. Beside it is its folder as it was within some steps.

    That is what the run would have left behind had it been killed there.
    """
    out = recipe.parent / "unbroken"
    keep = partial(shutil.copytree, out)
    with acting({step: partial(keep, recipe.parent / f"{step}") for step in WITHIN}):
        go(recipe, out)
    assert newest_state(out)["progress"]["global_step"] == STEPS
    return out


@pytest.fixture
def killed(unbroken: Path, tmp_path: Path) -> Callable[[int], Path]:
    """Give the folder of a run that was killed within a step."""

    def copy(step: int) -> Path:
        return Path(shutil.copytree(unbroken.parent / f"{step}", tmp_path / "run"))

    return copy


@pytest.mark.parametrize("step", WITHIN)
def test_resume_after_a_kill_within_a_step(
    recipe: Path, unbroken: Path, killed: Callable[[int], Path], step: int
) -> None:
    out = killed(step)
    states = sorted((out / "state").glob("step-*.pt"))  # two are kept
    assert [int(path.stem[5:]) for path in states] == [step - 2, step - 1]
    random.seed(step)
    np.random.seed(step)
    others = random.getstate(), repr(np.random.get_state())
    go(recipe, out)
    assert_same(unbroken, out)
    # Random numbers that no state has: the run neither draws from them nor moves them.
    assert (random.getstate(), repr(np.random.get_state())) == others


def signal_group() -> None:
    """Have another process send SIGTERM to this process and to those that it has started."""
    workers = [process.pid for process in multiprocessing.active_children()]
    subprocess.run(["kill", "-TERM", *map(str, workers), str(os.getpid())], check=True)


def holds_signals(pid: int | None) -> bool:
    """Whether a process has held back SIGINT and SIGTERM since it was started (Linux)."""
    status = Path(f"/proc/{pid}/status").read_text()
    held = int(status.partition("SigBlk:")[2].split()[0], 16)
    return all(held >> (number - 1) & 1 for number in (signal.SIGINT, signal.SIGTERM))


@pytest.mark.parametrize(
    ("act", "step", "workers"),
    [
        pytest.param(partial(signal.raise_signal, signal.SIGINT), 21, 0, id="SIGINT"),
        pytest.param(signal_group, 15, 2, id="SIGTERM to the group"),
    ],
)
def test_a_signal_saves_the_current_step(
    recipe: Path, unbroken: Path, killed: Callable[[int], Path], act: Callable[[], None],
    step: int, workers: int,
) -> None:  # fmt: skip
    """Pixels are loaded by workers (step 15); the grids of the other stages are not."""
    out, there = killed(step), list[bool]()

    def stop() -> None:
        there.extend(holds_signals(each.pid) for each in multiprocessing.active_children())
        act()

    saved = newest_state(out)["progress"]["global_step"]
    with acting({1: stop}), pytest.raises(KeyboardInterrupt):
        go(recipe, out, workers=workers)
    assert there == [True] * workers and not multiprocessing.active_children()
    assert newest_state(out)["progress"]["global_step"] == saved + 1
    go(recipe, out, workers=workers)
    assert_same(unbroken, out)


def test_resume_after_a_kill_and_a_signal_to_the_group(
    recipe: Path, unbroken: Path, tmp_path: Path
) -> None:
    out = link_states(tmp_path / "run")
    killed = start("train", recipe, "--out", out, start_new_session=True)
    wait_for_lines(killed, out, grown=2)
    killed.kill()
    assert killed.wait(timeout=300) == -signal.SIGKILL
    ended = start("train", recipe, "--out", out, start_new_session=True)
    wait_for_lines(ended, out, grown=6)
    os.killpg(ended.pid, signal.SIGTERM)
    _, errors = ended.communicate(timeout=300)
    assert ended.returncode == 130 and "Traceback" not in errors, errors
    step = newest_state(out)["progress"]["global_step"]
    assert f"stopped after step {step}: the same command resumes from" in errors
    go(recipe, out)
    assert_same(unbroken, out)
    killed.communicate(timeout=300)  # its workers have its pipes: they end


def test_a_log_that_is_shorter_than_the_state_says_is_continued(
    recipe: Path, unbroken: Path, killed: Callable[[int], Path]
) -> None:
    out = killed(21)
    log = out / "log.jsonl"
    older = b"".join(log.read_bytes().splitlines(keepends=True)[:5])
    log.write_bytes(older + b'{"event": "st')
    go(recipe, out)
    assert log.read_bytes().startswith(older)
    rest = records(out)[5:]
    assert rest and rest == records(unbroken)[-len(rest) :]


def test_a_damaged_state_leaves_the_one_before(
    recipe: Path, unbroken: Path, killed: Callable[[int], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    out = killed(21)
    newest = max((out / "state").glob("step-*.pt"))
    newest.write_bytes(newest.read_bytes()[:100_000])
    go(recipe, out)
    assert "resuming after step 19 " in capsys.readouterr().err
    assert_same(unbroken, out)
    (out / "finished.json").unlink()  # as after a kill just before
    go(recipe, out)
    assert_same(unbroken, out)
    (out / "finished.json").unlink()
    for path in (out / "state").glob("step-*.pt"):
        path.write_bytes(b"nothing")
    with pytest.raises(DataError, match="no state of this run can be read"):
        go(recipe, out)


def test_file_too_large_while_saving(
    recipe: Path, unbroken: Path, killed: Callable[[int], Path]
) -> None:
    """The states of the frozen stage can be written; those of fine-tuning are larger."""
    out = killed(15)
    shutil.copytree(recipe.parent / "all", out, dirs_exist_ok=True)  # scenes and grids
    process = start("train", recipe, "--out", out, "--data.workers", 0)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (8_000_000, 8_000_000))
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 1 and "Traceback" not in errors
    assert "cannot be written (File too large)" in errors and "then resumes from" in errors
    left = max((out / "state").iterdir())
    assert str(left) in errors and newest_state(out)["progress"]["stage"] == 1
    assert not list((out / "state").glob(".*"))
    go(recipe, out)
    assert_same(unbroken, out)
