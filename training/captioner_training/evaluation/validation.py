"""What a run measures after each epoch: captions of the validation split, and their scores.

And how well the references are foreseen, by their cross-entropy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from captioner.model import CaptionModel
from captioner.vision.encoder import Grid
from captioner.vision.transform import Transform
from captioner.vocabulary import Vocabulary
from captioner_training.data.images import CaptionedImage
from captioner_training.distributed import Processes
from captioner_training.evaluation.boxes import read_boxes
from captioner_training.evaluation.captioned import Captioned
from captioner_training.evaluation.grounding import points_at
from captioner_training.evaluation.references import foresee
from captioner_training.evaluation.scores import score_split
from captioner_training.evaluation.split import BATCH, StoredGrids, caption_split
from captioner_training.recipe import Recipe

__all__ = ["scene_pointing", "validate"]


def validate(
    model: CaptionModel,
    images: Sequence[CaptionedImage],
    recipe: Recipe,
    *,
    vocabulary: Vocabulary,
    autocast: torch.autocast,
    processes: Processes,
    boxes: Path | None = None,
    grids: StoredGrids | None = None,
    together: Callable[[], None] | None = None,
) -> tuple[dict[str, float], list[Captioned]]:
    """Caption a split, each process its share; the scores are the same in every process.

    `cross_entropy` is that of the references, in nats a token.

    Args:
        model: with the weights that are to be scored.
        images: the split.
        recipe: of the run.
        vocabulary: of the model.
        autocast: how the model computes.
        processes: of the run.
        boxes: of drawn scenes, to see whether attention points at the right shape.
        grids: of the images, where a frozen encoder has made them before.
        together: called after full batches, as often in every process.

    """
    transform = Transform(recipe.transform)
    foreseen = partial(
        foresee,
        model.decoder,
        vocabulary=vocabulary,
        maximum_length=recipe.data.maximum_length,
        autocast=autocast,
    )
    full = len(images) // processes.world // BATCH  # batches that every process has
    surprise: list[tuple[float, int]] = []  # of each batch: nats and tokens

    def after_batch(grid: Grid, batch: Sequence[Captioned]) -> None:
        nats = foreseen(grid, [one.image for one in batch]).nats()
        surprise.append((float(nats.cpu().double().sum()), len(nats)))
        if together is not None and len(surprise) <= full:
            together()

    mine = list(range(len(images)))[processes.rank :: processes.world]
    captioned = caption_split(
        model,
        [images[index] for index in mine],
        transform=transform,
        vocabulary=vocabulary,
        config=recipe.generation,
        autocast=autocast,
        workers=recipe.data.workers,
        no_bar=processes.no_bar,
        grids=None if grids is None else (grids, mine),
        after_batch=after_batch,
    )
    everything = _whole(images, captioned, processes)
    surprises = [batch for share in processes.gather(surprise) for batch in share]
    scores = None
    if processes.main:
        scores = score_split(everything)
        nats, tokens = map(sum, zip(*surprises, strict=True))
        scores["cross_entropy"] = nats / tokens
        if boxes is not None:
            scores["pointing"] = scene_pointing(everything, boxes=boxes, transform=transform)
    return processes.broadcast(scores), everything


def _whole(
    images: Sequence[CaptionedImage], share: Sequence[Captioned], processes: Processes
) -> list[Captioned]:
    """Put the shares of all processes together, in the order of the split."""
    shares = processes.gather([(one.hypothesis, one.words, one.attention) for one in share])
    return [
        Captioned(image=image, hypothesis=hypothesis, words=words, attention=attention)
        for index, image in enumerate(images)
        for hypothesis, words, attention in [shares[index % len(shares)][index // len(shares)]]
    ]


def scene_pointing(captioned: Sequence[Captioned], *, boxes: Path, transform: Transform) -> float:
    """Say how often, in percent, a word for a shape looks most at the very shape that it names.

    The first shape of a scene's caption is its first object, the second its second. A word that
    names another shape than its object counts as a miss.

    Args:
        captioned: scenes.
        boxes: of their objects, in COCO's instances format.
        transform: of the model, to find the boxes on the grid.

    Raises:
        DataError: the boxes cannot be read.

    """
    objects = read_boxes(boxes, transform)
    shapes = {one.category for each in objects.values() for one in each}
    right = total = 0
    for one in captioned:
        looks = [] if one.attention is None else zip(one.words, one.attention, strict=True)
        said = [(word, attention) for word, attention in looks if word in shapes]
        wanted = objects[one.image.id]
        total += len(wanted)
        right += sum(
            word == there.category and points_at(attention, [there.box])
            for (word, attention), there in zip(said, wanted, strict=False)
        )
    return 100 * right / max(1, total)
