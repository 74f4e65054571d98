"""A training run from top to bottom: `captioner train RECIPE --out DIR`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset

from captioner.checkpoint import Checkpoint
from captioner.errors import OutputError
from captioner.generation import GenerationConfig
from captioner.model import CaptionModel
from captioner.transforms import Transform
from captioner_training.build import Data, build_data, build_model
from captioner_training.dataset import (
    Augmentation,
    Batch,
    ImageDataset,
    Item,
    collate,
    encode_captions,
)
from captioner_training.engine import build_optimizer, train_one_epoch
from captioner_training.evaluation import caption_split, score_split
from captioner_training.grids import CachedGrids
from captioner_training.recipe import Recipe, Stage
from captioner_training.sampler import BucketSampler
from captioner_training.schedule import warmup_cosine

__all__ = ["train"]


def train(recipe: Recipe, *, out: Path, device: torch.device) -> Path:
    """Run a recipe and return the path of the best checkpoint.

    Writes into `out`: best.safetensors (highest BLEU-4 on validation, by beam search) and
    last.safetensors, log.jsonl, recipe.json, and cached grids.

    Raises:
        CaptionerError: data, weights or output are not as the recipe needs them.

    """
    log = _open_log(recipe, out)
    torch.manual_seed(recipe.seed)
    data = build_data(recipe, out=out)
    _say(
        f"{len(data.train):,} training images, {len(data.validation):,} validation images, "
        f"{len(data.vocabulary):,} words"
    )
    model = build_model(recipe, data.vocabulary).to(device)
    model.encoder.to(memory_format=torch.channels_last)
    best = -1.0
    for number, stage in enumerate(recipe.stages):
        model.encoder.fine_tune(from_stage=stage.fine_tune_from)
        run = _StageRun(recipe, stage, number, data=data, model=model, out=out, log=log)
        for epoch in range(stage.epochs):
            scores = run.epoch(epoch)
            checkpoint = Checkpoint(
                model=model,
                vocabulary=data.vocabulary,
                transform=recipe.transform,
                name=recipe.name,
                metrics=scores,
            )
            checkpoint.save(out / "last.safetensors")
            if scores["BLEU-4"] > best:
                best = scores["BLEU-4"]
                checkpoint.save(out / "best.safetensors")
    return out / "best.safetensors"


class _StageRun:
    """One stage of a run: its batches, optimizer and schedule."""

    def __init__(
        self,
        recipe: Recipe,
        stage: Stage,
        number: int,
        *,
        data: Data,
        model: CaptionModel,
        out: Path,
        log: Callable[[dict[str, Any]], None],
    ) -> None:
        self.recipe, self.stage, self.number = recipe, stage, number
        self.data, self.model, self.log = data, model, log
        self.transform = Transform(recipe.transform)
        self.device = next(model.parameters()).device
        enabled = recipe.precision == "bf16"
        self.autocast = torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=enabled)
        self.captions = encode_captions(data.train, data.vocabulary)
        shapes = [(len(each), max(map(len, each))) for each in self.captions]
        self.seed = recipe.seed + 1000 * number
        self.sampler = BucketSampler(shapes, batch_size=stage.batch_size, seed=self.seed)
        self.dataset = self._dataset(out)
        self.optimizer = build_optimizer(model, recipe, stage)
        steps = stage.epochs * len(self.sampler)
        rate = partial(warmup_cosine, steps=steps, warmup=min(stage.warmup, steps // 2))
        self.scheduler = LambdaLR(self.optimizer, rate)

    def _dataset(self, out: Path) -> ImageDataset | _GridDataset:
        stage = self.stage
        if stage.fine_tune_from is not None:
            augmentation = Augmentation(flip=stage.flip, crop=stage.crop)
            return ImageDataset(
                self.data.train, self.transform, augmentation=augmentation, seed=self.seed
            )
        self.model.eval()
        grids = CachedGrids.compute(
            self.model,
            self.data.train,
            self.transform,
            folder=out / "cache",
            device=self.device,
            autocast=self.autocast,
            workers=self.recipe.data.workers,
        )
        return _GridDataset(grids, len(self.data.train))

    def epoch(self, epoch: int) -> dict[str, float]:
        """Train once through the data, validate, log; return the validation scores."""
        self.sampler.epoch = self.dataset.epoch = epoch
        place = {"stage": self.number, "epoch": epoch}
        loader = DataLoader(
            self.dataset,
            batch_sampler=self.sampler,
            num_workers=self.recipe.data.workers,
            collate_fn=self._collate,
            generator=torch.Generator().manual_seed(self.seed + epoch),
        )
        result = train_one_epoch(
            self.model,
            loader,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            recipe=self.recipe,
            stage=self.stage,
            transform=self.transform,
            autocast=self.autocast,
            description=f"stage {self.number} epoch {epoch}",
            report=lambda values: self.log({"event": "step", **place, **values}),
        )
        scores = self._validate()
        self.log({"event": "epoch", **place, **asdict(result), "validation": scores})
        _say(
            f"stage {self.number} epoch {epoch}: cross-entropy {result.cross_entropy:.3f}, "
            f"BLEU-1 {scores['BLEU-1']:.1f}, BLEU-4 {scores['BLEU-4']:.1f}, "
            f"exact {scores['exact']:.1f} %, {result.images / result.seconds:.0f} images/s"
        )
        return scores

    def _collate(self, items: Sequence[Item]) -> Batch:
        images = torch.stack([item.image for item in items])
        captions = [self.captions[item.position] for item in items]
        return collate(images, captions, maximum_length=self.recipe.data.maximum_length)

    def _validate(self) -> dict[str, float]:
        captioned = caption_split(
            self.model,
            self.data.validation,
            transform=self.transform,
            vocabulary=self.data.vocabulary,
            config=GenerationConfig(beam_size=self.recipe.validation_beam),
            autocast=self.autocast,
            workers=self.recipe.data.workers,
        )
        return score_split(captioned)


class _GridDataset(Dataset[Item]):
    """Cached grids, one an image."""

    def __init__(self, grids: CachedGrids, count: int) -> None:
        self.grids = grids
        self.count = count
        self.epoch = 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Item:
        return Item(self._grid(index), index)

    def _grid(self, index: int) -> Tensor:
        return self.grids[[index]][0]


def _open_log(recipe: Recipe, out: Path) -> Callable[[dict[str, Any]], None]:
    """Make the output folder and return a function that appends one record a line."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "recipe.json").write_text(json.dumps(asdict(recipe), indent=2) + "\n")
        (out / "log.jsonl").write_text("")
    except OSError as error:
        raise OutputError(f"{out} cannot be written: {error.strerror}") from error
    started = time.time()

    def log(record: dict[str, Any]) -> None:
        with (out / "log.jsonl").open("a") as file:
            file.write(json.dumps({"seconds": round(time.time() - started, 1), **record}) + "\n")

    return log


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
