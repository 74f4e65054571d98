"""Captions of a split by a model whose decoder is not ours, such as a Hugging Face model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from captioner.errors import DataError
from captioner.generation.config import GenerationConfig
from captioner.predictor import Captioner
from captioner.vision.encoder import Grid
from captioner_training.data.captioned import Captioned
from captioner_training.data.images import CaptionedImage
from captioner_training.data.loader import split_loader
from captioner_training.evaluation.bootstrap import mean_table, summary
from captioner_training.evaluation.calibration import ForcedTokens
from captioner_training.evaluation.content import FUNCTION_WORDS

if TYPE_CHECKING:
    from captioner.huggingface.captioner import HuggingFaceCaptioner

__all__ = ["EffectMeans", "caption_foreign", "force_foreign"]

_BATCH = 16


class EffectMeans:
    """The deletion test over a split, from the effects that the captioner measures itself."""

    def __init__(self) -> None:
        self._words: list[tuple[int, str, float]] = []
        self._images = 0

    def add(self, words: Sequence[str], effects: Sequence[float] | None) -> None:
        """Add the words of the next caption with their effects in nats."""
        pairs = zip(words, effects or (), strict=effects is not None)
        self._words += [(self._images, word, effect) for word, effect in pairs]
        self._images += 1

    def result(self) -> dict[str, object]:
        """Average over content words and function words, with intervals over images.

        Raises DataError: no word has an effect.
        """
        if not self._words:
            raise DataError("the model captions without attention: there is nothing to delete")
        kinds: dict[str, list[tuple[int, float]]] = {"content": [], "function": []}
        for image, word, effect in self._words:
            kinds["function" if word in FUNCTION_WORDS else "content"].append((image, effect))
        return {kind: self._mean(pairs) for kind, pairs in kinds.items() if pairs}

    def _mean(self, pairs: Sequence[tuple[int, float]]) -> dict[str, object]:
        images, effects = map(np.array, zip(*pairs, strict=True))
        counts = np.bincount(images, minlength=self._images)
        sums = np.bincount(images, weights=effects, minlength=self._images)
        return {"words": len(pairs), **summary({"effect": mean_table(sums, counts)})}


def force_foreign(
    captioner: HuggingFaceCaptioner, square: Tensor, images: Sequence[CaptionedImage]
) -> ForcedTokens:
    """Score every token of the references of one image, uint8 (3, size, size)."""
    texts = [captioner.vocabulary.join(words) for image in images for words in image.words]
    logits, targets = captioner.force(square[None], texts)
    return ForcedTokens(logits, targets, torch.zeros_like(targets))


@torch.inference_mode()
def caption_foreign(
    captioner: Captioner,
    images: Sequence[CaptionedImage],
    config: GenerationConfig,
    *,
    after_batch: Callable[[Tensor, Grid, Sequence[Captioned]], None],
    effects: EffectMeans | None = None,
) -> list[Captioned]:
    """Caption every image, in order.

    Args:
        captioner: any captioner with `decode_batch`.
        images: the split.
        config: how it generates.
        after_batch: is called with the squares, grids and captions of each batch.
        effects: collects the deletion test, which takes longer; None leaves it out.
    """
    loader = split_loader(images, captioner.transform, workers=2, batch_size=_BATCH)
    captioned: list[Captioned] = []
    with tqdm(desc="captions", total=len(images), leave=False, disable=None) as bar:
        for pixels in loader:
            decoded = captioner.decode_batch(
                pixels.numpy(), config, check_attention=effects is not None
            )
            batch: list[Captioned] = []
            for hypotheses, found in zip(decoded.hypotheses, decoded.effects, strict=True):
                best, image = hypotheses[0], images[len(captioned) + len(batch)]
                words = captioner.vocabulary.decode_plain(best.tokens)
                attention = best.attention
                if attention is not None:
                    attention = attention.reshape(-1, decoded.rows, decoded.columns)
                batch.append(
                    Captioned(image=image, hypothesis=best, words=words, attention=attention)
                )
                if effects is not None:
                    effects.add(words, found[0])
            captioned += batch
            bar.update(len(batch))
            after_batch(pixels, Grid(decoded.features, decoded.rows, decoded.columns), batch)
    return captioned
