"""From decoded pixels to what the model takes."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from captioner.decoding.decoder import Decoded
from captioner.predictor import PreparedImage

__all__ = ["prepared_images"]


def prepared_images(decoded: Iterable[tuple[str, Decoded]]) -> list[PreparedImage]:
    """Make squares that were decoded without an error ready for `Captioner.caption_prepared`.

    Args:
        decoded: pairs of what the caption calls its image, and the decoded square.

    """
    return [
        PreparedImage(
            source=name,
            pixels=torch.frombuffer(bytearray(one.pixels), dtype=torch.uint8)
            .view(one.shape[1], one.shape[0], 3)
            .permute(2, 0, 1),
            box=one.box,
        )
        for name, one in decoded
    ]
