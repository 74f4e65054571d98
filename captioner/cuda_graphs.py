"""CUDA graphs: launch many operations on a GPU at once.

A beam search consists of about a thousand small operations. A GPU finishes each sooner than Python
launches the next. A CUDA graph stores the operations of one call, with the addresses of all
tensors; later calls copy their arguments to these addresses and launch the whole graph.
"""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

__all__ = ["CudaGraphs"]

_MOST_GRAPHS = 32  # each keeps the memory of one call
_FREE = 0.25  # the share of the GPU's memory that must be free for a new graph
_MOST_CALLERS = 1000  # remembered first calls

Result = TypeVar("Result")

_capturing = threading.Lock()  # torch captures all graphs in one stream


class CudaGraphs:
    """Runs functions of tensors, and replays repeated calls as CUDA graphs.

    A graph belongs to a key and the shapes and dtypes of the arguments. The first call of a thread
    runs the function, which also loads its kernels. The second call captures the graph, if enough
    memory is free. If that fails, there is a warning, and the function is run as it is from then
    on. On other devices it always is.

    The function must not read tensors from the device. Its result must depend only on the key, on
    its arguments, on random numbers of torch's default generator, and on tensors that are changed
    only in place, such as the weights in training. The result is a tensor or a tuple of results;
    other values must not depend on the arguments.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._graphs: OrderedDict[Hashable, _Graph | None] = OrderedDict()
        self._seen: set[Hashable] = set()

    def __call__(self, key: Hashable, function: Callable[..., Result], *inputs: Tensor) -> Result:
        """Return the result of the function for these arguments."""
        if not inputs[0].is_cuda:
            return function(*inputs)
        key = (key, *((part.shape, part.dtype) for part in inputs))
        with self._lock:
            graph = self._find(key, function, inputs)
        return function(*inputs) if graph is None else cast(Result, graph.replay(inputs))

    def _find(
        self, key: Hashable, function: Callable[..., Any], inputs: tuple[Tensor, ...]
    ) -> _Graph | None:
        """Return the graph, captured now if this thread has run the function before, or None."""
        if key in self._graphs:
            self._graphs.move_to_end(key)
            return self._graphs[key]
        caller = (key, threading.get_ident())
        if caller not in self._seen:
            if len(self._seen) == _MOST_CALLERS:
                self._seen.clear()
            self._seen.add(caller)
            return None
        free, total = torch.cuda.mem_get_info(inputs[0].device)
        if free < _FREE * total:
            return None
        try:
            graph = _Graph(function, inputs)
        except RuntimeError as error:
            reason = str(error).strip().partition("\n")[0]
            warnings.warn(f"no CUDA graph ({reason}): captions take longer", stacklevel=2)
            graph = None
        self._graphs[key] = graph
        if len(self._graphs) > _MOST_GRAPHS:
            self._graphs.popitem(last=False)
        return graph


class _Graph:
    """A captured call. Threads with streams of their own may replay it; they wait for each other.

    The tensors of inputs and results are those of the graph: every replay overwrites them.
    """

    def __init__(self, function: Callable[..., Any], inputs: tuple[Tensor, ...]) -> None:
        self._lock = threading.Lock()
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._function = function  # keeps alive what it refers to
        self._inputs = [part.clone() for part in inputs]
        self._graph = torch.cuda.CUDAGraph()
        with _capturing, torch.cuda.device(inputs[0].device):
            # Weights that autocast has cast must not be shared with operations outside the graph.
            torch.clear_autocast_cache()
            # Other threads may allocate memory meanwhile.
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                self._results = function(*self._inputs)
            torch.clear_autocast_cache()

    def replay(self, inputs: tuple[Tensor, ...]) -> Any:
        """Return the results for other arguments."""
        with self._lock:
            stream = torch.cuda.current_stream(inputs[0].device)
            stream.wait_event(self._done)
            for ours, given in zip(self._inputs, inputs, strict=True):
                ours.copy_(given, non_blocking=True)
            self._graph.replay()
            results = _clone(self._results)
            self._done.record(stream)
        return results


def _clone(results: Any) -> Any:
    """Copy the tensors of a result."""
    if isinstance(results, Tensor):
        return results.clone()
    if not isinstance(results, tuple):
        return results
    parts = [_clone(part) for part in results]
    return results._make(parts) if hasattr(results, "_make") else tuple(parts)
