r"""A training run from top to bottom: `captioner train RECIPE --out DIR`.

    captioner train coco --data.root ~/coco --out runs/coco
    torchrun --nproc-per-node 8 -m captioner train coco --data.root ~/coco --out runs/coco
    torchrun --nnodes 2 --node-rank 0 --master-addr node0 --master-port 29500 --nproc-per-node 8 \
        -m captioner train coco --data.root /shared/coco --out /shared/runs/coco

`Run.train` and `Run._train_epoch` are the loop of stages, epochs and steps. A step is in step.py,
what it minimises in losses/, all that a run needs to go on after an interruption in state.py, what
is logged and said in log.py.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from captioner.checkpoint import Checkpoint
from captioner.device import best_dtype, find_dtype
from captioner.errors import DataError, GenerationError
from captioner.vision.transform import Transform, TransformConfig
from captioner_training.data.batches import StageBatches, stage_sampler
from captioner_training.data.dataset import Augmentation, ImageDataset, ItemDataset
from captioner_training.data.grids import CachedGrids, GridDataset
from captioner_training.data.images import CaptionedImage
from captioner_training.data.reading import read_corpus
from captioner_training.distributed import Processes
from captioner_training.evaluation.captioned import Captioned
from captioner_training.evaluation.split import validate
from captioner_training.initialization import build_model, load_encoder, load_origin
from captioner_training.interrupts import Interrupts
from captioner_training.lock import locked
from captioner_training.log import Clock, Log
from captioner_training.losses.table import stage_objectives
from captioner_training.recipe import Recipe, Stage
from captioner_training.state import RunFolder, TrainState, diverged
from captioner_training.step import TrainStep, autocast_of

__all__ = ["train"]


def train(recipe: Recipe, *, out: Path, processes: Processes, shared: Path | None = None) -> Path:
    """Run a recipe, or go on with it, and return the path of the best checkpoint.

    Writes into `out`: best.safetensors (highest CIDEr on validation, of equal ones the lowest
    cross-entropy) and last.safetensors, log.jsonl, recipe.json, finished.json at the end,
    TensorBoard's files where wanted; and until the end state/ (from which the same call goes on,
    after whatever end) and cache/ (grids). Several runs may have a folder `shared` instead for
    grids and drawn scenes; it stays.

    Raises:
        ConfigError: the recipe cannot work, or `out` has files that are not of its run.
        CaptionerError: data, weights or output are not as the recipe needs them.
        KeyboardInterrupt: after Ctrl-C or SIGTERM; a state is saved first.

    """
    with ExitStack() as stack:
        lock = locked(out / "lock", verb="train", what=out)
        processes.main_alone(lambda: stack.enter_context(lock))
        fast = processes.broadcast(best_dtype(processes.device)[0] is torch.bfloat16)
        run = processes.main_first(
            lambda: Run(recipe, out=out, shared=shared or out, processes=processes, fast=fast)
        )
        if not run.folder.finished:
            with _loaders_watched():
                run.train()
        elif processes.main:
            print(
                f"this run is finished: {run.folder.best} is its best checkpoint", file=sys.stderr
            )
        return run.folder.best


class _Stopped(KeyboardInterrupt):
    """Somebody asked for the end of the run, and all processes know of it at the same step."""


class Run:
    """A run that is under way: its data, model and state.

    Args:
        recipe: of the run.
        out: its folder.
        shared: where grids and drawn scenes are, which other runs may use too.
        processes: of the run. The main one begins first; others then find its files.
        fast: whether the hardware of the main one has bfloat16, for a precision that is `auto`.

    Raises:
        CaptionerError: what would be refused hours later is refused now.

    """

    log: Log

    def __init__(
        self, recipe: Recipe, *, out: Path, shared: Path, processes: Processes, fast: bool
    ) -> None:
        self.processes, self.shared = processes, shared
        self.folder = RunFolder(recipe, out)
        if self.folder.recipe.precision == "auto":
            precision: Literal["bfloat16", "float32"] = "bfloat16" if fast else "float32"
            self.folder.recipe = replace(self.folder.recipe, precision=precision)
        self.recipe = recipe = self.folder.recipe
        self.autocast = autocast_of(recipe, processes.device)
        self.interrupts = Interrupts()
        torch.manual_seed(recipe.seed)
        encoder = load_encoder(recipe)
        self.origin = load_origin(recipe)
        known = self.origin.vocabulary if self.origin else None
        self.corpus = read_corpus(recipe, out=shared, known=known)
        self._digest = self.corpus.digest()
        self._before = self.folder.load(digest=self._digest)
        if self.folder.finished:
            return
        for number in range(len(recipe.stages)):
            stage_sampler(recipe, number, self.corpus.train_numbers, processes)
        self._objectives = [stage_objectives(recipe, one, self.corpus) for one in recipe.stages]
        model = build_model(recipe, self.corpus.vocabulary, encoder=encoder, origin=self.origin)
        model.to(processes.device).requires_grad_(True)
        model.encoder.to(memory_format=torch.channels_last)
        torch.backends.cudnn.benchmark = True  # the images of a stage have one size
        if recipe.compile:
            model.encoder.compile()
        torch.manual_seed(recipe.seed + 7919 * processes.rank)  # each drops out other units
        self.state = TrainState(model, processes=processes)
        if self._before is not None:
            self.state.load_state_dict(self._before)
        self._saved = time.monotonic()

    def train(self) -> None:
        """Go through what is left of the stages and epochs."""
        if self.processes.main:
            self.folder.begin()
        self.log = Log(self.recipe, self.folder.out, processes=self.processes, state=self.state)
        with self.log, self.interrupts.heard():
            try:
                self._say_where_it_begins()
                while self.state.progress.stage < len(self.recipe.stages):
                    self._train_stage(self.recipe.stages[self.state.progress.stage])
                self._finish()
            except KeyboardInterrupt as stop:
                if isinstance(stop, _Stopped):
                    self._save()
                self._say_where_it_stopped()
                raise

    def _train_stage(self, stage: Stage) -> None:
        self._stop_if_asked()
        batches, grids = self._batches(stage)
        self.state.begin_stage(self.recipe, stage, steps=batches.steps)
        step = TrainStep(
            self.state,
            self.recipe,
            stage,
            objectives=self._objectives[self.state.progress.stage],
            vocabulary=self.corpus.vocabulary,
            transform=Transform(self.recipe.transform),
            processes=self.processes,
        )
        while not self.state.stage_is_over(stage):
            with self.interrupts.deferred():
                self._train_epoch(stage, batches, step, grids)
        self.state.end_stage()
        self._save()

    def _train_epoch(
        self, stage: Stage, batches: StageBatches, step: TrainStep, grids: CachedGrids | None
    ) -> None:
        """Take the steps that are left of an epoch, and score the model."""
        state, progress = self.state, self.state.progress
        clock = Clock(processes=self.processes.world)
        left = batches.epoch(progress.epoch, skip=progress.step, most=state.steps - progress.taken)
        with self.log.epoch_bar(stage):
            for parts in clock.waited(left):
                values = step(parts)
                state.count_step(values)
                self.log.step(values, clock)
                self._save_if_due(clock)
        clock.stop()
        means = state.means().tolist()
        self.log.refuse_diverged(means)
        with state.averaged():
            scores, captioned = self._validate(grids)
            best = state.count_epoch(scores["CIDEr"], scores["cross_entropy"])
            self._keep_checkpoint(scores, best=best)
        self.log.epoch(means, scores, captioned, clock=clock, stage=stage)
        if not state.stage_is_over(stage):
            self._stop_if_asked()
            self._save()

    def _batches(self, stage: Stage) -> tuple[StageBatches, CachedGrids | None]:
        """Thaw the encoder or freeze it; give the stage's batches, and grids of the validation."""
        recipe, number, corpus = self.recipe, self.state.progress.stage, self.corpus
        self.state.model.encoder.fine_tune(from_stage=stage.fine_tune_from)
        dataset: ItemDataset
        grids = None
        if stage.fine_tune_from is None:
            dataset = GridDataset(self._encode(corpus.train))
            grids = self._encode(corpus.validation)
        else:
            dataset = ImageDataset(
                corpus.train,
                Transform(_sized(recipe.transform, stage.size)),
                augmentation=Augmentation(flip=stage.flip, crop=stage.crop),
                seed=recipe.seed + 1000 * number,
            )
        batches = StageBatches(
            recipe, number, corpus=corpus, dataset=dataset, processes=self.processes
        )
        return batches, grids

    def _encode(self, images: list[CaptionedImage]) -> CachedGrids:
        return CachedGrids.compute(
            self.state.model.encoder,
            images,
            Transform(self.recipe.transform),
            folder=self.shared / "cache",
            processes=self.processes,
            dtype=find_dtype(self.recipe.precision, self.processes.device),
            workers=self.recipe.data.workers,
        )

    def _validate(self, grids: CachedGrids | None) -> tuple[dict[str, float], list[Captioned]]:
        """Score the model, which has the averaged weights, on the validation split."""
        drawn = self.recipe.data.scenes is not None
        try:
            scores, captioned = validate(
                self.state.model,
                self.corpus.validation,
                self.recipe,
                vocabulary=self.corpus.vocabulary,
                autocast=self.autocast,
                processes=self.processes,
                boxes=self.shared / "scenes" / "boxes_val.json" if drawn else None,
                grids=grids,
                together=self._stop_if_asked,
            )
        except GenerationError as error:  # the last step alone may have made the weights useless
            raise diverged(self.state.progress.total) from error
        if not math.isfinite(scores["cross_entropy"]):
            raise diverged(self.state.progress.total)
        return scores, captioned

    def _keep_checkpoint(self, scores: dict[str, float], *, best: bool) -> None:
        """Write the checkpoint of the epoch; the model has the averaged weights."""
        if not self.processes.main:
            return
        checkpoint = Checkpoint(
            model=self.state.model,
            vocabulary=self.corpus.vocabulary,
            transform=self.recipe.transform,
            name=self.recipe.name,
            metrics=scores,
            generation=self.recipe.generation,
        )
        checkpoint.save(self.folder.last)
        if best:
            checkpoint.save(self.folder.best)

    def _score_origin(self, origin: Checkpoint) -> None:
        """Score the model that the run goes on from: until an epoch is better, it is the best."""
        origin.model.to(self.processes.device)
        scores, _ = validate(
            origin.model,
            self.corpus.validation,
            replace(self.recipe, encoder=origin.model.config.encoder, transform=origin.transform),
            vocabulary=origin.vocabulary,
            autocast=self.autocast,
            processes=self.processes,
        )
        origin.model.to("cpu")  # a GPU has better use for its memory
        progress = self.state.progress
        progress.untouched = scores["CIDEr"]
        progress.best = (scores["CIDEr"], -scores["cross_entropy"])
        if self.processes.main:
            origin.save(self.folder.best)
        self.log.origin(scores)

    def _save_if_due(self, clock: Clock) -> None:
        """Save a state where it is time, and stop where somebody asked for it."""
        every, together = self.recipe.save_every_steps, self.processes.world > 1
        due = every is not None and self.state.progress.total % every == 0
        # What one process hears or reads off its clock counts for all, where they meet anyway.
        if not together or self.log.is_due():
            self._stop_if_asked()
            overdue = time.monotonic() - self._saved > 60 * self.recipe.save_every_minutes
            due = self.processes.broadcast(overdue) or due
        if due:
            with clock.paused():
                self._save()

    def _stop_if_asked(self) -> None:
        """Stop where somebody asked for it; every process comes here at the same time."""
        if any(self.processes.gather(self.interrupts.asked)):
            raise _Stopped

    def _save(self) -> None:
        """Save the state as it is between two steps."""
        self.state.progress.log_bytes = self.log.sync()
        state = self.state.state_dict()
        if self.processes.main:
            self.folder.save(state, digest=self._digest)
        self.processes.wait()
        self._saved = time.monotonic()

    def _finish(self) -> None:
        """Note that the run is over, so that starting it again says so."""
        self.log.finished(best=self.folder.best, last=self.folder.last)
        self.state.progress.log_bytes = self.log.sync()
        if self.processes.main:
            self.folder.finish(self.state.progress, digest=self._digest)

    def _say_where_it_begins(self) -> None:
        recipe, progress, say = self.recipe, self.state.progress, self.log.say
        for line in self.corpus.described(recipe.data):
            say(line)
        fast, why = best_dtype(self.processes.device)
        is_fast = find_dtype(recipe.precision, self.processes.device) is fast
        though = ":" if is_fast else ", as this run is set to, though"
        say(f"computing in {recipe.precision}{though} {why}")
        for note in dict.fromkeys(one.note for each in self._objectives for one in each):
            if note:
                say(note)
        if self.origin is not None:
            known = len(self.origin.vocabulary.ordinary_words)
            added = len(self.corpus.vocabulary.ordinary_words) - known
            say(f"{known:,} words are those of the model, {added:,} new")
            if (styles := self.origin.vocabulary.styles) and not self.corpus.vocabulary.styles:
                say(f"its styles, {', '.join(styles)}, are given up: data.styles would keep them")
        before, self._before = self._before, None  # as large as the run itself
        if before is not None:
            say(
                f"going on after step {progress.total:,} (stage {progress.stage + 1}, epoch "
                f"{progress.epoch + 1})"
            )
            if before["conditions"] != self.processes.conditions:
                say(
                    f"note: the run had {before['conditions']} before and goes on with "
                    f"{self.processes.conditions}; the numbers will differ in their last digits "
                    "from those of an uninterrupted run"
                )
        elif self.origin is not None:
            self._score_origin(self.origin)

    def _say_where_it_stopped(self) -> None:
        if states := self.folder.states():
            self.log.say(
                f"stopped after step {self.state.progress.total:,}: the same command goes on from "
                f"{states[0]}"
            )
        else:
            self.log.say("stopped: the same command begins again, with the grids that are done")


def _sized(transform: TransformConfig, size: int | None) -> TransformConfig:
    """Frame photos alike, in squares of so many pixels a side; None: as they are."""
    if size is None:
        return transform
    resize = transform.resize and max(size, round(transform.resize * size / transform.size))
    return replace(transform, size=size, resize=resize)


@contextmanager
def _loaders_watched() -> Iterator[None]:
    """Say in a sentence what torch raises, wherever the run is, when a loader's process dies."""
    try:
        yield
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker"):
            raise
        raise DataError(
            "a process that loads images was ended by the system, most likely for want of memory: "
            "lower --data.workers, and start the same command again"
        ) from error
