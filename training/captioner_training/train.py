r"""A training run from top to bottom: `captioner train RECIPE --out DIR`.

    captioner train coco --data.root ~/coco --out runs/coco
    torchrun --nproc-per-node 8 -m captioner train coco --data.root ~/coco --out runs/coco
    torchrun --nnodes 2 --node-rank 0 --master-addr node0 --master-port 29500 --nproc-per-node 8 \
        -m captioner train coco --data.root /shared/coco --out /shared/runs/coco

`train` begins a run, `Run` is its loop of stages, epochs and steps. A step is in step.py, what it
minimises in losses/, all that a run needs to go on after an interruption in state.py, what is
logged and said in log.py.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import torch

from captioner.checkpoint import Checkpoint
from captioner.device import best_dtype, find_dtype
from captioner.errors import DataError, DeviceError, GenerationError
from captioner.vision.transform import Transform, TransformConfig
from captioner_training.data.batches import StageBatches, stage_sampler
from captioner_training.data.captioned import Captioned
from captioner_training.data.corpus import Corpus, new_word_nats
from captioner_training.data.dataset import Augmentation, ImageDataset, ItemDataset
from captioner_training.data.grids import CachedGrids, GridDataset
from captioner_training.data.images import CaptionedImage
from captioner_training.data.reading import read_corpus
from captioner_training.distributed import Processes
from captioner_training.initialization import build_model, load_encoder, load_origin
from captioner_training.interrupts import Interrupts
from captioner_training.lock import locked
from captioner_training.log import Clock, Log
from captioner_training.losses.objective import Objective
from captioner_training.losses.table import stage_objectives
from captioner_training.recipe import DataConfig, Recipe
from captioner_training.state import RunFolder, StageState, TrainState, diverged
from captioner_training.step import TrainStep, autocast_of

__all__ = ["Validate", "train"]


class Validate(Protocol):
    """Scores a checkpoint on the validation split; see evaluation.split.validate."""

    def __call__(
        self,
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
        """Return the scores, at least CIDEr and cross_entropy, and the captions."""


def train(
    recipe: Recipe,
    *,
    out: Path,
    processes: Processes,
    validate: Validate,
    shared: Path | None = None,
) -> Path:
    """Run a recipe, or go on with it, and return the path of the best checkpoint.

    Writes into `out`: best.safetensors (highest CIDEr on validation, of equal ones the lowest
    cross-entropy) and last.safetensors, log.jsonl, recipe.json, finished.json at the end; and until
    the end state/ (from which the same call goes on, after whatever end) and cache/ (grids).
    Several runs may have a folder `shared` instead for grids and drawn scenes; it stays.

    Raises:
        ConfigError: the recipe cannot work, or `out` has files that are not of its run.
        CaptionerError: data, weights or output are not as the recipe needs them.
        KeyboardInterrupt: after Ctrl-C or SIGTERM; a state is saved first.
    """
    with ExitStack() as stack:
        lock = locked(out / "lock", verb="train", what=out)
        processes.main_alone(lambda: stack.enter_context(lock))
        fast = processes.broadcast(best_dtype(processes.device)[0] is torch.bfloat16)
        # What would be refused hours later is refused here. The others find the main one's files.
        run = processes.main_first(
            lambda: _begin(
                recipe,
                out=out,
                shared=shared or out,
                processes=processes,
                validate=validate,
                fast=fast,
            )
        )
        if run is not None:
            with _explained():
                run.train()
        elif processes.main:
            best = out / "best.safetensors"
            print(f"this run is finished: {best} is its best checkpoint", file=sys.stderr)
    return out / "best.safetensors"


def _begin(
    recipe: Recipe, *, out: Path, shared: Path, processes: Processes, validate: Validate, fast: bool
) -> Run | None:
    """Read and build all that a run needs; None where it is finished already."""
    folder = RunFolder(recipe, out, fast=fast)
    recipe = folder.recipe  # its precision is settled
    torch.manual_seed(recipe.seed)
    encoder, origin = load_encoder(recipe), load_origin(recipe)
    corpus = read_corpus(recipe, out=shared, known=origin.vocabulary if origin else None)
    digest = corpus.digest()
    saved = folder.load(digest=digest)
    if folder.finished:
        return None
    for number in range(len(recipe.stages)):
        stage_sampler(recipe, number, corpus, processes)
    objectives = [stage_objectives(recipe, stage, corpus) for stage in recipe.stages]

    model = build_model(recipe, corpus.vocabulary, encoder=encoder, origin=origin)
    if processes.main:
        images = len(corpus.train) + len(corpus.validation)
        folder.check_room(model, images=images, shared=shared)
    model.to(processes.device).requires_grad_(True)
    model.encoder.to(memory_format=torch.channels_last)
    torch.backends.cudnn.benchmark = True  # the images of a stage have one size
    if processes.device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32 for what autocast leaves in float32
    if recipe.compile:
        model.encoder.compile()
    torch.manual_seed(recipe.seed + 7919 * processes.rank)  # each drops out other units
    state = TrainState(model, processes=processes)
    if saved is not None:
        state.load_state_dict(saved)

    if processes.main:
        folder.begin()
    log = Log(recipe, out, processes=processes, progress=state.progress)
    log.begins(corpus, origin, objectives, state)
    return Run(
        recipe=recipe, folder=folder, shared=shared, processes=processes, corpus=corpus,
        digest=digest, origin=origin, objectives=objectives, state=state, log=log,
        validate=validate,
    )  # fmt: skip


class _Stopped(KeyboardInterrupt):
    """Somebody asked for the end of the run, and all processes know of it at the same step."""


@dataclass(kw_only=True)
class Run:
    """A run that is under way: its data, model and state.

    `shared` is where grids and drawn scenes are, `digest` of the data, `origin` the checkpoint that
    the model goes on from; `objectives` are those of each stage, by name.
    """

    recipe: Recipe
    folder: RunFolder
    shared: Path
    processes: Processes
    corpus: Corpus
    digest: str
    origin: Checkpoint | None
    objectives: Sequence[Mapping[str, Objective]]
    state: TrainState
    log: Log
    validate: Validate
    interrupts: Interrupts = field(default_factory=Interrupts)
    saved_at: float = field(default_factory=time.monotonic)

    def train(self) -> None:
        """Go through what is left of the stages and epochs."""
        progress = self.state.progress
        with self.log, self.interrupts.heard():
            try:
                if self.origin is not None and progress.untouched is None:
                    self._score_origin(self.origin)
                while progress.stage < len(self.recipe.stages):
                    self._train_stage()
                self.log.finished()
                progress.log_bytes = self.log.sync()
                if self.processes.main:
                    self.folder.finish(progress, digest=self.digest)
            except KeyboardInterrupt as stop:
                if isinstance(stop, _Stopped):
                    self._save()
                self.log.stopped(self.folder.states())
                raise

    def _train_stage(self) -> None:
        self._stop_if_asked()
        batches, grids = self._batches()
        stage = self.state.begin_stage(self.recipe, steps=batches.steps)
        step = TrainStep(
            stage,
            self.recipe,
            objectives=self.objectives[self.state.progress.stage],
            vocabulary=self.corpus.vocabulary,
            processes=self.processes,
        )
        while not stage.is_over:
            with self.interrupts.deferred():
                self._train_epoch(stage, batches, step, grids)
        self.state.end_stage()
        self._save()

    def _train_epoch(
        self, stage: StageState, batches: StageBatches, step: TrainStep, grids: CachedGrids | None
    ) -> None:
        """Take the steps that are left of an epoch, and score the model."""
        progress = stage.progress
        clock = Clock(processes=self.processes.world)
        left = batches.epoch(progress.epoch, skip=progress.step, most=stage.steps - progress.taken)
        with self.log.epoch_bar(stage):
            for parts in clock.waited(left):
                values = step(parts)
                stage.count_step(values)
                self.log.step(values, stage, clock)
                self._save_if_due(stage, clock)
        clock.stop()
        sums = self.processes.sum_named(stage.sums)
        means = {name: value / max(1, progress.step) for name, value in sums.items()}
        self.log.refuse_diverged(means)
        with stage.average.applied():
            scores, captioned = self._validate(grids)
            best = stage.count_epoch(scores["CIDEr"], scores["cross_entropy"])
            self._keep_checkpoint(scores, best=best)
        self.log.epoch(means, scores, captioned, stage=stage, clock=clock)
        if not stage.is_over:
            self._stop_if_asked()
            self._save()

    def _batches(self) -> tuple[StageBatches, CachedGrids | None]:
        """Thaw the encoder or freeze it; give the stage's batches, and grids of the validation."""
        recipe, number, corpus = self.recipe, self.state.progress.stage, self.corpus
        stage = recipe.stages[number]
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
            scores, captioned = self.validate(
                self._checkpoint(),
                self.corpus.validation,
                self.recipe.data,
                autocast=autocast_of(self.recipe, self.processes.device),
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
        checkpoint = replace(self._checkpoint(), metrics=scores)
        checkpoint.save(self.folder.last)
        if best:
            checkpoint.save(self.folder.best)
        if self.recipe.keep_epochs:
            progress = self.state.progress
            checkpoint.save(self.folder.epoch(progress.stage + 1, progress.epoch))

    def _checkpoint(self) -> Checkpoint:
        """Give the model, with the weights that it has now, as a checkpoint of the recipe."""
        return Checkpoint(
            model=self.state.model,
            vocabulary=self.corpus.vocabulary,
            transform=self.recipe.transform,
            name=self.recipe.name,
            generation=self.recipe.generation,
        )

    def _score_origin(self, origin: Checkpoint) -> None:
        """Score the model that the run goes on from: until an epoch is better, it is the best."""
        origin.model.to(self.processes.device)
        scores, _ = self.validate(
            replace(origin, generation=self.recipe.generation),
            self.corpus.validation,
            self.recipe.data,
            autocast=autocast_of(self.recipe, self.processes.device),
            processes=self.processes,
        )
        origin.model.to("cpu")  # a GPU has better use for its memory
        scores["cross_entropy"] += new_word_nats(
            self.corpus.validation,
            self.corpus.vocabulary,
            origin.vocabulary,
            maximum_length=self.recipe.data.maximum_length,
        )
        progress = self.state.progress
        progress.untouched = scores["CIDEr"]
        progress.best = (scores["CIDEr"], -scores["cross_entropy"])
        if self.processes.main:
            origin.save(self.folder.best)
        self.log.origin(scores)
        self._save()

    def _save_if_due(self, stage: StageState, clock: Clock) -> None:
        """Save a state where it is time, and stop where somebody asked for it."""
        every = self.recipe.save_every_steps
        due = every is not None and stage.progress.total % every == 0
        # What one process hears or reads off its clock counts for all, where they meet anyway.
        if self.processes.world == 1 or self.log.is_due(stage):
            self._stop_if_asked()
            overdue = time.monotonic() - self.saved_at > 60 * self.recipe.save_every_minutes
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
            self.folder.save(state, digest=self.digest)
        self.processes.wait()
        self.saved_at = time.monotonic()


def _sized(transform: TransformConfig, size: int | None) -> TransformConfig:
    """Frame photos alike, in squares of so many pixels a side; None: as they are."""
    if size is None:
        return transform
    resize = transform.resize and max(size, round(transform.resize * size / transform.size))
    return replace(transform, size=size, resize=resize)


@contextmanager
def _explained() -> Iterator[None]:
    """Say in a sentence what torch raises for want of memory, wherever the run is."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise DeviceError(
            "the GPU has too little memory for the steps of this recipe: give its stages a smaller "
            "batch_size, or more parts by accumulate"
        ) from error
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker"):
            raise
        raise DataError(
            "a process that loads images was ended by the system, most likely for want of memory: "
            "lower --data.workers, and start the same command again"
        ) from error
