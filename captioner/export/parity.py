"""Whether an exported model says and sees what its checkpoint does."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from captioner.errors import OutputError
from captioner.paths import sample_photos
from captioner.predictor import Captioner

__all__ = ["check_parity", "load_app"]

_NEAR = 1e-4  # of attention weights, which sum to 1


def load_app(folder: Path) -> ModuleType:
    """Import the caption.py of an exported folder."""
    name = f"exported_{id(folder)}"
    loader = SourceFileLoader(name, str(folder / "caption.py"))
    module = ModuleType(name)
    module.__file__ = loader.path
    sys.modules[name] = module  # where dataclasses look for it
    loader.exec_module(module)
    return module


def check_parity(checkpoint: Path, folder: Path) -> int:
    """Caption the sample photos with both; returns how many.

    Raises:
        OutputError: they differ; the error names the picture and both sentences.

    """
    captioner = Captioner.from_pretrained(
        checkpoint, device="cpu", dtype="float32", in_process=True
    )
    exported = load_app(folder).Captioner(folder)
    pictures = {name: path.read_bytes() for name, path in sample_photos().items()}
    for name, data in pictures.items():
        wanted = captioner.caption(data).record(attention=True)
        got = exported.caption(io.BytesIO(data))
        if wanted["caption"] != got["caption"]:
            raise OutputError(
                f"the exported model differs from {checkpoint} on {name}: it says "
                f"{got['caption']!r} in place of {wanted['caption']!r}"
            )
        if (far := _distance(wanted, got)) > _NEAR:
            raise OutputError(
                f"the exported model differs from {checkpoint} on {name}: attention by {far:.1e}"
            )
    return len(pictures)


def _distance(wanted: Mapping[str, Any], got: Mapping[str, Any]) -> float:
    """Find how far the attention of two records is apart, at most."""
    pairs = [
        (one["attention"]["weights"], other["attention"]["weights"])
        for one, other in zip(wanted["words"], got["words"], strict=True)
        if "attention" in one
    ]
    return max((abs(a - b) for pair in pairs for a, b in zip(*pair, strict=True)), default=0.0)
