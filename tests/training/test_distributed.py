"""Two processes under torchrun, on CPU with gloo, against one."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.utils.data import DataLoader

from captioner import ConfigError, DataError
from captioner_training.data.batches import BucketSampler
from captioner_training.distributed import memory_errors, start_processes
from captioner_training.run_folder import lock_folder
from tests.launcher import environment
from tests.training.runs import (
    MODEL,
    assert_same,
    free_port,
    link_states,
    newest_state,
    pair,
    records,
    train_here,
    wait_for_lines,
)

pytestmark = pytest.mark.slow

RECIPE = (
    MODEL
    + """
name: twins
data: {scenes: {train: 31, validation: 5}, minimum_count: 1, workers: 1}
generation: {beam_size: 2, maximum_length: 6}
precision: float32
log_every: 1
save_every_minutes: 1.0e-9
stages:
  - {epochs: 1, batch_size: 11, learning_rate: 1.0e-2, warmup: 2}
  - {epochs: 1, batch_size: 11, fine_tune_from: 5, flip: true, crop: 0.1, warmup: 2, accumulate: 2}
"""
)  # 31 images in batches of 10 and 11: shares are of different sizes
STEPS = 6


ONE_MACHINE = ("--standalone", "--nproc-per-node", 2)


def torchrun(*arguments: object, where: Sequence[object] = ONE_MACHINE) -> subprocess.Popen[str]:
    command = ["-m", "torch.distributed.run", *where, "-m", "captioner", *arguments]
    return subprocess.Popen(
        [sys.executable, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env=environment(OMP_NUM_THREADS="1"), start_new_session=True,
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return output + errors


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "twins.yaml"
    path.write_text(RECIPE)
    return path


@pytest.fixture(scope="module")
def alone(recipe: Path) -> Path:
    out = recipe.parent / "alone"
    train_here(recipe, out, keep_states=True, data__workers=0)
    return out


@pytest.fixture(scope="module")
def together(recipe: Path) -> Path:
    """A run by the command of docs/training.md, once for each machine; both are this one."""
    out, port = link_states(recipe.parent / "together"), free_port()
    machines = [
        torchrun(
            "train", recipe, "--out", out, "--data.workers", 0,
            where=(
                "--nnodes", 2, "--node-rank", rank, "--master-addr", "127.0.0.1",
                "--master-port", port, "--nproc-per-node", 1,
            ),
        )
        for rank in range(2)
    ]  # fmt: skip
    printed = "".join(map(finish, machines))
    # One of the two prints: the result stands once on standard output.
    assert printed.splitlines().count(str(out / "best.safetensors")) == 1
    assert printed.count("31 training images") == 1
    return out


def furthest(one: Path, two: Path) -> float:
    first, second = newest_state(one), newest_state(two)
    assert first["progress"]["global_step"] == second["progress"]["global_step"] == STEPS
    return max(
        (tensor - second["model"][name]).abs().max().item()
        for name, tensor in first["model"].items()
        if tensor.is_floating_point()
    )


def test_two_processes_learn_what_one_learns(alone: Path, together: Path) -> None:
    assert furthest(alone, together) < 1e-5
    for one, two in zip(records(alone), records(together), strict=True):
        for name in ("loss", "cross_entropy", "gradient_norm"):  # logged: of the whole batch
            assert two.get(name, 0) == pytest.approx(one.get(name, 0), rel=1e-3)
    epochs = [records(out)[-2]["validation"] for out in (alone, together)]
    assert epochs[1] == pytest.approx(epochs[0], rel=1e-3)  # sharded, and put together in order


def test_a_batch_in_parts_is_the_same_batch(recipe: Path, alone: Path, tmp_path: Path) -> None:
    parts = {"stages__1__accumulate": 2, "stages__2__accumulate": 3}
    train_here(recipe, tmp_path / "run", keep_states=True, data__workers=0, **parts)
    assert furthest(alone, tmp_path / "run") < 1e-5
    for one, two in zip(records(alone), records(tmp_path / "run"), strict=True):
        assert two.get("loss", 0) == pytest.approx(one.get("loss", 0), rel=1e-4)


def test_a_run_of_torchrun_is_killed_stopped_and_resumed(
    recipe: Path, together: Path, tmp_path: Path
) -> None:
    out = link_states(tmp_path / "run")
    killed = pair("train", recipe, "--out", out)
    wait_for_lines(killed[0], out, grown=2)
    for process in killed:
        process.kill()
        process.communicate(timeout=300)
    stopped = torchrun("train", recipe, "--out", out)
    wait_for_lines(stopped, out, grown=2)
    stopped.terminate()
    _, errors = stopped.communicate(timeout=300)
    assert "resuming after step" in errors and "stopped after step" in errors
    assert "resuming after step" in "".join(map(finish, pair("train", recipe, "--out", out)))
    assert_same(together, out)


# What follows `captioner train`, and the message; RECIPE is the recipe of this module.
ERRORS = {
    "smoek": "there is no recipe 'smoek', did you mean smoke?",
    "RECIPE --seed 2": "another `captioner train` is running in",
    "RECIPE --stages.1.batch_size 1": "a batch has 1 of the 31 images",
}


def test_errors_are_printed_by_one_process_of_two(recipe: Path, tmp_path: Path) -> None:
    running: list[list[subprocess.Popen[str]]] = []
    with ExitStack() as locks:
        for number, line in enumerate(ERRORS):
            out = tmp_path / str(number)
            if "--seed" in line:
                locks.enter_context(lock_folder(out / "lock", command="train", folder=out))
            words = line.replace("RECIPE", str(recipe)).split()
            running.append(pair("train", *words, "--out", out))
        for (first, second), message in zip(running, ERRORS.values(), strict=True):
            errors = first.communicate(timeout=300)[1]
            second.send_signal(signal.SIGTERM)
            assert not any(second.communicate(timeout=300))
            assert first.returncode and second.returncode
            assert errors.count("captioner: ") == 1, errors
            assert f"captioner: {message}" in errors
            assert "captioner/" not in errors  # no traceback of ours


@pytest.mark.parametrize("missing", ["RANK", "LOCAL_RANK"])
def test_several_processes_need_torchrun(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    world = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}
    for name, value in {**world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(missing)
    with pytest.raises(ConfigError, match=f"but {missing} is not set.*torchrun"):
        start_processes("cpu").__enter__()
    monkeypatch.setenv("WORLD_SIZE", "1")
    with start_processes("cpu") as processes:
        assert (processes.rank, processes.world) == (0, 1)


class Killed:
    """Images whose worker is killed, as the system does when memory runs out."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, _: int) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0


