"""CUDA graphs: launch many operations on a GPU at once.

A beam search consists of about a thousand small operations. A GPU finishes each sooner than Python
launches the next. A CUDA graph stores the operations of one call, with the addresses of all
tensors; later calls copy their arguments to these addresses and launch the whole graph.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, TypeVar, cast
from weakref import WeakSet

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

_MOST_GRAPHS = 16  # each keeps the memory of one call
_MOST_CALLERS = 1000  # remembered first calls
_FREE = 0.25  # the share of the GPU's memory that must be free for a new graph

Result = TypeVar("Result")

# One graph at a time is captured or launched: during a capture torch refuses other launches.
_lock = threading.Lock()
_streams: dict[torch.device, torch.cuda.Stream] = {}
_all: WeakSet[CudaGraphs] = WeakSet()


class CudaGraphs:
    """Runs functions of tensors, and launches repeated calls as CUDA graphs.

    A graph belongs to a key and to the shapes and dtypes of the arguments. The first call of a
    thread runs the function, which also loads its kernels. The second call captures the graph, if
    enough memory is free. The least recently used graph of 16 is dropped. If a capture fails, there
    is a warning, and later calls run the function directly, as on other devices.

    The function must not read tensors from the device. Its result, tensors in tuples and
    dictionaries, must depend only on the key, the arguments, torch's default generator, and tensors
    that keep their addresses, such as weights.
    """

    def __init__(self) -> None:
        self._graphs: dict[Hashable, _Graph] = {}  # the most recently used one is last
        self._failed: set[Hashable] = set()
        self._seen: set[tuple[Hashable, int]] = set()  # keys and threads
        _all.add(self)

    def __reduce__(self) -> tuple[type[CudaGraphs], tuple[()]]:
        """Copy or pickle without the graphs."""
        return CudaGraphs, ()

    def __call__(self, key: Hashable, function: Callable[..., Result], *inputs: Tensor) -> Result:
        """Return the result of the function for these arguments."""
        if not inputs[0].is_cuda:
            return function(*inputs)
        key = (key, *((part.shape, part.dtype) for part in inputs))
        with _lock:
            graph = self._find(key, function, inputs)
            if graph is not None:
                return cast(Result, graph.launch(inputs))
        return function(*inputs)

    def clear(self) -> None:
        """Forget all graphs, and free their memory and torch's cache."""
        with _lock:
            for key in list(self._graphs):
                self._drop(key)
            self._failed.clear()
            torch.cuda.empty_cache()  # not while another thread captures

    def _find(
        self, key: Hashable, function: Callable[..., Any], inputs: tuple[Tensor, ...]
    ) -> _Graph | None:
        """Return the graph of a key, or None."""
        if key in self._graphs:
            self._graphs[key] = self._graphs.pop(key)
            return self._graphs[key]
        if key in self._failed:
            return None
        caller = (key, threading.get_ident())
        if caller not in self._seen:
            if len(self._seen) == _MOST_CALLERS:
                self._seen.clear()
            self._seen.add(caller)
            return None
        device = inputs[0].device
        # torch's cache counts as free, unless it may belong to graphs, also of other captioners.
        if _free(device, cached=not any(other._graphs for other in _all)) < _FREE:
            return None
        if len(self._graphs) == _MOST_GRAPHS:
            self._drop(next(iter(self._graphs)))
        try:
            self._graphs[key] = _Graph(function, inputs)
        except RuntimeError as error:
            self._failed.add(key)
            reason = str(error).strip().partition("\n")[0]
            warnings.warn(
                f"CUDA graph capture failed ({reason}). Calls of this shape run without a graph.",
                stacklevel=3,
            )
        return self._graphs.get(key)

    def _drop(self, key: Hashable) -> None:
        self._graphs.pop(key).finish()
        self._seen = {caller for caller in self._seen if caller[0] != key}


class _Graph:
    """A captured call. Several threads may launch it, each on its own stream.

    The tensors of inputs and results are those of the graph: every launch overwrites them.
    """

    def __init__(self, function: Callable[..., Any], inputs: tuple[Tensor, ...]) -> None:
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._function = function  # holds a reference to the weights
        self._inputs = [part.clone() for part in inputs]
        self._graph = torch.cuda.CUDAGraph()
        device = inputs[0].device
        # torch does not restore the stream after a capture that failed.
        with torch.cuda.device(device), torch.cuda.stream(torch.cuda.current_stream(device)):
            try:
                # Weights that autocast has cast must be cast anew inside the graph.
                torch.clear_autocast_cache()
                with _capture(self._graph, device):
                    self._results = function(*self._inputs)
            except Exception:
                with suppress(RuntimeError), _capture(torch.cuda.CUDAGraph(), device):
                    torch.zeros(1, device=device)  # resets torch's generator after the failure
                raise
            finally:
                torch.clear_autocast_cache()
                # Otherwise the next graph would use the same memory for its matrix products.
                torch._C._cuda_clearCublasWorkspaces()

    def launch(self, inputs: tuple[Tensor, ...]) -> Any:
        stream = torch.cuda.current_stream(inputs[0].device)
        stream.wait_event(self._done)
        try:
            for ours, given in zip(self._inputs, inputs, strict=True):
                ours.copy_(given, non_blocking=True)
            self._graph.replay()
            return tree_map_only(Tensor, Tensor.clone, self._results)
        finally:
            self._done.record(stream)

    def finish(self) -> None:
        """Wait for the last launch."""
        self._done.synchronize()


def _capture(graph: torch.cuda.CUDAGraph, device: torch.device) -> torch.cuda.graph:
    """Return a context that captures; other threads may allocate memory meanwhile."""
    if device not in _streams:
        # torch reuses streams. No other code uses this priority.
        _streams[device] = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
    return torch.cuda.graph(graph, stream=_streams[device], capture_error_mode="thread_local")


def _free(device: torch.device, *, cached: bool) -> float:
    """Return the free share of the memory, with or without the cache of torch."""
    free, total = torch.cuda.mem_get_info(device)
    if cached:
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free / total
