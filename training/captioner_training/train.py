r"""The training loop: `captioner train RECIPE --out DIR`.

    captioner train coco --data.root ~/coco --out runs/coco
    torchrun --nproc-per-node 8 -m captioner train coco --data.root ~/coco --out runs/coco
    torchrun --nnodes 2 --node-rank 0 --master-addr node0 --master-port 29500 --nproc-per-node 8 \
        -m captioner train coco --data.root /shared/coco --out /shared/runs/coco

`train` starts or resumes a run. `Run` is its loop over stages, epochs and steps. Its parts: step.py
(one step), losses/, data/ (input), state.py (the state to resume from), run_folder.py, log.py (log
and messages).
"""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

import torch

from captioner.checkpoint import Checkpoint
from captioner.errors import GenerationError
from captioner.inference.device import best_dtype
from captioner.model.model import CaptionModel
from captioner.photos.transform import Transform, TransformConfig
from captioner_training.data.batches import BucketSampler, StageBatches, stage_sampler
from captioner_training.data.captions import CaptionTable, Corpus, new_word_nats
from captioner_training.data.grids import CachedGrids
from captioner_training.data.images import CaptionedImage
from captioner_training.data.pixels import SIGNALS, ImageDataset
from captioner_training.data.reading import read_corpus
from captioner_training.distributed import Processes, memory_errors
from captioner_training.evaluation.captioning import validate
from captioner_training.initialization import build_model, load_encoder, load_initial
from captioner_training.log import Log
from captioner_training.losses.cider import MIN_IMAGES
from captioner_training.losses.objective import Objective
from captioner_training.losses.table import objective_classes, stage_objectives
from captioner_training.recipe import ANY_STYLE, LONG_STAGE, Recipe
from captioner_training.run_folder import RunFolder, lock_folder
from captioner_training.state import Score, StageState, TrainState, diverged
from captioner_training.step import TrainStep, autocast_of, dtype_of


def train(recipe: Recipe, *, out: Path, processes: Processes, tensorboard: bool = False) -> Path:
    """Run a recipe, or resume its run, and return the path of the best checkpoint.

    Writes into `out`: best.safetensors (the highest CIDEr on validation; if equal, the lowest
    cross-entropy), last.safetensors, log.jsonl, recipe.json, and finished.json at the end. Until
    then, `out` also has state/, from which the same call resumes, and cache/, the encoded images.

    Raises:
        CaptionerError: the recipe is invalid, data or weights cannot be read or do not fit it, or
            `out` cannot be written, has unrelated files, or has another recipe's run.
        KeyboardInterrupt: after Ctrl-C or SIGTERM; a state is saved first.
    """
    with ExitStack() as stack:
        lock = lock_folder(out / "lock", command="train", folder=out)
        processes.main_alone(lambda: stack.enter_context(lock))
        is_fast = processes.broadcast(best_dtype(processes.device)[0] is torch.bfloat16)
        folder = processes.main_first(
            lambda: RunFolder(recipe, out, default_precision="bfloat16" if is_fast else "float32")
        )
        # Mistakes in any stage are raised here, before training begins. The main process goes
        # first because it writes files that the others read.
        run = processes.main_first(lambda: Run.begin(folder, processes=processes))
        if run is not None:
            with memory_errors():
                run.train(tensorboard=tensorboard)
        elif processes.main:
            print(f"this run is finished; its best checkpoint is {folder.best}", file=sys.stderr)
    return folder.best