def test_a_killed_worker_is_an_error_with_its_remedy() -> None:
    images: Any = Killed()
    with pytest.raises(DataError, match=r"lower --data\.workers"), memory_errors():
        next(iter(DataLoader(images, num_workers=1)))


def test_shares_make_up_the_batch() -> None:
    shapes = [(5, 8 + number % 7) for number in range(105)]

    def batches(rank: int, world: int, parts: int) -> list[list[int]]:
        options = {"parts": parts, "rank": rank, "world": world}
        return BucketSampler(shapes, batch_size=11, seed=3, **options).order(0)

    whole = batches(0, 1, 1)
    assert {index for batch in whole for index in batch} == set(range(105))
    assert [len(batch) for batch in whole] == [11] * 10
    shares = [batches(rank, 2, 2) for rank in range(2)]
    for number, batch in enumerate(whole):
        mine = [share[2 * number + part] for share in shares for part in range(2)]
        assert sorted(index for each in mine for index in each) == sorted(batch)
        assert max(map(len, mine)) - min(map(len, mine)) <= 1
    sampler = BucketSampler(shapes, batch_size=11, seed=3)
    assert sampler.order(0, skip=4) == whole[4:]  # of an interrupted epoch
    with pytest.raises(ConfigError, match="too few for 4 processes with 3 parts"):
        batches(0, 4, 3)


COLLECTIVES = ("all_gather_object", "all_reduce", "broadcast_object_list")


def take_turns(rank: int, port: int, inside: Any) -> None:
    """Be one of two processes, and work slowly while the other waits.

    A process that waits inside a call of the process group gives up after ten or thirty minutes.
    """

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any, **options: Any) -> Any:
            inside[rank] = 1
            call(*arguments, **options)
            inside[rank] = 0

        return counting

    def work() -> int:
        time.sleep(0.3)
        # A slow machine takes a while to leave a call; one that waits for this work never leaves.
        deadline = time.monotonic() + 20
        while any(inside) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not any(inside)
        return rank

    os.environ |= {"WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with start_processes("cpu") as processes:
        for name in COLLECTIVES:
            setattr(dist, name, counted(getattr(dist, name)))
        assert processes.main_first(work) == rank
        assert processes.main_alone(work) == (None if rank else 0)
        assert processes.gather(rank) == [0, 1]
    os._exit(0)  # without what pytest does at its end


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_slow_work_of_one_process_causes_no_timeout() -> None:
    context = multiprocessing.get_context("fork")
    inside, port = context.Array("i", 2), free_port()
    two = [context.Process(target=take_turns, args=(rank, port, inside)) for rank in range(2)]
    for process in two:
        process.start()
    for process in two:
        process.join(60)
        process.kill()
    assert [process.exitcode for process in two] == [0, 0]
