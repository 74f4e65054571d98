"""Interrupted runs: killed, out of disk, started again; the result is that of an unbroken run."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tests.launcher import start
from tests.training.runs import RECIPE, newest_state, records

Run = Callable[..., subprocess.CompletedProcess[str]]

STEPS = 24  # 2 x 6 frozen, 6 of fine-tuning, 6 self-critical


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "miniature.yaml"
    path.write_text(RECIPE)
    return path


@pytest.fixture(scope="module")
def unbroken(recipe: Path) -> Path:
    """A run that nothing happened to."""
    out = recipe.parent / "unbroken"
    process = start("train", recipe, "--out", out)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert newest_state(out)["progress"]["total"] == STEPS
    return out


def same(one: Path, two: Path) -> None:
    """Compare the logs and every weight, average and checkpoint of two runs, bit for bit."""
    assert records(one) == records(two)
    for name in ("best.safetensors", "last.safetensors"):
        assert (one / name).read_bytes() == (two / name).read_bytes()
    first, second = newest_state(one), newest_state(two)
    assert first["model"].keys() == second["model"].keys()
    for name, tensor in first["model"].items():
        assert torch.equal(tensor, second["model"][name]), name
    assert torch.equal(
        first["processes"][0]["random"]["torch"], second["processes"][0]["random"]["torch"]
    )


def lines(out: Path) -> int:
    log = out / "log.jsonl"
    return len(log.read_text().splitlines()) if log.exists() else 0


def kill_after(process: subprocess.Popen[str], out: Path, *, grown: int, delay: float) -> bool:
    """Kill once the log has grown by so many lines and a moment has passed; False: it ended."""
    target = lines(out) + grown
    while process.poll() is None and lines(out) < target:
        time.sleep(0.01)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode in (0, -signal.SIGKILL), errors
    return process.returncode != 0


@pytest.mark.parametrize("kills", [3, pytest.param(12, marks=pytest.mark.slow)])
def test_killed_at_random_moments(recipe: Path, unbroken: Path, tmp_path: Path, kills: int) -> None:
    seed = random.randrange(2**32)
    print("moments from seed", seed)  # shown where the test fails
    chance = random.Random(seed)
    out, done = tmp_path / "run", 0
    while done < kills:
        process = start("train", recipe, "--out", out)
        # Now before anything is logged, now in the middle of an epoch, a validation or a save.
        grown = chance.randint(0, 2 * STEPS // kills)
        done += kill_after(process, out, grown=grown, delay=chance.uniform(0, 0.2))
        if (out / "finished.json").exists():
            break
    process = start("train", recipe, "--out", out)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    same(unbroken, out)


def test_killed_between_its_last_stage_and_its_end(
    run_captioner: Run, recipe: Path, unbroken: Path, tmp_path: Path
) -> None:
    """Nothing is left to do but to say so."""
    out = Path(shutil.copytree(unbroken, tmp_path / "run"))
    assert b'"finished"' in (out / "log.jsonl").read_bytes().splitlines()[-1]
    (out / "finished.json").unlink()
    result = run_captioner("train", recipe, "--out", out, timeout=300)
    assert result.returncode == 0, result.stderr
    same(unbroken, out)


@pytest.mark.parametrize("kept", [None, 0, 5])
def test_a_log_that_was_taken_away_is_begun_anew(
    recipe: Path, unbroken: Path, tmp_path: Path, kept: int | None
) -> None:
    """Or an older one put back: the run goes on, and the log has the rest and no zeros."""
    out = tmp_path / "run"
    assert kill_after(start("train", recipe, "--out", out), out, grown=15, delay=0)
    log = out / "log.jsonl"
    older = b"".join(log.read_bytes().splitlines(keepends=True)[: kept or 0])
    log.unlink()
    if kept is not None:
        log.write_bytes(older + b'{"event": "st')
    process = start("train", recipe, "--out", out)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    written = log.read_bytes()
    assert written.startswith(older) and b"\0" not in written
    rest = records(out)[len(older.splitlines()) :]
    assert rest and rest == records(unbroken)[-len(rest) :]
    for name in ("best.safetensors", "last.safetensors"):
        assert (unbroken / name).read_bytes() == (out / name).read_bytes()


def test_a_finished_run_says_so(run_captioner: Run, recipe: Path, unbroken: Path) -> None:
    before = (unbroken / "log.jsonl").read_bytes()
    result = run_captioner("train", recipe, "--out", unbroken)
    assert (result.returncode, result.stdout.strip()) == (0, str(unbroken / "best.safetensors"))
    assert "this run is finished" in result.stderr
    assert (unbroken / "log.jsonl").read_bytes() == before


def test_two_runs_do_not_share_a_folder(run_captioner: Run, recipe: Path, tmp_path: Path) -> None:
    first = start("train", recipe, "--out", tmp_path / "out")
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "out" / "log.jsonl").exists():
            assert first.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        second = run_captioner("train", recipe, "--out", tmp_path / "out")
        assert second.returncode == 1 and "Traceback" not in second.stderr
        assert f"another `captioner train` is at work in {tmp_path / 'out'}" in second.stderr
    finally:
        first.kill()
        first.communicate()


def test_another_recipe_is_refused_by_its_fields(
    run_captioner: Run, recipe: Path, unbroken: Path
) -> None:
    before = (unbroken / "recipe.json").read_bytes()
    result = run_captioner(
        "train", recipe, "--out", unbroken, "--seed", 2, "--stages.2.epochs", 5,
        "--data.workers", 0,
    )  # fmt: skip
    assert (result.returncode, result.stdout) == (2, "")
    assert "seed: 1 there, 2 now" in result.stderr
    assert "stages.2.epochs: 1 there, 5 now" in result.stderr
    assert "workers" not in result.stderr  # how many load the data changes nothing
    assert (unbroken / "recipe.json").read_bytes() == before


def test_a_damaged_state_leaves_the_one_before(
    run_captioner: Run, recipe: Path, unbroken: Path, tmp_path: Path
) -> None:
    """A disk that lied: the newest state is cut off."""
    out = tmp_path / "run"
    process = start("train", recipe, "--out", out)
    assert kill_after(process, out, grown=15, delay=0)
    newest, older = sorted((out / "state").glob("step-*.pt"), reverse=True)
    newest.write_bytes(newest.read_bytes()[:100_000])
    result = run_captioner("train", recipe, "--out", out, timeout=300)
    assert result.returncode == 0, result.stderr
    assert f"going on after step {int(older.stem.removeprefix('step-'))} " in result.stderr
    same(unbroken, out)
    for path in (out / "state").glob("step-*.pt"):
        path.write_bytes(b"nothing")
    result = run_captioner("train", recipe, "--out", out)
    assert result.returncode == 1 and "no state of this run can be read" in result.stderr


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("a small disk can be mounted by root only")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_disk_full_while_saving(recipe: Path, unbroken: Path, tmp_path: Path) -> None:
    """A disk that holds one state of the frozen stage, but not two."""
    out = tmp_path / "run"
    with small_disk(out / "state", 7_000_000):
        process = start("train", recipe, "--out", out)
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 1
        assert "cannot be written (No space left on device)" in errors
        assert "is whole" in errors and "Traceback" not in errors
        (left,) = (out / "state").iterdir()
        state = newest_state(out)
        assert state["progress"]["total"] == 4 and str(left) in errors
        kept = left.read_bytes()
    (out / "state" / left.name).write_bytes(kept)  # the same state on a disk with room
    process = start("train", recipe, "--out", out)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert "going on after step 4 " in errors
    same(unbroken, out)


def test_file_too_large_while_saving(recipe: Path, unbroken: Path, tmp_path: Path) -> None:
    """The states of the frozen stage can be written; those of fine-tuning are larger."""
    out = tmp_path / "run"
    process = start("train", recipe, "--out", out, file_size=8_000_000)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "cannot be written (File too large)" in errors and "Traceback" not in errors
    assert newest_state(out)["progress"]["stage"] == 1
    assert not list((out / "state").glob(".*"))
    process = start("train", recipe, "--out", out)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    same(unbroken, out)
