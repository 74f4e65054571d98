"""Captioning a whole split; and what a run measures of it after each epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from tqdm import tqdm

from captioner.checkpoint import Checkpoint
from captioner.generation.generate import generate
from captioner.generation.hypothesis import Hypothesis
from captioner.model import CaptionModel
from captioner.trust.consensus import Consensus
from captioner.vision.encoder import Grid
from captioner.vision.transform import Transform
from captioner.vocabulary import Vocabulary
from captioner_training.data.captioned import Captioned
from captioner_training.data.captions import starts_of
from captioner_training.data.grids import CachedGrids
from captioner_training.data.images import CaptionedImage
from captioner_training.data.loader import Workers, split_loader
from captioner_training.distributed import Processes
from captioner_training.evaluation.boxes import read_boxes
from captioner_training.evaluation.calibration import force_references
from captioner_training.evaluation.grounding import points_at
from captioner_training.evaluation.scores import score_split
from captioner_training.recipe import DataConfig

__all__ = ["BATCH", "caption_split", "scene_pointing", "validate"]

BATCH = 50
"""Images that are captioned at once."""


@torch.inference_mode()
def caption_split(
    checkpoint: Checkpoint,
    images: Sequence[CaptionedImage],
    *,
    autocast: torch.autocast,
    workers: Workers = 2,
    no_bar: bool | None = None,
    grids: tuple[CachedGrids, Sequence[int]] | None = None,
    after_batch: Callable[[Grid, Sequence[Captioned]], None] | None = None,
    consensus: Consensus | None = None,
) -> list[Captioned]:
    """Caption every image, in order and in its own style, on the model's device.

    Args:
        checkpoint: whose model is in whatever arithmetic `autocast` gives it.
        images: the split.
        autocast: how the model computes.
        workers: processes that decode images.
        no_bar: as tqdm takes `disable`; None hides the bar where no terminal is.
        grids: of the images, where they have been made before, and their places there.
        after_batch: called with the grids and the captions of each batch: what is measured there
            needs no photo to be opened and encoded again.
        consensus: chooses among the sentences of a beam; see captioner.generation.generate.
    """
    model, vocabulary, config = checkpoint.model, checkpoint.vocabulary, checkpoint.generation
    device = next(model.parameters()).device
    model.eval()
    captioned: list[Captioned] = []
    transform = Transform(checkpoint.transform)
    encoded = _encoded(model, images, transform, autocast=autocast, workers=workers, grids=grids)
    with tqdm(desc="captions", total=len(images), leave=False, disable=no_bar) as bar:
        for stored in encoded:
            grid = stored._replace(features=stored.features.to(device))
            some = images[len(captioned) : len(captioned) + len(grid.features)]
            starts = starts_of(some, vocabulary)
            with autocast:
                results = generate(
                    model.decoder,
                    grid.features,
                    config,
                    vocabulary=vocabulary,
                    starts=starts,
                    consensus=consensus,
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
    workers: Workers,
    grids: tuple[CachedGrids, Sequence[int]] | None,
) -> Iterator[Grid]:
    """Give the grids of images, batch by batch; read those that have been made before."""
    if grids is not None:
        stored, places = grids
        side = transform.config.size // model.config.encoder.stride
        for first in range(0, len(places), BATCH):
            yield Grid(stored[places[first : first + BATCH]].float(), side, side)
        return
    device = next(model.parameters()).device
    for pixels in split_loader(images, transform, workers=workers, batch_size=BATCH):
        with autocast:
            grid = model.encode(transform.normalize(pixels.to(device)))
        yield grid


def validate(
    checkpoint: Checkpoint,
    images: Sequence[CaptionedImage],
    data: DataConfig,
    *,
    autocast: torch.autocast,
    processes: Processes,
    boxes: Path | None = None,
    grids: CachedGrids | None = None,
    together: Callable[[], None] | None = None,
) -> tuple[dict[str, float], list[Captioned]]:
    """Caption a split, each process its share; the scores are the same in every process.

    They are those of score_split, and `cross_entropy` of the references, in nats a token.

    Args:
        checkpoint: whose model has the weights that are to be scored.
        images: the split.
        data: of the run.
        autocast: how the model computes.
        processes: of the run.
        boxes: of drawn scenes, to see whether attention points at the right shape.
        grids: of the images, where a frozen encoder has made them before.
        together: called after full batches, as often in every process.
    """
    full = len(images) // processes.world // BATCH  # batches that every process has
    surprise: list[tuple[float, int]] = []  # of each batch: nats and tokens

    def after_batch(grid: Grid, batch: Sequence[Captioned]) -> None:
        nats = force_references(
            checkpoint.model.decoder,
            grid,
            [one.image for one in batch],
            vocabulary=checkpoint.vocabulary,
            maximum_length=data.maximum_length,
            autocast=autocast,
        ).nats()
        surprise.append((float(nats.cpu().double().sum()), len(nats)))
        if together is not None and len(surprise) <= full:
            together()

    mine = list(range(len(images)))[processes.rank :: processes.world]
    captioned = caption_split(
        checkpoint,
        [images[index] for index in mine],
        autocast=autocast,
        workers=data.workers,
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
            transform = Transform(checkpoint.transform)
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

    Raises DataError: the boxes cannot be read.
    """
    objects = read_boxes(boxes, transform)
    shapes = {one.category for each in objects.values() for one in each}
    right = total = 0
    for one in captioned:
        maps = [] if one.attention is None else zip(one.words, one.attention, strict=True)
        said = [(word, attention) for word, attention in maps if word in shapes]
        targets = objects[one.image.id]
        total += len(targets)
        right += sum(
            word == target.category and points_at(attention, [target.box])
            for (word, attention), target in zip(said, targets, strict=False)
        )
    return 100 * right / max(1, total)
