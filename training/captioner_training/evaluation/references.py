"""How well a decoder foresees what people wrote: teacher forcing on the references of a split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from captioner.decoders.decoder import Decoder
from captioner.vision.encoder import Grid
from captioner.vocabulary import PAD, Vocabulary
from captioner_training.data.dataset import collate, encode_captions, starts_of
from captioner_training.data.images import CaptionedImage

__all__ = ["Foreseen", "foresee"]


class Foreseen(NamedTuple):
    """The N tokens of references, ends of sentences among them, and the scores before each.

    logits: (N, words), float32; wanted: (N,), the token that comes; image: (N,), the place of the
    image among those of the batch.
    """

    logits: Tensor
    wanted: Tensor
    image: Tensor

    def nats(self) -> Tensor:
        """Give the cross-entropy (N,) of each token, in nats."""
        return F.cross_entropy(self.logits, self.wanted, reduction="none")


@torch.inference_mode()
def foresee(
    decoder: Decoder,
    grid: Grid,
    images: Sequence[CaptionedImage],
    *,
    vocabulary: Vocabulary,
    maximum_length: int,
    autocast: torch.autocast,
) -> Foreseen:
    """Score every token of the images' references from what stands before it.

    Args:
        decoder: in whatever arithmetic `autocast` gives it.
        grid: of the images.
        images: a batch.
        vocabulary: of the decoder.
        maximum_length: of references, in words; of a longer one the start counts.
        autocast: how the decoder computes.

    """
    captions = encode_captions(images, vocabulary)
    starts = starts_of(images, vocabulary)
    batch = collate(grid.features, captions, starts=starts, maximum_length=maximum_length)
    tokens = batch.tokens.to(grid.features.device)
    targets = tokens[..., 1:]
    said = targets != PAD
    with autocast:
        deep = decoder(grid.features, tokens[..., :-1]).deep[said]
        logits = decoder.logits(deep).float()
    return Foreseen(logits, targets[said], said.nonzero()[:, 0])
