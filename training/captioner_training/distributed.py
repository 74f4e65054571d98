"""The processes of a run: a single one, or one per GPU, started by torchrun; their progress."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NoReturn, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous
from tqdm import tqdm

from captioner.errors import CaptionerError, ConfigError, DataError, DeviceError
from captioner.inference.device import find_device

Value = TypeVar("Value")

_POLL_INTERVAL = 0.05  # seconds
_EXIT_DELAY = 10  # seconds
_TORCHRUN = {"WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}


def exit_silently() -> NoReturn:
    """Exit without a message after another process failed, which first prints its error.

    torchrun kills all processes when one exits.
    """
    time.sleep(_EXIT_DELAY)
    raise SystemExit(1)


@dataclass(frozen=True, kw_only=True)
class Processes:
    """The processes of a run: this one has number `rank` of `world`.

    All processes must call a method together. With one process, methods do not communicate.
    """

    device: torch.device
    rank: int = 0
    world: int = 1
    store: Any = None  # the torch.distributed.Store of the process group
    _barriers: Iterator[int] = field(default_factory=count, repr=False)

    @property
    def main(self) -> bool:
        """Whether this process writes files and prints messages."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all processes, in place."""
        if self.world > 1:
            dist.all_reduce(tensor)
        return tensor

    def sum_named(self, values: Mapping[str, Tensor]) -> dict[str, float]:
        """Sum named scalars over all processes."""
        sums = self.sum(torch.stack([*values.values()]))
        return dict(zip(values, sums.tolist(), strict=True))

    def gather(self, value: Value) -> list[Value]:
        """Return the values of all processes, in the order of their ranks."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return cast(list[Value], values)

    def broadcast(self, value: Value | None) -> Value:
        """Return the value of the main process."""
        if self.world == 1:
            return cast(Value, value)
        values = [value]
        dist.broadcast_object_list(values, src=0, device=self.device)
        return cast(Value, values[0])

    def main_first(self, work: Callable[[], Value]) -> Value:
        """Call a function in the main process, then in the others.

        The processes wait for each other without a timeout. If the main process raises a
        CaptionerError, the others exit silently.
        """
        result = self.main_alone(work)
        try:
            return cast(Value, result) if self.main else work()
        finally:
            self.wait()

    def main_alone(self, work: Callable[[], Value]) -> Value | None:
        """Call a function in the main process only; the others wait and return None.

        Timeouts and errors are as in `main_first`.
        """
        result, problem = None, None
        if self.main:
            try:
                result = work()
            except CaptionerError as error:
                problem = error
        self.wait()
        failed = self.broadcast(problem is not None)
        if problem is not None:
            raise problem
        if failed:
            exit_silently()
        return result

    def wait(self) -> None:
        """Wait until all processes have called this, without the timeout of a barrier."""
        if self.store is None:
            return
        key = f"captioner/{next(self._barriers)}"
        arrived = self.store.add(key, 1)
        while arrived < self.world:
            time.sleep(_POLL_INTERVAL)
            arrived = self.store.add(key, 0)


@contextmanager
def start_processes(device: str = "auto") -> Iterator[Processes]:
    """Join the processes that torchrun started; without torchrun, use a single process."""
    if missing := sorted(_TORCHRUN - os.environ.keys()):
        if (world_size := os.environ.get("WORLD_SIZE", "1")) != "1":
            raise ConfigError(
                f"WORLD_SIZE is {world_size}, but {', '.join(missing)} is not set: start several "
                "processes with torchrun, or unset WORLD_SIZE"
            )
        alone = Processes(device=find_device(device))
        if alone.device.type == "cuda" and (count := torch.cuda.device_count()) > 1:
            print(
                f"training on one of {count} GPUs; to use all: torchrun --nproc-per-node {count} "
                "-m captioner train ...",
                file=sys.stderr,
            )
        yield alone
        return
    chosen = find_device(device)
    if chosen.type == "cuda":
        chosen = find_device(f"cuda:{os.environ['LOCAL_RANK']}")
        torch.cuda.set_device(chosen)
    store, rank, world = next(rendezvous("env://"))
    dist.init_process_group(
        "nccl" if chosen.type == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=world,
        device_id=chosen if chosen.type == "cuda" else None,
    )
    try:
        yield Processes(device=chosen, rank=rank, world=world, store=store)
    finally:
        dist.destroy_process_group()


@contextmanager
def memory_errors() -> Iterator[None]:
    """Convert torch's errors about exhausted memory to DeviceError and DataError."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise DeviceError(
            "the GPU has too little memory: lower batch_size or raise accumulate in the stages of "
            "the recipe, or end other programs that use the GPU"
        ) from error
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker"):
            raise
        raise DataError(
            "a process that loads images was killed, most likely because memory ran out: lower "
            "--data.workers and run the same command again"
        ) from error


def progress_bar(task: str, total: int, *, quiet: bool, **options: Any) -> tqdm[NoReturn]:
    """Return a bar with more `options` of tqdm; without a terminal it moves every ten seconds."""
    interval = 0.1 if sys.stderr.isatty() else 10.0
    return tqdm(desc=task, total=total, disable=quiet, mininterval=interval, **options)
