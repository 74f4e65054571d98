"""Caption a split with a captioner that has its own decoder, such as a Hugging Face model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from tqdm import tqdm

from captioner.captioner import Captioner
from captioner.generation.config import GenerationConfig
from captioner.model.encoder import Grid
from captioner_training.data.captioned import Captioned
from captioner_training.data.images import CaptionedImage
from captioner_training.data.pixels import split_loader
from captioner_training.evaluation.calibration import ForcedTokens
from captioner_training.evaluation.deletion import EffectMeans

if TYPE_CHECKING:
    from captioner.huggingface.captioner import HuggingFaceCaptioner

_BATCH = 16


def force_foreign(
    captioner: HuggingFaceCaptioner, square: Tensor, images: Sequence[CaptionedImage]
) -> ForcedTokens:
    """Predict each token of one image's references; the image is uint8 (3, size, size)."""
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
        captioner: any captioner.
        images: the split.
        config: generation settings.
        after_batch: called with the prepared photos, grids and captions of each batch.
        effects: collects the effects of the deletion test; None: the test is skipped.
    """
    loader = split_loader(images, captioner.transform, workers=2, batch_size=_BATCH)
    captioned: list[Captioned] = []
    with tqdm(desc="captions", total=len(images), leave=False, disable=None) as bar:
        for pixels in loader:
            generated = captioner.generate_batch(
                pixels.numpy(), config, check_attention=effects is not None
            )
            batch: list[Captioned] = []
            for hypotheses, word_effects in zip(
                generated.hypotheses, generated.effects, strict=True
            ):
                best, image = hypotheses[0].copy(), images[len(captioned) + len(batch)]
                words = captioner.vocabulary.decode_plain(best.tokens)
                attention = best.attention
                if attention is not None:
                    attention = attention.reshape(-1, generated.grid.rows, generated.grid.columns)
                batch.append(
                    Captioned(image=image, hypothesis=best, words=words, attention=attention)
                )
                if effects is not None:
                    effects.add(words, word_effects[0])
            captioned += batch
            bar.update(len(batch))
            after_batch(pixels, generated.grid, batch)
    return captioned