@dataclass(kw_only=True)
class Run:
    """A run in progress: its data, model and state.

    Attributes:
        digest: hash of the data.
        captions: the tokens of the training captions, on the device.
        initial_checkpoint: the checkpoint that the model started from.
        objectives: the losses of each stage, by name.
    """

    folder: RunFolder
    recipe: Recipe
    processes: Processes
    corpus: Corpus
    digest: str
    captions: CaptionTable
    samplers: list[BucketSampler]
    initial_checkpoint: Checkpoint | None
    objectives: list[dict[str, Objective]]
    state: TrainState
    log: Log = field(init=False)
    interrupts: Interrupts = field(init=False)
    saved_at: float = field(default_factory=time.monotonic)

    @classmethod
    def begin(cls, folder: RunFolder, *, processes: Processes) -> Run | None:
        """Read and build everything that a run needs. Returns None if the run is finished."""
        recipe, device = folder.recipe, processes.device
        torch.manual_seed(recipe.seed)
        for stage in recipe.stages:
            objective_classes(stage)  # before data are read or scenes drawn
        encoder, initial = load_encoder(recipe), load_initial(recipe)
        vocabulary = initial.vocabulary if initial else None
        corpus = read_corpus(recipe, out=folder.out, origin=vocabulary, quiet=not processes.main)
        digest = corpus.digest()
        saved = folder.load(digest=digest)
        if folder.finished:
            return None
        longest = recipe.data.maximum_length
        captions = CaptionTable.of(
            corpus.train, corpus.vocabulary, maximum_length=longest, device=device
        )
        stages = range(len(recipe.stages))
        samplers = [stage_sampler(recipe, number, captions, processes) for number in stages]
        objectives = [stage_objectives(recipe, stage, corpus) for stage in recipe.stages]
        model = build_model(recipe, corpus.vocabulary, encoder=encoder, origin=initial)
        if processes.main:
            folder.check_space(model, images=len(corpus.train) + len(corpus.validation))
        _move(model, device)
        torch.manual_seed(recipe.seed + 7919 * processes.rank)  # dropout differs between ranks
        state = TrainState(model, processes=processes)
        if saved is not None:
            state.load_state_dict(saved)
        return cls(
            folder=folder, recipe=recipe, processes=processes, corpus=corpus, digest=digest,
            captions=captions, samplers=samplers, initial_checkpoint=initial,
            objectives=objectives, state=state,
        )  # fmt: skip

    def train(self, *, tensorboard: bool) -> None:
        """Run the remaining stages and epochs."""
        progress, initial = self.state.progress, self.initial_checkpoint
        self.interrupts = Interrupts()
        self.processes.main_alone(self.folder.begin)
        self.log = Log(self.recipe, self.folder.out, state=self.state, tensorboard=tensorboard)
        with self.log, self.interrupts.handled():
            self.log.start(self.corpus, initial)
            try:
                if initial is not None and progress.initial_score is None:
                    self._score_initial(initial)
                while progress.stage < len(self.recipe.stages):
                    self._train_stage()
                self.log.finish()
                progress.log_bytes = self.log.sync()
                if self.processes.main:
                    self.folder.finish(progress, digest=self.digest)
            except KeyboardInterrupt as stop:
                if isinstance(stop, _StopRequested):
                    self._save()
                self.log.stop(self.folder.states())
                raise

    def _train_stage(self) -> None:
        self._stop_if_requested()
        progress = self.state.progress
        config = self.recipe.stages[progress.stage]
        self.state.model.encoder.fine_tune(from_stage=config.fine_tune_from)
        frozen = config.fine_tune_from is None
        grids = self._encode(self.corpus.validation) if frozen else None
        batches = self._batches()
        # Tuning takes up to half a minute for each shape.
        torch.backends.cudnn.benchmark = batches.steps >= LONG_STAGE
        stage = self.state.begin_stage(self.recipe, steps=batches.steps)
        step = TrainStep(
            stage,
            self.recipe,
            objectives=self.objectives[progress.stage],
            processes=self.processes,
        )
        while not stage.is_over:
            with self.interrupts.deferred():
                self._train_epoch(stage, batches, step, grids)
        stage.end()
        self.state.stage = None
        self.objectives[progress.stage - 1] = {}  # frees their CUDA graphs
        self._save()

    def _train_epoch(
        self, stage: StageState, batches: StageBatches, step: TrainStep, grids: CachedGrids | None
    ) -> None:
        """Take the remaining steps of an epoch, then validate."""
        progress = stage.progress
        left = stage.steps - progress.stage_step
        with self.log.epoch_bar(stage, images=batches.sampler.size):
            for parts in batches.epoch(progress.epoch, skip=progress.step, max_batches=left):
                values = step(parts)
                stage.count_step(values)
                self.log.step(values)
                self._save_if_due()
        sums = self.processes.sum_named(stage.sums)
        means = {name: value / max(1, progress.step) for name, value in sums.items()}
        self.log.check_finite(means)
        with stage.average.applied():
            checkpoint = Checkpoint(
                model=self.state.model,
                vocabulary=self.corpus.vocabulary,
                transform=self.recipe.transform,
                name=self.recipe.name,
                generation=self.recipe.generation,
            )
            scores = self._validate(checkpoint, grids)
            best = stage.count_epoch(
                Score(scores["CIDEr"], scores["cross_entropy"]),
                has_cider=len(self.corpus.validation) >= MIN_IMAGES,
            )
            if self.processes.main:
                self._keep(replace(checkpoint, metrics=scores), best=best)
        self.log.epoch(means, scores)
        if not stage.is_over:
            self._stop_if_requested()
            self._save()

    def _batches(self) -> StageBatches:
        """Return the batches of the current stage."""
        number = self.state.progress.stage
        stage = self.recipe.stages[number]
        grids = None
        if stage.fine_tune_from is None:
            grids = self._encode(self.corpus.train)
            grids.load(self.processes.device)
        photos = ImageDataset(
            self.corpus.train,
            Transform(_resized(self.recipe.transform, stage.size)),
            flip=stage.flip,
            crop=stage.crop,
            seed=self.recipe.seed + 1000 * number,
        )
        any_style = self.corpus.vocabulary.start(ANY_STYLE) if self.recipe.data.any_style else None
        return StageBatches(
            recipe=self.recipe,
            stage=stage,
            photos=photos,
            grids=grids,
            captions=self.captions,
            sampler=self.samplers[number],
            any_style=any_style,
        )

    def _encode(self, images: Sequence[CaptionedImage]) -> CachedGrids:
        """Return the cached grids of images, computed with the current encoder."""
        return CachedGrids.compute(
            self.state.model.encoder,
            images,
            Transform(self.recipe.transform),
            folder=self.folder.out / "cache",
            processes=self.processes,
            dtype=dtype_of(self.recipe, self.processes.device),
            workers=self.recipe.data.workers,
        )

    def _validate(self, checkpoint: Checkpoint, grids: CachedGrids | None) -> dict[str, float]:
        """Score the model on the validation split; its training mode is restored."""
        step, model = self.state.progress.global_step, self.state.model
        training = model.training
        try:
            scores = self._score(checkpoint, grids)
        except GenerationError as error:  # the last step may have made weights NaN
            raise diverged(step) from error
        finally:
            model.train(training)
        if not math.isfinite(scores["cross_entropy"]):
            raise diverged(step)
        return scores

    def _score(self, checkpoint: Checkpoint, grids: CachedGrids | None = None) -> dict[str, float]:
        boxes = self.folder.out / "scenes" / "boxes_val.json"
        return validate(
            checkpoint,
            self.corpus.validation,
            self.recipe.data,
            autocast=autocast_of(self.recipe, self.processes.device),
            processes=self.processes,
            boxes=None if self.recipe.data.scenes is None else boxes,
            grids=grids,
            on_batch=self._stop_if_requested,
        )

    def _score_initial(self, initial: Checkpoint) -> None:
        """Score the initial checkpoint, and keep it as the best until an epoch is better."""
        initial.model.to(self.processes.device)
        scores = self._score(replace(initial, generation=self.recipe.generation))
        initial.model.to("cpu")  # frees GPU memory
        scores["cross_entropy"] += new_word_nats(
            self.corpus.validation,
            self.corpus.vocabulary,
            initial.vocabulary,
            maximum_length=self.recipe.data.maximum_length,
        )
        progress = self.state.progress
        progress.initial_score = scores["CIDEr"]
        progress.best = Score(scores["CIDEr"], scores["cross_entropy"])
        if self.processes.main:
            initial.save(self.folder.best)
        self.log.initial(scores)
        self._save()

    def _keep(self, checkpoint: Checkpoint, *, best: bool) -> None:
        """Write the checkpoint of the epoch. The model must have the averaged weights."""
        checkpoint.save(self.folder.last)
        if best:
            checkpoint.save(self.folder.best)
        if self.recipe.keep_epochs:
            progress = self.state.progress
            checkpoint.save(
                self.folder.epochs / f"{progress.stage + 1}.{progress.epoch}.safetensors"
            )

    def _save_if_due(self) -> None:
        """Save a state if it is time; stop if a signal arrived."""
        # Several processes agree on signals and time only at steps where they communicate anyway.
        if self.processes.world == 1 or self.log.is_due:
            self._stop_if_requested()
            overdue = time.monotonic() - self.saved_at > 60 * self.recipe.save_every_minutes
            if self.processes.broadcast(overdue):
                self._save()

    def _stop_if_requested(self) -> None:
        """Raise _StopRequested after a signal to any process; all processes call this together."""
        if any(self.processes.gather(self.interrupts.requested)):
            raise _StopRequested

    def _save(self) -> None:
        """Save a state. All processes call this together."""
        self.state.progress.log_bytes = self.log.sync()
        state = self.state.state_dict()
        if self.processes.main:
            self.folder.save(state, digest=self.digest)
        self.processes.wait()
        self.saved_at = time.monotonic()


