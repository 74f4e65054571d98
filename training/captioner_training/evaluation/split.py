"""Captioning a whole split, and what can be said of the result without another scorer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor
from tqdm import tqdm

from captioner.encoder import Grid
from captioner.generation.config import GenerationConfig
from captioner.generation.generate import generate
from captioner.generation.hypothesis import Hypothesis
from captioner.model import CaptionModel
from captioner.transforms import Transform
from captioner.vocabulary import Vocabulary
from captioner_training.data.images import CaptionedImage
from captioner_training.data.loader import make_split_loader
from captioner_training.evaluation.captioned import Captioned
from captioner_training.evaluation.grounding import word_distance
from captioner_training.evaluation.scores import score_tables

__all__ = ["StoredGrids", "caption_split", "encode_split", "score_split"]

_BATCH = 50  # images that are captioned at once


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
    after_batch: Callable[[int], None] | None = None,
) -> list[Captioned]:
    """Caption every image, in order, on the model's device.

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
        after_batch: called after each full batch with the number of images that are captioned.

    """
    device = next(model.parameters()).device
    model.eval()
    captioned: list[Captioned] = []
    with tqdm(desc="captions", total=len(images), leave=False, disable=no_bar) as bar:
        batches = encode_split(
            model,
            images,
            transform,
            autocast=autocast,
            workers=workers,
            batch_size=_BATCH,
            grids=grids,
        )
        for grid in batches:
            with autocast:
                results = generate(
                    model.decoder, grid.features.to(device), config, vocabulary=vocabulary
                )
            captioned += [
                _captioned(images[len(captioned) + at], hypotheses[0], grid, vocabulary)
                for at, hypotheses in enumerate(results)
            ]
            bar.update(len(results))
            if after_batch is not None and len(results) == _BATCH:
                after_batch(len(captioned))
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


@torch.inference_mode()
def encode_split(
    model: CaptionModel,
    images: Sequence[CaptionedImage],
    transform: Transform,
    *,
    autocast: torch.autocast,
    workers: int,
    batch_size: int,
    grids: tuple[StoredGrids, Sequence[int]] | None = None,
) -> Iterator[Grid]:
    """Give the grids of images, batch by batch; read those that have been made before."""
    if grids is not None:
        stored, places = grids
        side = transform.config.size // model.config.encoder.stride
        for first in range(0, len(places), batch_size):
            yield Grid(stored[places[first : first + batch_size]].float(), side, side)
        return
    device = next(model.parameters()).device
    for pixels, _ in make_split_loader(images, transform, workers=workers, batch_size=batch_size):
        with autocast:
            grid = model.encode(transform.normalize(pixels.to(device)))
        yield grid


def score_split(captioned: Sequence[Captioned]) -> dict[str, float]:
    """Score a split: BLEU, ROUGE-L, CIDEr-D, different and exact captions, how attention moves.

    On the model's own tokens. `attention_distance` is the total-variation distance between the
    words of a caption, averaged over the captions of two words or more.
    """
    references = [one.image.words for one in captioned]
    tables = score_tables(references, [one.words for one in captioned])
    scores = {name: table.value() for name, table in tables.items()}
    scores["different"] = float(len({tuple(one.words) for one in captioned}))
    exact = sum(tuple(one.words) in one.image.words for one in captioned)
    scores["exact"] = 100 * exact / len(captioned)
    distances = [
        word_distance(one.attention)
        for one in captioned
        if one.attention is not None and len(one.words) > 1
    ]
    scores["attention_distance"] = sum(distances) / max(1, len(distances))
    scores["words"] = sum(len(one.words) for one in captioned) / len(captioned)
    return scores
