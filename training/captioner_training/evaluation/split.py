"""Caption a split, and validate a run on it after each epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from tqdm import tqdm

from captioner.checkpoint import Checkpoint
from captioner.generation.beam_search import Hypothesis
from captioner.generation.generate import generate
from captioner.model.encoder import Grid
from captioner.model.model import CaptionModel
from captioner.trust.consensus import Consensus
from captioner.vision.transform import Transform
from captioner.vocabulary import Vocabulary
from captioner_training.data.captioned import Captioned
from captioner_training.data.captions import starts_of
from captioner_training.data.grids import CachedGrids
from captioner_training.data.images import CaptionedImage
from captioner_training.data.pixels import Workers, split_loader
from captioner_training.distributed import Processes
from captioner_training.evaluation.boxes import read_boxes
from captioner_training.evaluation.calibration import force_references
from captioner_training.evaluation.grounding import points_at
from captioner_training.evaluation.scores import score_split
from captioner_training.recipe import DataConfig

BATCH = 50
"""Images captioned at once."""


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
    """Caption every image, in order and in the style of the image, on the model's device.

    Args:
        checkpoint: model, vocabulary and generation settings.
        images: the split.
        autocast: the precision of the model.
        workers: number of processes that decode images.
        no_bar: tqdm's `disable`; None: show the bar only on a terminal.
        grids: cached grids, and the index of each image in them; None: encode the photos.
        after_batch: called with the grids and captions of each batch.
        consensus: ranks the sentences of a beam; see captioner.generation.generate.
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
            batch_images = images[len(captioned) : len(captioned) + len(grid.features)]
            starts = starts_of(batch_images, vocabulary)
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
                _captioned(image, hypotheses[0].copy(), grid, vocabulary)
                for image, hypotheses in zip(batch_images, results, strict=True)
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
    """Yield the grids of images in batches, from the cache if there is one."""
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
    """Caption a split in all processes, and return the scores and all captions.

    The scores are those of score_split, `cross_entropy` of the references in nats per token, and
    `pointing` if there are boxes. Every process returns the same scores.

    Args:
        checkpoint: the model to score.
        images: the split.
        data: the data configuration of the run.
        autocast: the precision of the model.
        processes: the processes of the run. Each one captions its share of the images.
        boxes: file with the boxes of synthetic scenes; see scene_pointing.
        grids: cached grids of the images; None: encode the photos.
        together: called after full batches, equally often in every process.
    """
    full = len(images) // processes.world // BATCH  # full batches of the smallest share
    losses: list[tuple[float, int]] = []  # nats and tokens of each batch

    def after_batch(grid: Grid, batch: Sequence[Captioned]) -> None:
        nats = force_references(
            checkpoint.model.decoder,
            grid,
            [caption.image for caption in batch],
            vocabulary=checkpoint.vocabulary,
            maximum_length=data.maximum_length,
            autocast=autocast,
        ).nats()
        losses.append((float(nats.cpu().double().sum()), len(nats)))
        if together is not None and len(losses) <= full:
            together()

    share = list(range(len(images)))[processes.rank :: processes.world]
    captioned = caption_split(
        checkpoint,
        [images[index] for index in share],
        autocast=autocast,
        workers=data.workers,
        no_bar=processes.no_bar,
        grids=None if grids is None else (grids, share),
        after_batch=after_batch,
    )
    whole = _gather(images, captioned, processes)
    all_losses = [batch for part in processes.gather_to_main(losses) for batch in part]
    scores = None
    if processes.main:
        scores = score_split(whole)
        nats, tokens = map(sum, zip(*all_losses, strict=True))
        scores["cross_entropy"] = nats / tokens
        if boxes is not None:
            transform = Transform(checkpoint.transform)
            scores["pointing"] = scene_pointing(whole, boxes=boxes, transform=transform)
    return processes.broadcast(scores), whole


def _gather(
    images: Sequence[CaptionedImage], share: Sequence[Captioned], processes: Processes
) -> list[Captioned]:
    """Return the captions of all processes in the order of the split; none in other processes."""
    shares = processes.gather_to_main(
        [(caption.hypothesis, caption.words, caption.attention) for caption in share]
    )
    if not shares:
        return []
    return [
        Captioned(image=image, hypothesis=hypothesis, words=words, attention=attention)
        for index, image in enumerate(images)
        for hypothesis, words, attention in [shares[index % len(shares)][index // len(shares)]]
    ]


def scene_pointing(captioned: Sequence[Captioned], *, boxes: Path, transform: Transform) -> float:
    """Return the percentage of objects that the attention of their word points at.

    The first shape that a caption names is compared with the first object of the scene, the second
    with the second. A wrong shape counts as a miss.

    Args:
        captioned: captioned scenes.
        boxes: file with the boxes of the objects, in COCO's instances format.
        transform: the model's transform, to place the boxes on the grid.

    Raises DataError: the boxes cannot be read.
    """
    objects = read_boxes(boxes, transform)
    shapes = {boxed.category for scene in objects.values() for boxed in scene}
    right = total = 0
    for caption in captioned:
        attention = caption.attention
        maps = [] if attention is None else zip(caption.words, attention, strict=True)
        named = [(word, weights) for word, weights in maps if word in shapes]
        targets = objects[caption.image.id]
        total += len(targets)
        right += sum(
            word == target.category and points_at(weights, [target.box])
            for (word, weights), target in zip(named, targets, strict=False)
        )
    return 100 * right / max(1, total)
