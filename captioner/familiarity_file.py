"""A checkpoint's familiarity: what counts as unlike, its file, and whose it is; without torch."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from captioner.header import HEADER_KEY
from captioner.paths import expanded

__all__ = ["UNFAMILIAR", "digest_encoder", "familiarity_file"]

UNFAMILIAR = 0.01
"""Below it a photo counts as unlike those of the training: one in a hundred of that kind does too.

A warning that ordinary photos get more often would be overlooked where it is true.
"""


def familiarity_file(checkpoint: str | os.PathLike[str]) -> Path:
    """Name the file of a checkpoint's statistics, beside it."""
    path = expanded(checkpoint)
    # A suffix of another kind may be half of a version: model-1.5 is not model-1.6.
    return path.with_name(path.name.removesuffix(".safetensors") + ".familiarity.safetensors")


def digest_encoder(checkpoint: Path) -> str:
    """Digest what makes a checkpoint's grids: its encoder's weights as they lie in the file.

    The settings of encoder and transform are in it too, but for those that are off, which older
    files leave out. Words and decoder are not: statistics of grids stay true for another decoder on
    the same encoder. 12 MB of weights take 20 ms.
    """
    with checkpoint.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        entries = json.loads(file.read(size))
        header = json.loads(entries.pop("__metadata__")[HEADER_KEY])
        settings = [
            sorted(
                (key, value) for key, value in header[part].items() if value not in (None, False)
            )
            for part in ("encoder", "transform")
        ]
        told = hashlib.sha256(json.dumps(settings).encode())
        for name in sorted(name for name in entries if name.startswith("encoder.")):
            start, end = entries[name]["data_offsets"]
            file.seek(8 + size + start)
            told.update(name.encode())
            told.update(file.read(end - start))
    return told.hexdigest()[:16]
