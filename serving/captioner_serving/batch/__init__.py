"""Batch captioning: any number of photos, none lost.

>>> from captioner_serving.batch import caption_batch
>>> for record in caption_batch(["photos"], output="captions.jsonl"):       # doctest: +SKIP
...     print(record["image"], record.get("caption"))

How it runs: sources -> decoding (worker processes) -> captioning (batches on the model) -> journal.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from captioner_serving.batch.config import BatchConfig
    from captioner_serving.batch.run import caption_batch

__all__ = ["BatchConfig", "caption_batch"]

# The worker processes import this package too, and must stay small.
_LAZY = {
    "BatchConfig": "captioner_serving.batch.config",
    "caption_batch": "captioner_serving.batch.run",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'captioner_serving.batch' has no attribute {name!r}")
