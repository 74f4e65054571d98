"""An image with its generated caption."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from captioner.generation.beam_search import Hypothesis
from captioner_training.data.images import CaptionedImage


@dataclass(frozen=True, kw_only=True)
class Captioned:
    """An image of a split with its generated caption."""

    image: CaptionedImage
    hypothesis: Hypothesis
    words: list[str]
    attention: Tensor | None  # (words, rows, columns); None without attention