def _move(model: CaptionModel, device: torch.device) -> None:
    """Move a model to the device and set torch's options for fast training."""
    model.to(device).requires_grad_(True)
    model.encoder.to(memory_format=torch.channels_last)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32 where autocast keeps float32


def _resized(transform: TransformConfig, size: int | None) -> TransformConfig:
    """Return the same framing at `size` pixels a side; None keeps the size."""
    if size is None:
        return transform
    resize = transform.resize and max(size, round(transform.resize * size / transform.size))
    return replace(transform, size=size, resize=resize)


class _StopRequested(KeyboardInterrupt):
    """Raised on all ranks at the same step after SIGINT or SIGTERM."""


class Interrupts:
    """Raises KeyboardInterrupt on Ctrl-C and SIGTERM; inside `deferred`, notes the first one.

    Attributes:
        requested: whether a signal was noted.
    """

    def __init__(self) -> None:
        self.requested = False
        self._deferred = False

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle signals until the block ends; does nothing outside the main thread."""
        with ExitStack() as stack:
            if threading.current_thread() is threading.main_thread():
                for number in SIGNALS:
                    stack.callback(signal.signal, number, signal.signal(number, self._handle))
            yield

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Note the first signal in `requested` instead of raising; a second one raises."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if not self._deferred or self.requested:
            raise KeyboardInterrupt
        self.requested = True
