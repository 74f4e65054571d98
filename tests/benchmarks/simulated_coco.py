"""One epoch of each stage of `coco-fast` or `coco` on a repeated set of COCO's size.

A few thousand crops of photos are encoded or decoded as in training. On a GPU their grids are then
repeated to 113,287, so they need the memory of all of COCO. Each image has five captions. Captions,
order, augmentation, losses and compilation are those of a run. Not included: validation,
checkpoints, and encoding of the whole set, whose rate is printed.

Weights that a recipe would download are random here.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor, nn

from captioner.model.encoder import Encoder
from captioner.photos.transform import Transform
from captioner.vocabulary import Vocabulary
from captioner_training.data.batches import StageBatches, stage_sampler
from captioner_training.data.captions import CaptionTable, Corpus
from captioner_training.data.grids import CachedGrids, fits_on_gpu
from captioner_training.data.images import CaptionedImage, ImageStore
from captioner_training.data.pixels import ImageDataset, split_loader
from captioner_training.distributed import Processes
from captioner_training.initialization import build_model, load_encoder
from captioner_training.losses.table import stage_objectives
from captioner_training.recipe import LONG_STAGE, Recipe, load_recipe
from captioner_training.state import TrainState
from captioner_training.step import TrainStep, dtype_of
from tests.benchmarks.gpu import Table, peak, release, write_photos

PHOTOS = 113_287  # in Karpathy's training split
WORDS = [f"word{number}" for number in range(9_486)]  # as many as COCO has five times
KINDS = ("frozen", "fine-tuning", "self-critical")  # the stages of both
DISTINCT = 4096  # photos
CALIBRATED = 16  # photos for the statistics of a random encoder


@dataclass(frozen=True, kw_only=True)
class Repeated(StageBatches):
    """Batches that repeat the first `count` images."""

    count: int

    def load(self, order: Sequence[Sequence[int]], *, epoch: int) -> Generator[Tensor]:
        """Yield a tensor for each list of positions."""
        repeated = [[position % self.count for position in batch] for batch in order]
        return super().load(repeated, epoch=epoch)


def simulate(name: str, device: torch.device, *, small: bool) -> None:
    """Run the epochs of a recipe and print their times; `small` takes seconds on a CPU."""
    settings = {"name": "simulated"}
    if load_recipe(name).encoder_weights == "torchvision":
        settings["encoder_weights"] = "random"
    if small:
        settings |= {"transform.size": "64", "data.workers": "0"}
        settings |= {f"stages.{number}.batch_size": "4" for number in (1, 2, 3)}
    recipe = load_recipe(name, settings)
    distinct, count = (4, 8) if small else (DISTINCT, PHOTOS)
    table = Table(
        f"An epoch of each stage of {name}: {count:,} photos, {recipe.encoder.name}, "
        f"{recipe.transform.size} px.\n"
        "The first step includes compiling and tuning; the epoch leaves the first step out.",
        "", "prepared, photos/s", "first step, s", "epoch, s", "photos/s", "loss", "GB at most",
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        images = make_up(Path(folder), distinct)
        repeated = [images[number % distinct] for number in range(count)]
        corpus = Corpus(train=repeated, validation=images, vocabulary=Vocabulary(WORDS))
        for kind, stage in zip(KINDS, recipe.stages, strict=True):
            steps = stage.epochs * -(-count // stage.batch_size)
            torch.backends.cudnn.benchmark = steps >= LONG_STAGE
            alone = replace(
                recipe,
                stages=(replace(stage, epochs=1),),
                compile=recipe.compiles(stage, steps=steps, device=device.type),
            )
            row = run_epoch(alone, corpus, distinct, device=device, cache=Path(folder, kind))
            table.row(f"{kind}, {'compiled' if alone.compile else 'eager'}", *row)
            release(compiled=bool(alone.compile))


def make_up(folder: Path, count: int) -> list[CaptionedImage]:
    """Write photos and make up their captions, with words as common as in English."""
    chance = random.Random(0)
    weights = list(accumulate(1 / (10 + rank) for rank in range(len(WORDS))))
    images = []
    for number, path in enumerate(write_photos(folder, count, (341, 256))):
        words = tuple(
            tuple(chance.choices(WORDS, cum_weights=weights, k=chance.randint(8, 14)))
            for _ in range(5)
        )
        images.append(
            CaptionedImage(
                name=path.name, id=number, store=ImageStore(folder), words=words,
                captions=tuple(map(" ".join, words)),
            )
        )  # fmt: skip
    return images


def run_epoch(
    recipe: Recipe, corpus: Corpus, distinct: int, *, device: torch.device, cache: Path
) -> tuple[float | None, ...]:
    """Run one epoch of a recipe of one stage, and return the row of the table."""
    processes, count = Processes(device=device), len(corpus.train)
    torch.manual_seed(recipe.seed)
    peak(device)
    encoder = load_encoder(recipe)
    if recipe.encoder_weights == "random":
        calibrate(encoder, corpus.train[:CALIBRATED], Transform(recipe.transform))
    model = build_model(recipe, corpus.vocabulary, encoder=encoder, origin=None)
    model.to(device).requires_grad_(True)
    model.encoder.to(memory_format=torch.channels_last)
    model.encoder.fine_tune(from_stage=recipe.stages[0].fine_tune_from)
    started = time.perf_counter()
    transform, frozen = Transform(recipe.transform), recipe.stages[0].fine_tune_from is None
    grids = None
    if frozen:
        grids = CachedGrids.compute(
            model.encoder, corpus.train[:distinct], transform, folder=cache, processes=processes,
            dtype=dtype_of(recipe, device), workers=recipe.data.workers,
        )  # fmt: skip
        grids.load(device)
    before = wait(device) - started
    stage_config = recipe.stages[0]
    photos = ImageDataset(
        corpus.train[:distinct], transform,
        flip=stage_config.flip, crop=stage_config.crop, seed=recipe.seed,
    )  # fmt: skip
    grown = grow(grids.loaded, count) if grids is not None and grids.loaded is not None else None
    if grids is not None and grown is not None:
        grids.loaded = grown
    captions = CaptionTable.of(
        corpus.train, corpus.vocabulary, maximum_length=recipe.data.maximum_length, device=device
    )
    sampler = stage_sampler(recipe, 0, captions, processes)
    batches = Repeated(
        recipe=recipe, stage=stage_config, photos=photos, grids=grids, captions=captions,
        sampler=sampler, count=distinct if grown is None else count,
    )  # fmt: skip
    stage = TrainState(model, processes=processes).begin_stage(recipe, steps=batches.steps)
    step = TrainStep(
        stage, recipe, objectives=stage_objectives(recipe, recipe.stages[0], corpus),
        processes=processes,
    )  # fmt: skip
    ends = [wait(device)]
    for parts in batches.epoch(0, skip=0, max_batches=batches.steps):
        values = step(parts)
        stage.count_step(values)
        if len(ends) == 1:
            ends.append(wait(device))
    took, first = wait(device) - ends[1], ends[1] - ends[0]
    rate = (count - sampler.size) / took
    return distinct / before, first, took, rate, float(values["loss"]), peak(device)


def calibrate(encoder: Encoder, images: Sequence[CaptionedImage], transform: Transform) -> None:
    """Set the statistics of BatchNorm. Otherwise grids of a random ResNet overflow float16."""
    layers = [layer for layer in encoder.modules() if isinstance(layer, nn.BatchNorm2d)]
    (pixels,) = split_loader(images, transform, workers=0, batch_size=len(images))
    for layer in layers:
        layer.momentum = 1.0
        layer.train()
    with torch.no_grad():
        encoder(transform.normalize(pixels))
    for layer in layers:
        layer.eval()


def grow(rows: Tensor, count: int) -> Tensor | None:
    """Repeat rows up to a count; None if training would not keep as many on the GPU."""
    size = count * rows[0].nbytes
    if not fits_on_gpu(size, rows.device):
        print(
            f"{size / 1e9:.0f} GB do not fit into the GPU's memory: training would read them from "
            "disk, and take longer than this epoch"
        )
        return None
    repeated = rows.new_empty(count, *rows.shape[1:])
    for part in repeated.split(len(rows)):
        part.copy_(rows[: len(part)])
    return repeated


def wait(device: torch.device) -> float:
    """Wait for the device and return the time."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
