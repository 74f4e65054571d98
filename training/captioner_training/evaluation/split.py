"""Captioning a whole split."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor
from tqdm import tqdm

from captioner.generation.config import GenerationConfig
from captioner.generation.generate import generate
from captioner.generation.hypothesis import Hypothesis
from captioner.model import CaptionModel
from captioner.vision.encoder import Grid
from captioner.vision.transform import Transform
from captioner.vocabulary import Vocabulary
from captioner_training.data.dataset import starts_of
from captioner_training.data.images import CaptionedImage
from captioner_training.data.loader import make_split_loader
from captioner_training.evaluation.captioned import Captioned

__all__ = ["BATCH", "StoredGrids", "caption_split"]


BATCH = 50
"""Images that are captioned at once."""


class StoredGrids(Protocol):
    """Grids that have been made before."""

    def __getitem__(self, indices: Sequence[int]) -> Tensor:
        """Read the grids (B, L, D) of these images."""


@torch.inference_mode()
def caption_split(
    model: CaptionModel,
    images: Sequence[CaptionedImage],
    *,
    transform: Transform,
    vocabulary: Vocabulary,
    config: GenerationConfig,
    autocast: torch.autocast,
    workers: int = 2,
    no_bar: bool | None = None,
    grids: tuple[StoredGrids, Sequence[int]] | None = None,
    after_batch: Callable[[Grid, Sequence[Captioned]], None] | None = None,
) -> list[Captioned]:
    """Caption every image, in order and in its own style, on the model's device.

    Args:
        model: in whatever arithmetic `autocast` gives it.
        images: the split.
        transform: of the model.
        vocabulary: of the model.
        config: how captions are made.
        autocast: how the model computes.
        workers: processes that decode images.
        no_bar: as tqdm takes `disable`; None hides the bar where no terminal is.
        grids: of the images, where they have been made before, and their places there.
        after_batch: called with the grids and the captions of each batch: what is measured there
            needs no photo to be opened and encoded again.

    """
    device = next(model.parameters()).device
    model.eval()
    captioned: list[Captioned] = []
    with tqdm(desc="captions", total=len(images), leave=False, disable=no_bar) as bar:
        for stored in _encoded(
            model, images, transform, autocast=autocast, workers=workers, grids=grids
        ):
            grid = stored._replace(features=stored.features.to(device))
            some = images[len(captioned) : len(captioned) + len(grid.features)]
            with autocast:
                results = generate(
                    model.decoder,
                    grid.features,
                    config,
                    vocabulary=vocabulary,
                    starts=starts_of(some, vocabulary),
                )
            batch = [
                _captioned(image, hypotheses[0], grid, vocabulary)
                for image, hypotheses in zip(some, results, strict=True)
            ]
            captioned += batch
            bar.update(len(batch))
            if after_batch is not None:
                after_batch(grid, batch)
    return captioned


def _captioned(
    image: CaptionedImage, best: Hypothesis, grid: Grid, vocabulary: Vocabulary
) -> Captioned:
    attention = best.attention
    if attention is not None:
        attention = attention.reshape(-1, grid.rows, grid.columns)
    return Captioned(
        image=image, hypothesis=best, words=vocabulary.decode(best.tokens), attention=attention
    )


def _encoded(
    model: CaptionModel,
    images: Sequence[CaptionedImage],
    transform: Transform,
    *,
    autocast: torch.autocast,
    workers: int,
    grids: tuple[StoredGrids, Sequence[int]] | None,
) -> Iterator[Grid]:
    """Give the grids of images, batch by batch; read those that have been made before."""
    if grids is not None:
        stored, places = grids
        side = transform.config.size // model.config.encoder.stride
        for first in range(0, len(places), BATCH):
            yield Grid(stored[places[first : first + BATCH]].float(), side, side)
        return
    device = next(model.parameters()).device
    for pixels, _ in make_split_loader(images, transform, workers=workers, batch_size=BATCH):
        with autocast:
            grid = model.encode(transform.normalize(pixels.to(device)))
        yield grid
