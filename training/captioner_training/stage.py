"""One stage of a run: its batches, its engine, and its epochs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NoReturn

from torch import Tensor
from tqdm import tqdm

from captioner.model import CaptionModel
from captioner.transforms import Transform
from captioner.vocabulary import PAD
from captioner_training.build import Data
from captioner_training.data.dataset import Augmentation, Batch, ImageDataset, encode_captions
from captioner_training.data.grids import CachedGrids
from captioner_training.data.loader import GridDataset, make_loader
from captioner_training.data.sampler import BucketSampler
from captioner_training.engine import Engine
from captioner_training.evaluation.validation import validate
from captioner_training.objectives.self_critical import SelfCriticalCaptions
from captioner_training.run import Run

__all__ = ["Clock", "StageRun"]


@dataclass
class Clock:
    """Where the time of an epoch goes, in this process, since it began or was taken up again."""

    started: float = field(default_factory=time.perf_counter)
    waiting: float = 0.0  # seconds for data
    images: int = 0
    captions: int = 0
    steps: int = 0

    def count(self, parts: Sequence[Batch], processes: int) -> None:
        """Take down a step; the other processes have done as much."""
        self.steps += 1
        self.images += processes * sum(len(part.tokens) for part in parts)
        # Every caption has a first word.
        self.captions += processes * sum(int((p.tokens[..., 1] != PAD).sum()) for p in parts)

    def timing(self) -> dict[str, float]:
        """Give seconds, rates a second, and the share of the time that data were waited for."""
        seconds = time.perf_counter() - self.started
        return {
            "seconds": round(seconds, 2),
            "images_per_second": round(self.images / seconds, 2),
            "captions_per_second": round(self.captions / seconds, 2),
            "waiting": round(self.waiting / seconds, 4),
        }


class StageRun:
    """A stage of a run.

    Args:
        run: what it is a part of.
        number: of the stage.
        data: of the run.
        model: with what the stage trains thawed.

    """

    def __init__(self, run: Run, number: int, *, data: Data, model: CaptionModel) -> None:
        self.run, self.number, self.data, self.model = run, number, data, model
        recipe, processes = run.recipe, run.processes
        self.stage = stage = recipe.stages[number]
        self.transform = Transform(recipe.transform)
        self.captions = encode_captions(data.train, data.vocabulary)
        # Drawn captions have a length of their own: batches alike in the data's captions would only
        # pull the model towards long ones at one step and short ones at the next.
        alike = stage.self_critical is None
        self.sampler = BucketSampler(
            [(len(each), max(map(len, each))) if alike else (0, 0) for each in self.captions],
            batch_size=stage.batch_size,
            seed=recipe.seed + 1000 * number,
            parts=stage.accumulate,
            rank=processes.rank,
            world=processes.world,
        )
        self.engine = Engine(
            model,
            recipe,
            stage,
            steps=stage.epochs * self.sampler.batches,
            transform=self.transform,
            processes=processes,
            self_critical=self._self_critical(),
        )
        self.dataset = self._dataset()
        self.clock = Clock()

    def _self_critical(self) -> SelfCriticalCaptions | None:
        if self.stage.self_critical is None:
            return None
        return SelfCriticalCaptions(
            self.stage.self_critical,
            vocabulary=self.data.vocabulary,
            references=[image.words for image in self.data.train],
            maximum_length=self.run.recipe.data.maximum_length,
        )

    def _dataset(self) -> ImageDataset | GridDataset:
        stage, recipe = self.stage, self.run.recipe
        if stage.fine_tune_from is not None:
            augmentation = Augmentation(flip=stage.flip, crop=stage.crop)
            return ImageDataset(
                self.data.train,
                self.transform,
                augmentation=augmentation,
                seed=self.sampler.seed,
            )
        self.model.eval()
        grids = CachedGrids.compute(
            self.model,
            self.data.train,
            self.transform,
            folder=self.run.out / "cache",
            processes=self.run.processes,
            autocast=self.engine.autocast,
            workers=recipe.data.workers,
        )
        return GridDataset(grids, len(self.data.train))

    def train_epoch(self) -> dict[str, float]:
        """Take the steps that are left of the epoch; return what the whole epoch was like."""
        progress, engine = self.run.progress, self.engine
        self.sampler.epoch, self.sampler.skip = progress.epoch, progress.step
        self.clock = Clock()
        with self._progress_bar() as bar:
            for parts in self._batches():
                if self.run.done:
                    break
                values = engine.step(parts)
                engine.sums += values
                progress.step, progress.total = progress.step + 1, progress.total + 1
                self.clock.count(parts, self.run.processes.world)
                bar.update()
                if progress.total % self.run.recipe.log_every == 0:
                    self._log_step(values, bar)
                self._save_if_due()
        mean = self.run.processes.sum(engine.sums.clone()) / max(1, progress.step)
        engine.sums.zero_()
        return self._named(mean)

    def _batches(self) -> Iterator[list[Batch]]:
        """Give the parts of each batch, and take down how long they were waited for."""
        loader = iter(
            make_loader(
                self.dataset,
                self.sampler,
                self.captions,
                maximum_length=self.run.recipe.data.maximum_length,
                workers=self.run.recipe.data.workers,
                device=self.run.processes.device,
            )
        )
        while True:
            asked = time.perf_counter()
            parts = list(islice(loader, self.stage.accumulate))
            self.clock.waiting += time.perf_counter() - asked
            if not parts:
                return
            yield parts

    def _progress_bar(self) -> tqdm[NoReturn]:
        stages = len(self.run.recipe.stages)
        return tqdm(
            desc=f"stage {self.number + 1}/{stages}",
            total=self.engine.steps,
            initial=self.engine.taken,
            unit="step",
            disable=None if self.run.processes.main else True,  # None: where no terminal is
        )

    def _named(self, values: Tensor) -> dict[str, float]:
        loss, cross_entropy, reward, norm = values.tolist()
        named = {"loss": loss, "cross_entropy": cross_entropy, "gradient_norm": norm}
        return named if self.stage.self_critical is None else {**named, "reward": reward}

    def _place(self) -> dict[str, int]:
        progress = self.run.progress
        return {"stage": self.number, "epoch": progress.epoch, "step": progress.total}

    def _log_step(self, values: Tensor, bar: tqdm[NoReturn]) -> None:
        named = self._named(self.run.processes.sum(values.clone()))
        named["learning_rate"] = float(self.engine.scheduler.get_last_lr()[0])
        timing = self.clock.timing()
        self.run.log({"event": "step", **self._place(), **named, "timing": timing})
        bar.set_postfix(loss=f"{named['loss']:.3f}", refresh=False)
        if self.run.board:
            rates = {**named, "images_per_second": timing["images_per_second"]}
            self.run.board.curves("train", rates, step=self.run.progress.total)

    def _save_if_due(self) -> None:
        recipe, total = self.run.recipe, self.run.progress.total
        due = recipe.save_every_steps is not None and total % recipe.save_every_steps == 0
        if not due and total % recipe.log_every == 0:  # the clock of one process counts for all
            due = self.run.processes.broadcast(self.run.overdue())
        if due:
            self.run.save(self.model, self.engine)

    def validate(self) -> dict[str, float]:
        """Score the model on the validation split; show some of it in TensorBoard."""
        boxes = None
        if self.run.recipe.data.scenes is not None:
            boxes = self.run.out / "scenes" / "boxes_val.json"
        scores, captioned = validate(
            self.model,
            self.data.validation,
            self.run.recipe,
            vocabulary=self.data.vocabulary,
            transform=self.transform,
            autocast=self.engine.autocast,
            processes=self.run.processes,
            boxes=boxes,
        )
        if self.run.board:
            step = self.run.progress.total
            self.run.board.curves("validation", scores, step=step)
            self.run.board.photos(captioned, self.transform, step=step)
        return scores

    def report(self, result: dict[str, float], scores: dict[str, float]) -> None:
        """Log an epoch and say in a line how it went."""
        timing = self.clock.timing()
        self.run.log(
            {"event": "epoch", **self._place(), **result, "validation": scores, "timing": timing}
        )
        left = (
            timing["seconds"] / max(1, self.clock.steps) * (self.engine.steps - self.engine.taken)
        )
        learned = "reward" if "reward" in result else "cross_entropy"
        extra = f"exact {scores['exact']:.1f} %, " if "pointing" in scores else ""
        self.run.say(
            f"stage {self.number + 1}/{len(self.run.recipe.stages)} "
            f"epoch {self.run.progress.epoch + 1}/{self.stage.epochs}: "
            f"{learned.replace('_', '-')} {result[learned]:.3f}, CIDEr {scores['CIDEr']:.1f}, "
            f"BLEU-4 {scores['BLEU-4']:.1f}, {extra}{timing['images_per_second']:.0f} images/s, "
            f"{left / 60:.0f} min left in this stage"
        )
