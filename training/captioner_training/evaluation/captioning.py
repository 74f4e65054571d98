"""Caption a split: with a captioner for `captioner evaluate`, or with the model of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from tqdm import tqdm

from captioner.captioner import Captioner
from captioner.checkpoint import Checkpoint
from captioner.generation.beam_search import Hypothesis
from captioner.generation.config import GenerationConfig
from captioner.generation.generate import generate
from captioner.inference.decoders import fast_decoder
from captioner.model.encoder import Grid
from captioner.photos.transform import Transform
from captioner.vocabulary import Vocabulary
from captioner_training.data.captions import starts_of
from captioner_training.data.grids import CachedGrids
from captioner_training.data.images import Captioned, CaptionedImage
from captioner_training.data.pixels import split_loader
from captioner_training.distributed import Processes
from captioner_training.evaluation.calibration import force_references
from captioner_training.evaluation.grounding import points_at, read_boxes
from captioner_training.evaluation.scores import score_split
from captioner_training.recipe import DataConfig

BATCH = 50
"""Images captioned at once in a validation."""


@torch.inference_mode()
def caption_images(
    captioner: Captioner,
    images: Sequence[CaptionedImage],
    config: GenerationConfig,
    *,
    check_attention: bool = False,
    on_batch: Callable[[Grid, Sequence[Captioned]], object] | None = None,
) -> list[Captioned]:
    """Caption every image, in order. Each image is opened and encoded once.

    `check_attention` runs the deletion test on the words. `on_batch` is called with the grids and
    captions of each batch.
    """
    size = captioner.batch_size
    loader = split_loader(images, captioner.transform, workers=2, batch_size=size)
    captioned: list[Captioned] = []
    with tqdm(desc="captions", total=len(images), leave=False, disable=None) as bar:
        for pixels in loader:
            hypotheses, word_effects, grid = captioner.generate_batch(
                pixels.numpy(), config, check_attention=check_attention
            )
            beams = zip(images[len(captioned) :], hypotheses, word_effects, strict=False)
            batch = [
                _captioned(image, best, grid, captioner.vocabulary, effects)
                for image, (best, *_), (effects, *_) in beams
            ]
            captioned += batch
            bar.update(len(batch))
            if on_batch is not None:
                on_batch(grid, batch)
    return captioned


def _captioned(
    image: CaptionedImage,
    best: Hypothesis,
    grid: Grid,
    vocabulary: Vocabulary,
    effects: Sequence[float] | None = None,
) -> Captioned:
    best = best.copy()  # without the rest of the batch
    attention = best.attention
    return Captioned(
        image=image,
        hypothesis=best,
        words=vocabulary.decode_plain(best.tokens),
        attention=None if attention is None else attention.reshape(-1, grid.rows, grid.columns),
        effects=effects,
    )


@torch.inference_mode()
def validate(
    checkpoint: Checkpoint,
    images: Sequence[CaptionedImage],
    data: DataConfig,
    *,
    autocast: torch.autocast,
    processes: Processes,
    boxes: Path | None = None,
    grids: CachedGrids | None = None,
    on_batch: Callable[[], None] | None = None,
) -> dict[str, float]:
    """Caption a split in all processes, and return its scores.

    The scores are those of score_split, `cross_entropy` of the references in nats per token, and
    `pointing` if there are boxes. Every process returns the same scores.

    Args:
        checkpoint: the model to score.
        images: the split. Each process captions its share.
        data: the data configuration of the run.
        autocast: the precision of the model.
        processes: the processes of the run.
        boxes: file with the boxes of synthetic scenes; see scene_pointing.
        grids: cached grids of the images; None: encode the photos.
        on_batch: called after full batches, equally often in every process.
    """
    checkpoint.model.eval()
    decoder = fast_decoder(checkpoint.model.decoder, tables=False)
    vocabulary, transform = checkpoint.vocabulary, Transform(checkpoint.transform)
    share = range(len(images))[processes.rank :: processes.world]
    full = len(images) // processes.world // BATCH  # full batches of the smallest share
    captioned: list[Captioned] = []
    losses: list[tuple[float, int]] = []  # nats and tokens of each batch
    quiet = None if processes.main else True  # None: a bar on a terminal
    encoded = _encoded(checkpoint, images, share, autocast=autocast, data=data, grids=grids)
    with tqdm(desc="captions", total=len(share), leave=False, disable=quiet) as bar:
        for number, (batch, grid) in enumerate(encoded, start=1):
            starts = starts_of(batch, vocabulary)
            with autocast:
                beams = generate(
                    decoder, grid.features, checkpoint.generation, vocabulary=vocabulary,
                    starts=starts,
                )  # fmt: skip
            captioned += [
                _captioned(image, best, grid, vocabulary)
                for image, (best, *_) in zip(batch, beams, strict=True)
            ]
            forced = force_references(
                checkpoint.model.decoder, grid, batch, vocabulary=vocabulary,
                maximum_length=data.maximum_length, autocast=autocast,
            )  # fmt: skip
            losses.append((float(forced.nats().cpu().double().sum()), len(forced.targets)))
            bar.update(len(batch))
            if on_batch is not None and number <= full:
                on_batch()
    all_losses = [batch for part in processes.gather(losses) for batch in part]
    scores = None
    whole = _gather(images, captioned, processes)
    if processes.main:
        scores = score_split(whole)
        total = sum(nats for nats, _ in all_losses)
        scores["cross_entropy"] = total / sum(tokens for _, tokens in all_losses)
        if boxes is not None:
            scores["pointing"] = scene_pointing(whole, boxes=boxes, transform=transform)
    return processes.broadcast(scores)


def _encoded(
    checkpoint: Checkpoint,
    images: Sequence[CaptionedImage],
    share: Sequence[int],
    *,
    autocast: torch.autocast,
    data: DataConfig,
    grids: CachedGrids | None,
) -> Iterator[tuple[list[CaptionedImage], Grid]]:
    """Yield a share of the images in batches with their grids, from the cache if there is one."""
    model, transform = checkpoint.model, Transform(checkpoint.transform)
    device = next(model.parameters()).device
    places = [share[first : first + BATCH] for first in range(0, len(share), BATCH)]
    batches = [[images[at] for at in batch] for batch in places]
    if grids is not None:
        side = transform.config.size // model.config.encoder.stride
        for batch, of_batch in zip(batches, places, strict=True):
            yield batch, Grid(grids[of_batch].float().to(device), side, side)
        return
    own = [image for batch in batches for image in batch]
    loader = split_loader(own, transform, workers=data.workers, batch_size=BATCH)
    for batch, pixels in zip(batches, loader, strict=True):
        with autocast:
            grid = model.encode(transform.normalize(pixels.to(device)))
        yield batch, grid


def _gather(
    images: Sequence[CaptionedImage], share: Sequence[Captioned], processes: Processes
) -> list[Captioned]:
    """Return the captions of all processes in the order of the split."""
    shares = processes.gather(
        [(caption.hypothesis, caption.words, caption.attention) for caption in share]
    )
    return [
        Captioned(image=image, hypothesis=hypothesis, words=words, attention=attention)
        for index, image in enumerate(images)
        for hypothesis, words, attention in [shares[index % len(shares)][index // len(shares)]]
    ]


def scene_pointing(captioned: Sequence[Captioned], *, boxes: Path, transform: Transform) -> float:
    """Return the percentage of objects that the attention of their word points at.

    The first shape that a caption names is compared with the first object of the scene, the second
    with the second. A wrong shape counts as a miss.

    `boxes` is a file in COCO's instances format; `transform` places the boxes on the grid.
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
