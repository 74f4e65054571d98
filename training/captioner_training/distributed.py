"""The processes of a run: one, or one a GPU as torchrun starts them."""

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

from captioner.device import find_device
from captioner.errors import CaptionerError, ConfigError, DeviceError

__all__ = ["Processes", "end_silently", "start_processes"]

Value = TypeVar("Value")

_LOOK_AGAIN = 0.05  # seconds
_SECONDS = 10
_TORCHRUN = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")  # beside WORLD_SIZE


def end_silently() -> NoReturn:
    """End without a word, and late: torchrun ends all processes as soon as one has failed."""
    time.sleep(_SECONDS)
    raise SystemExit(1)


@dataclass(frozen=True, kw_only=True)
class Processes:
    """The `world` processes of a run, seen from one of them.

    Every method is called by all of them together; alone, each does nothing.
    """

    device: torch.device
    rank: int = 0
    world: int = 1
    store: Any = None  # a torch.distributed.Store, in which they have met
    _meetings: Iterator[int] = field(default_factory=count, repr=False)

    @property
    def main(self) -> bool:
        """Whether this process writes the files and speaks."""
        return self.rank == 0

    @property
    def no_bar(self) -> bool | None:
        """What tqdm takes as `disable`: off but in the main process, and where no terminal is."""
        return None if self.main else True

    @property
    def conditions(self) -> str:
        """What the numbers of a run depend on in their last digits."""
        return (
            f"torch {torch.__version__}, {self.world} x {self.device.type}, "
            f"{torch.get_num_threads()} threads"
        )

    def sum(self, tensor: Tensor) -> Tensor:
        """Add up a tensor of the same shape from every process, in place."""
        if self.world > 1:
            dist.all_reduce(tensor)
        return tensor

    def sum_named(self, values: Mapping[str, Tensor]) -> dict[str, float]:
        """Add up scalars of the same names from every process."""
        sums = self.sum(torch.stack([*values.values()]))
        return dict(zip(values, sums.tolist(), strict=True))

    def gather(self, value: Value) -> list[Value]:
        """Collect a value from every process, in the order of their ranks."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return cast(list[Value], values)

    def broadcast(self, value: Value | None) -> Value:
        """Give every process the value of the main one."""
        if self.world == 1:
            return cast(Value, value)
        values = [value]
        dist.broadcast_object_list(values, src=0, device=self.device)
        return cast(Value, values[0])

    def main_first(self, work: Callable[[], Value]) -> Value:
        """Do something in the main process, which may write files, and then in the others.

        They wait for each other, however long it takes. Where it fails in the main process with a
        CaptionerError, the others end without a word.
        """
        result = self.main_alone(work)
        try:
            return cast(Value, result) if self.main else work()
        finally:
            self._meet()

    def main_alone(self, work: Callable[[], Value]) -> Value | None:
        """Do something in the main process alone, as in `main_first`; the others get None."""
        result, problem = None, None
        if self.main:
            try:
                result = work()
            except CaptionerError as error:
                problem = error
        self._meet()
        failed = self.broadcast(problem is not None)
        if problem is not None:
            raise problem
        if failed:
            end_silently()
        return result

    def wait(self) -> None:
        """Go on only when all have come this far."""
        if self.world > 1:
            dist.barrier()

    def _meet(self) -> None:
        """Wait for the others as long as their work takes, where a barrier would give up."""
        if self.store is None:
            return
        place = f"captioner/{next(self._meetings)}"
        there = self.store.add(place, 1)
        while there < self.world:
            time.sleep(_LOOK_AGAIN)
            there = self.store.add(place, 0)


@contextmanager
def start_processes(device: str = "auto") -> Iterator[Processes]:
    """Join the processes that torchrun started; without torchrun, be the only one.

    `device` is as for find_device; "cuda" takes the GPU of this process's local rank.

    Raises:
        ConfigError: WORLD_SIZE is set, but other variables of torchrun are missing.
        DeviceError: this machine has no such device, or fewer GPUs than processes.
    """
    if "WORLD_SIZE" not in os.environ:
        alone = Processes(device=find_device(device))
        if alone.device.type == "cuda" and (count := torch.cuda.device_count()) > 1:
            print(
                f"training on one of {count} GPUs; for all of them: torchrun --nproc-per-node "
                f"{count} -m captioner train ...",
                file=sys.stderr,
            )
        yield alone
        return
    if missing := [name for name in _TORCHRUN if name not in os.environ]:
        raise ConfigError(
            f"WORLD_SIZE is set, but {', '.join(missing)} is not: start several processes with "
            "torchrun, or unset WORLD_SIZE"
        )
    local, first = int(os.environ["LOCAL_RANK"]), os.environ["RANK"] == "0"
    try:
        found = find_device(device)
        if found.type == "cuda":
            if local >= (count := torch.cuda.device_count()):
                first = local == count  # of those without a GPU
                raise DeviceError(
                    f"torchrun started process {local + 1} on a machine with {count} GPUs: "
                    f"use --nproc-per-node {count}"
                )
            found = torch.device("cuda", local)
            torch.cuda.set_device(found)
    except DeviceError:
        if not first:  # of all that find the same wrong, one says so
            end_silently()
        raise
    store, rank, world = next(rendezvous("env://"))
    dist.init_process_group(
        "nccl" if found.type == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=world,
        device_id=found if found.type == "cuda" else None,
    )
    try:
        yield Processes(device=found, rank=rank, world=world, store=store)
    finally:
        dist.destroy_process_group()
