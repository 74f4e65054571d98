r"""A training run from top to bottom: `captioner train RECIPE --out DIR`.

    captioner train coco --data.root ~/coco --out runs/coco
    torchrun --nproc-per-node 8 -m captioner train coco --data.root ~/coco --out runs/coco
    torchrun --nnodes 2 --node-rank 0 --master-addr node0 --master-port 29500 --nproc-per-node 8 \
        -m captioner train coco --data.root /shared/coco --out /shared/runs/coco

`train` starts or resumes a run; `Run` is its loop of stages, epochs and steps. A step is in
step.py, its losses in losses/, the state to resume from in state.py, the run's folder in
run_folder.py, log and messages in log.py.
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
from captioner.device import best_dtype
from captioner.errors import DataError, DeviceError, GenerationError
from captioner.vision.transform import Transform, TransformConfig
from captioner_training.data.batches import ImageSource, StageBatches, stage_sampler
from captioner_training.data.captioned import Captioned
from captioner_training.data.captions import PADDED_LENGTHS, CaptionTable
from captioner_training.data.corpus import Corpus, new_word_nats
from captioner_training.data.dataset import Augmentation, ImageDataset
from captioner_training.data.grids import CachedGrids
from captioner_training.data.images import CaptionedImage
from captioner_training.data.loader import PixelSource
from captioner_training.data.reading import read_corpus
from captioner_training.data.squares import SquareSource
from captioner_training.distributed import Processes
from captioner_training.initialization import build_model, load_encoder, load_origin
from captioner_training.interrupts import Interrupts
from captioner_training.lock import locked
from captioner_training.log import Clock, Log
from captioner_training.losses.objective import Objective
from captioner_training.losses.table import stage_objectives
from captioner_training.recipe import ANY_STYLE, DataConfig, Recipe
from captioner_training.run_folder import RunFolder, plain
from captioner_training.state import StageState, TrainState, diverged
from captioner_training.step import TrainStep, autocast_of, dtype_of, is_compiled
from captioner_training.trackers import Tracker

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
    tracker: Tracker | None = None,
) -> Path:
    """Run a recipe, or resume its run, and return the path of the best checkpoint.

    Writes into `out`: best.safetensors (highest CIDEr on validation; of equal ones the lowest
    cross-entropy), last.safetensors, log.jsonl, recipe.json, and finished.json at the end. Until
    then also state/, from which the same call resumes after any interruption, and cache/ (grids).

    Args:
        recipe: what to train.
        out: folder of the run.
        processes: that train together.
        validate: scores the model after each epoch.
        shared: folder for grids and drawn scenes in place of `out`; several runs may share it.
        tracker: receives the scalars of the log.

    Raises:
        ConfigError: the recipe cannot work, or `out` has files of something else.
        CaptionerError: data, weights or output do not fit the recipe.
        KeyboardInterrupt: after Ctrl-C or SIGTERM; a state is saved first.
    """
    with ExitStack() as stack:
        lock = locked(out / "lock", verb="train", what=out)
        processes.main_alone(lambda: stack.enter_context(lock))
        fast = processes.broadcast(best_dtype(processes.device)[0] is torch.bfloat16)
        # Errors of the whole run are raised now, not hours later. Other processes read the files
        # that the main one has written.
        run = processes.main_first(
            lambda: Run.begin(
                RunFolder(recipe, out, fast=fast),
                shared=shared or out,
                processes=processes,
                validate=validate,
                tracker=tracker,
            )
        )
        if run is not None:
            with _explained():
                run.train()
        elif processes.main:
            best = out / "best.safetensors"
            print(f"this run is finished: {best} is its best checkpoint", file=sys.stderr)
    return out / "best.safetensors"


class _Stopped(KeyboardInterrupt):
    """Raised on all ranks at the same step after SIGINT or SIGTERM."""


@dataclass(kw_only=True)
class Run:
    """A run in progress: its data, model and state.

    Attributes:
        shared: folder of grids and drawn scenes.
        digest: of the data.
        captions: of the training images, on the device.
        origin: the checkpoint that the model started from.
        objectives: of each stage, by name.
    """

    folder: RunFolder
    shared: Path
    processes: Processes
    validate: Validate
    corpus: Corpus
    digest: str
    captions: CaptionTable
    origin: Checkpoint | None
    objectives: Sequence[Mapping[str, Objective]]
    state: TrainState
    log: Log
    interrupts: Interrupts = field(default_factory=Interrupts)
    saved_at: float = field(default_factory=time.monotonic)

    @classmethod
    def begin(
        cls,
        folder: RunFolder,
        *,
        shared: Path,
        processes: Processes,
        validate: Validate,
        tracker: Tracker | None,
    ) -> Run | None:
        """Read and build everything that a run needs; None if it is finished."""
        recipe, device = folder.recipe, processes.device
        torch.manual_seed(recipe.seed)
        if processes.main and recipe.data.scenes is not None:
            print("drawing scenes", file=sys.stderr, flush=True)
        encoder, origin = load_encoder(recipe), load_origin(recipe)
        corpus = read_corpus(recipe, out=shared, known=origin.vocabulary if origin else None)
        digest = corpus.digest()
        saved = folder.load(digest=digest)
        if folder.finished:
            return None
        fixed = device.type == "cuda" or is_compiled(recipe, device)  # a few shapes of batches
        captions = corpus.table(
            maximum_length=recipe.data.maximum_length,
            lengths=PADDED_LENGTHS if fixed else (),
            device=device,
        )
        for number in range(len(recipe.stages)):
            stage_sampler(recipe, number, captions, processes)
        objectives = [stage_objectives(recipe, stage, corpus) for stage in recipe.stages]

        model = build_model(recipe, corpus.vocabulary, encoder=encoder, origin=origin)
        if processes.main:
            images = len(corpus.train) + len(corpus.validation)
            folder.check_room(model, images=images, shared=shared)
        model.to(device).requires_grad_(True)
        model.encoder.to(memory_format=torch.channels_last)
        torch.backends.cudnn.benchmark = True  # the images of a stage have one size
        if device.type == "cuda":
            torch.set_float32_matmul_precision("high")  # TF32 for what autocast leaves in float32
        torch.manual_seed(recipe.seed + 7919 * processes.rank)  # dropout differs between ranks
        state = TrainState(model, processes=processes)
        if saved is not None:
            state.load_state_dict(saved)

        if processes.main:
            folder.begin()
            if tracker is not None:
                tracker.begin(plain(recipe), out=folder.out, step=state.progress.total)
        log = Log(recipe, folder.out, processes=processes, progress=state.progress, tracker=tracker)
        log.begins(corpus, origin, objectives, state)
        return cls(
            folder=folder, shared=shared, processes=processes, validate=validate, corpus=corpus,
            digest=digest, captions=captions, origin=origin, objectives=objectives, state=state,
            log=log,
        )  # fmt: skip

    @property
    def recipe(self) -> Recipe:
        """Of the run."""
        return self.folder.recipe

    def train(self) -> None:
        """Run the remaining stages and epochs."""
        progress = self.state.progress
        with self.log, self.interrupts.heard():
            try:
                if self.folder.extends:
                    self._save()
                    self.processes.main_alone(self.folder.reopen)
                if self.origin is not None and progress.initial_score is None:
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
        progress = self.state.progress
        config = self.recipe.stages[progress.stage]
        self.state.model.encoder.fine_tune(from_stage=config.fine_tune_from)
        frozen = config.fine_tune_from is None
        grids = self._encode(self.corpus.validation) if frozen else None
        batches = self._batches(self._grids() if frozen else self._pixels())
        if progress.epoch and not progress.step:
            progress.taken = progress.epoch * batches.sampler.batches  # of a run that is extended
        stage = self.state.begin_stage(self.recipe, steps=batches.steps)
        step = TrainStep(
            stage,
            self.recipe,
            objectives=self.objectives[progress.stage],
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
        """Take the remaining steps of an epoch, and score the model."""
        progress = stage.progress
        clock = Clock(
            processes=self.processes.world,
            captions=self.captions.counts,
            device=self.processes.device,
        )
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

    def _batches(self, images: ImageSource) -> StageBatches:
        """Make the batches of the stage from its images."""
        number, any_style = self.state.progress.stage, self.recipe.data.any_style > 0
        return StageBatches(
            self.recipe,
            number,
            images=images,
            captions=self.captions,
            sampler=stage_sampler(self.recipe, number, self.captions, self.processes),
            default_start=self.corpus.vocabulary.start(ANY_STYLE) if any_style else None,
        )

    def _grids(self) -> ImageSource:
        """Encode the training images with the frozen encoder; in GPU memory if they fit."""
        grids = self._encode(self.corpus.train)
        return grids.resident(self.processes.device) or grids

    def _pixels(self) -> ImageSource:
        """Load and augment the training images; in GPU memory if they fit."""
        number = self.state.progress.stage
        stage = self.recipe.stages[number]
        dataset = ImageDataset(
            self.corpus.train,
            Transform(_sized(self.recipe.transform, stage.size)),
            augmentation=Augmentation(flip=stage.flip, crop=stage.crop),
            seed=self.recipe.seed + 1000 * number,
        )
        workers = self.recipe.data.workers
        squares = SquareSource.resident(dataset, workers=workers, processes=self.processes)
        return squares or PixelSource(dataset, workers=workers, device=self.processes.device)

    def _encode(self, images: list[CaptionedImage]) -> CachedGrids:
        return CachedGrids.compute(
            self.state.model.encoder,
            images,
            Transform(self.recipe.transform),
            folder=self.shared / "cache",
            processes=self.processes,
            dtype=dtype_of(self.recipe, self.processes.device),
            workers=self.recipe.data.workers,
        )

    def _validate(self, grids: CachedGrids | None) -> tuple[dict[str, float], list[Captioned]]:
        """Score the model, which has the averaged weights, on the validation split."""
        drawn = self.recipe.data.scenes is not None
        training = self.state.model.training
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
        except GenerationError as error:  # perhaps only the last step broke the weights
            raise diverged(self.state.progress.total) from error
        finally:
            self.state.model.train(training)
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
        """Return the model with its present weights as a checkpoint of the recipe."""
        return Checkpoint(
            model=self.state.model,
            vocabulary=self.corpus.vocabulary,
            transform=self.recipe.transform,
            name=self.recipe.name,
            generation=self.recipe.generation,
        )

    def _score_origin(self, origin: Checkpoint) -> None:
        """Score the model that the run starts from; it is the best until an epoch is better."""
        origin.model.to(self.processes.device)
        scores, _ = self.validate(
            replace(origin, generation=self.recipe.generation),
            self.corpus.validation,
            self.recipe.data,
            autocast=autocast_of(self.recipe, self.processes.device),
            processes=self.processes,
        )
        origin.model.to("cpu")  # frees memory of the GPU
        scores["cross_entropy"] += new_word_nats(
            self.corpus.validation,
            self.corpus.vocabulary,
            origin.vocabulary,
            maximum_length=self.recipe.data.maximum_length,
        )
        progress = self.state.progress
        progress.initial_score = scores["CIDEr"]
        progress.best = (scores["CIDEr"], -scores["cross_entropy"])
        if self.processes.main:
            origin.save(self.folder.best)
        self.log.origin(scores)
        self._save()

    def _save_if_due(self, stage: StageState, clock: Clock) -> None:
        """Save a state if it is time, and stop if a signal came."""
        every = self.recipe.save_every_steps
        due = every is not None and stage.progress.total % every == 0
        # Signals and clocks of one process count for all, at steps where they communicate anyway.
        if self.processes.world == 1 or self.log.is_due(stage):
            self._stop_if_asked()
            overdue = time.monotonic() - self.saved_at > 60 * self.recipe.save_every_minutes
            due = self.processes.broadcast(overdue) or due
        if due:
            with clock.paused():
                self._save()

    def _stop_if_asked(self) -> None:
        """Stop after a signal; all processes call this at the same time."""
        if any(self.processes.gather(self.interrupts.asked)):
            raise _Stopped

    def _save(self) -> None:
        """Save the state between two steps."""
        self.state.progress.log_bytes = self.log.sync()
        state = self.state.state_dict()
        if self.processes.main:
            self.folder.save(state, digest=self.digest)
        self.processes.wait()
        self.saved_at = time.monotonic()


def _sized(transform: TransformConfig, size: int | None) -> TransformConfig:
    """Return the same framing at `size` pixels a side; None keeps the size."""
    if size is None:
        return transform
    resize = transform.resize and max(size, round(transform.resize * size / transform.size))
    return replace(transform, size=size, resize=resize)


@contextmanager
def _explained() -> Iterator[None]:
    """Turn errors for want of memory into sentences."""
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
            "a process that loads images was killed by the system, most likely for want of memory: "
            "lower --data.workers, and start the same command again"
        ) from error
