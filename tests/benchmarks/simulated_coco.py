"""One epoch of each stage of `coco-fast` on a repeated set of COCO's size.

A few thousand drawn photos are decoded or encoded as in training, and stand for 113,287 photos with
five captions each. Captions, order, augmentation, losses and compilation are those of a run. Not
included: validation, checkpoints, and decoding or encoding of the whole set, whose rate is printed.
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
from torch import Tensor

from captioner.vocabulary import Vocabulary
from captioner_training.data.batches import ImageSource, StageBatches, stage_sampler
from captioner_training.data.corpus import Corpus
from captioner_training.data.images import CaptionedImage, ImageStore
from captioner_training.distributed import Processes
from captioner_training.initialization import build_model, load_encoder
from captioner_training.losses.table import stage_objectives
from captioner_training.recipe import LONG_STAGE, Recipe
from captioner_training.recipe_file import load_recipe
from captioner_training.stage_images import StageImages
from captioner_training.state import TrainState
from captioner_training.step import TrainStep
from tests.benchmarks.coco_scale import SPLITS, WORDS, draw

__all__ = ["simulate"]

KINDS = ("frozen", "fine-tuning", "self-critical")  # the stages of coco-fast
DISTINCT = 4096  # photos


@dataclass(frozen=True)
class Repeated:
    """The first `count` images of a source, in place of any number of images."""

    source: ImageSource
    count: int

    def batches(self, order: Sequence[Sequence[int]], *, epoch: int) -> Generator[Tensor]:
        """Yield a tensor for each list of positions."""
        repeated = [[position % self.count for position in batch] for batch in order]
        return self.source.batches(repeated, epoch=epoch)


def simulate(device: torch.device, *, small: bool) -> None:
    """Run the epochs and print their times; `small` takes seconds on a CPU."""
    settings = {"encoder_weights": "random", "name": "simulated"}
    if small:
        settings |= {"transform.size": "64", "data.workers": "0"}
        settings |= {f"stages.{number}.batch_size": "4" for number in (1, 2, 3)}
    recipe = load_recipe("coco-fast", settings)
    distinct, count = (4, 8) if small else (DISTINCT, SPLITS["train"])
    with tempfile.TemporaryDirectory() as name:
        images = make_up(Path(name), distinct)
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
            run_epoch(kind, alone, corpus, distinct, device=device, cache=Path(name, kind))


def make_up(folder: Path, count: int) -> list[CaptionedImage]:
    """Write photos and make up their captions, with words as common as in English."""
    chance = random.Random(0)
    drawn = [draw(chance) for _ in range(min(64, count))]
    weights = list(accumulate(1 / (10 + rank) for rank in range(len(WORDS))))
    images = []
    for number in range(count):
        file = folder / f"{number}.jpg"
        file.write_bytes(drawn[number % len(drawn)] + b"%08d" % number)
        words = tuple(
            tuple(chance.choices(WORDS, cum_weights=weights, k=chance.randint(8, 14)))
            for _ in range(5)
        )
        images.append(
            CaptionedImage(
                name=file.name, id=number, store=ImageStore(folder), words=words,
                captions=tuple(map(" ".join, words)),
            )
        )  # fmt: skip
    return images


def run_epoch(
    kind: str, recipe: Recipe, corpus: Corpus, distinct: int, *, device: torch.device, cache: Path
) -> None:
    """Run one epoch of a recipe of one stage, and print what it took."""
    processes, count = Processes(device=device), len(corpus.train)
    torch.manual_seed(recipe.seed)
    model = build_model(recipe, corpus.vocabulary, encoder=load_encoder(recipe), origin=None)
    model.to(device).requires_grad_(True)
    model.encoder.to(memory_format=torch.channels_last)
    model.encoder.fine_tune(from_stage=recipe.stages[0].fine_tune_from)
    started = time.perf_counter()
    images = StageImages(
        recipe=recipe, images=corpus.train[:distinct], encoder=model.encoder, cache=cache,
        processes=processes,
    ).stage(0)  # fmt: skip
    before = time.perf_counter() - started
    captions = corpus.table(maximum_length=recipe.data.maximum_length, device=device)
    sampler = stage_sampler(recipe, 0, captions, processes)
    batches = StageBatches(
        recipe, 0, images=Repeated(images, distinct), captions=captions, sampler=sampler
    )
    stage = TrainState(model, processes=processes).begin_stage(recipe, steps=batches.steps)
    step = TrainStep(
        stage, recipe, objectives=stage_objectives(recipe, recipe.stages[0], corpus),
        vocabulary=corpus.vocabulary, processes=processes,
    )  # fmt: skip
    ends = [time.perf_counter()]
    for parts in batches.epoch(0, skip=0, most=batches.steps):
        stage.count_step(step(parts))
        if len(ends) == 1:
            ends.append(wait(device))
    took, first = wait(device) - ends[0], ends[1] - ends[0]
    print(
        f"{kind}: {count:,} photos in {took:.1f} s, of which the first step takes {first:.1f} s; "
        f"before it, photos are prepared at {distinct / before:.0f} photos/s",
        flush=True,
    )


def wait(device: torch.device) -> float:
    """Wait for the device and return the time."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
