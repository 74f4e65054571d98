"""Batch captioning of any number of photos, with resume.

>>> from captioner_serving.batch import caption_batch
>>> for record in caption_batch(["photos"], output="captions.jsonl"):       # doctest: +SKIP
...     print(record["image"], record.get("caption"))

Data flow: inputs -> engine (decoding processes, batches on the model) -> journal and outputs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from captioner_serving.batch.config import BatchConfig
    from captioner_serving.batch.run import caption_batch

__all__ = ["BatchConfig", "caption_batch"]

_MODULES = {"BatchConfig": "config", "caption_batch": "run"}


def __getattr__(name: str) -> Any:  # lazy, because decoding processes import this package
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
