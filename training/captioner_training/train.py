r"""The training loop: `captioner train RECIPE --out DIR`.

    captioner train coco --data.root ~/coco --out runs/coco
    torchrun --nproc-per-node 8 -m captioner train coco --data.root ~/coco --out runs/coco
    torchrun --nnodes 2 --node-rank 0 --master-addr node0 --master-port 29500 --nproc-per-node 8 \
        -m captioner train coco --data.root /shared/coco --out /shared/runs/coco

`train` starts or resumes a run. `Run` is its loop over stages, epochs and steps. Its parts: step.py
(one step), losses/, stage_images.py (input), validation.py, state.py (the state to resume from),
run_folder.py, log.py (log and messages).
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from captioner.checkpoint import Checkpoint
from captioner.inference.device import best_dtype
from captioner.model.model import CaptionModel
from captioner_training.data.batches import StageBatches, stage_sampler
from captioner_training.data.captions import CaptionTable
from captioner_training.data.corpus import Corpus
from captioner_training.data.grids import CachedGrids
from captioner_training.data.reading import read_corpus
from captioner_training.distributed import Processes
from captioner_training.initialization import build_model, load_encoder, load_origin
from captioner_training.interrupts import Interrupts
from captioner_training.lock import locked
from captioner_training.log import Clock, Log
from captioner_training.losses.cider import MIN_IMAGES
from captioner_training.losses.objective import Objective
from captioner_training.losses.table import objective_classes, stage_objectives
from captioner_training.memory import memory_errors
from captioner_training.recipe import ANY_STYLE, LONG_STAGE, Recipe
from captioner_training.run_folder import RunFolder, plain
from captioner_training.stage_images import StageImages
from captioner_training.state import StageState, TrainState
from captioner_training.step import TrainStep
from captioner_training.trackers import Tracker
from captioner_training.validation import Validate, Validation


def train(
    recipe: Recipe,
    *,
    out: Path,
    processes: Processes,
    validate: Validate,
    tracker: Tracker | None = None,
) -> Path:
    """Run a recipe, or resume its run, and return the path of the best checkpoint.

    Writes into `out`: best.safetensors (the highest CIDEr on validation; if equal, the lowest
    cross-entropy), last.safetensors, log.jsonl, recipe.json, and finished.json at the end. Until
    then, `out` also has state/, from which the same call resumes, and cache/, the encoded images.

    Args:
        recipe: the recipe to run.
        out: folder of the run.
        processes: the processes of the run.
        validate: scores the model after each epoch.
        tracker: receives the scalars of the log.

    Raises:
        ConfigError: the recipe is invalid, or `out` has unrelated files or another recipe's run.
        CaptionerError: data or weights cannot be read or do not fit the recipe, or `out` cannot be
            written.
        KeyboardInterrupt: after Ctrl-C or SIGTERM; a state is saved first.
    """
    with ExitStack() as stack:
        lock = locked(out / "lock", verb="train", folder=out)
        processes.main_alone(lambda: stack.enter_context(lock))
        is_fast = processes.broadcast(best_dtype(processes.device)[0] is torch.bfloat16)
        # Mistakes in any stage are raised here, before training begins. The main process goes
        # first because it writes files that the others read.
        run = processes.main_first(
            lambda: Run.begin(
                RunFolder(recipe, out, default_precision="bfloat16" if is_fast else "float32"),
                processes=processes,
                validate=validate,
                tracker=tracker,
            )
        )
        if run is not None:
            with memory_errors():
                run.train()
        elif processes.main:
            best = out / "best.safetensors"
            print(f"this run is finished; its best checkpoint is {best}", file=sys.stderr)
    return out / "best.safetensors"


class _StopRequested(KeyboardInterrupt):
    """Raised on all ranks at the same step after SIGINT or SIGTERM."""


@dataclass(kw_only=True)
class Run:
    """A run in progress: its data, model and state.

    Attributes:
        digest: hash of the data.
        captions: the tokens of the training captions, on the device.
        origin: the checkpoint that the model started from.
        objectives: the losses of each stage, by name.
    """

    folder: RunFolder
    processes: Processes
    images: StageImages
    validation: Validation
    corpus: Corpus
    digest: str
    captions: CaptionTable
    origin: Checkpoint | None
    objectives: list[dict[str, Objective]]
    state: TrainState
    log: Log
    interrupts: Interrupts = field(default_factory=Interrupts)
    saved_at: float = field(default_factory=time.monotonic)

    @classmethod
    def begin(
        cls,
        folder: RunFolder,
        *,
        processes: Processes,
        validate: Validate,
        tracker: Tracker | None,
    ) -> Run | None:
        """Read and build everything that a run needs. Returns None if the run is finished."""
        recipe, device = folder.recipe, processes.device
        torch.manual_seed(recipe.seed)
        for stage in recipe.stages:
            objective_classes(stage)  # before data are read or scenes drawn
        encoder, origin = load_encoder(recipe), load_origin(recipe)
        corpus = read_corpus(
            recipe,
            out=folder.out,
            origin=origin.vocabulary if origin else None,
            quiet=not processes.main,
        )
        digest = corpus.digest()
        saved = folder.load(digest=digest)
        if folder.finished:
            return None
        captions = corpus.table(maximum_length=recipe.data.maximum_length, device=device)
        for number in range(len(recipe.stages)):
            stage_sampler(recipe, number, captions, processes)  # checks the batch size
        objectives = [stage_objectives(recipe, stage, corpus) for stage in recipe.stages]
        model = build_model(recipe, corpus.vocabulary, encoder=encoder, origin=origin)
        if processes.main:
            count = len(corpus.train) + len(corpus.validation)
            folder.check_space(model, images=count)
        _move(model, device)
        torch.manual_seed(recipe.seed + 7919 * processes.rank)  # dropout differs between ranks
        state = TrainState(model, processes=processes)
        if saved is not None:
            state.load_state_dict(saved)

        def begin() -> None:
            folder.begin()
            if tracker is not None:
                tracker.begin(plain(recipe), out=folder.out, step=state.progress.total)

        processes.main_alone(begin)
        log = Log(recipe, folder.out, processes=processes, progress=state.progress, tracker=tracker)
        log.start(corpus, origin, objectives, state)
        images = StageImages(
            recipe=recipe,
            images=corpus.train,
            encoder=model.encoder,
            cache=folder.out / "cache",
            processes=processes,
        )
        has_boxes = recipe.data.scenes is not None
        validation = Validation(
            validate=validate,
            recipe=recipe,
            corpus=corpus,
            processes=processes,
            boxes=folder.out / "scenes" / "boxes_val.json" if has_boxes else None,
        )
        return cls(
            folder=folder, processes=processes, images=images, validation=validation,
            corpus=corpus, digest=digest, captions=captions, origin=origin, objectives=objectives,
            state=state, log=log,
        )  # fmt: skip

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run."""
        return self.folder.recipe

    def train(self) -> None:
        """Run the remaining stages and epochs."""
        progress = self.state.progress
        with self.log, self.interrupts.handled():
            try:
                if self.origin is not None and progress.initial_score is None:
                    self._score_origin(self.origin)
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
        grids = self.images.encode(self.corpus.validation) if frozen else None
        batches = self._batches()
        # Tuning takes up to half a minute for each shape.
        torch.backends.cudnn.benchmark = batches.steps >= LONG_STAGE
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
        self.objectives[progress.stage - 1] = {}  # frees their CUDA graphs
        self._save()

    def _train_epoch(
        self, stage: StageState, batches: StageBatches, step: TrainStep, grids: CachedGrids | None
    ) -> None:
        """Take the remaining steps of an epoch, then validate."""
        progress = stage.progress
        clock = Clock(
            processes=self.processes.world,
            captions=self.captions.counts,
            device=self.processes.device,
        )
        left = batches.epoch(progress.epoch, skip=progress.step, most=stage.steps - progress.taken)
        with self.log.epoch_bar(stage):
            for parts in clock.timed(left):
                values = step(parts)
                stage.count_step(values)
                self.log.step(values, stage, clock)
                self._save_if_due(stage, clock)
        clock.stop()
        sums = self.processes.sum_named(stage.sums)
        means = {name: value / max(1, progress.step) for name, value in sums.items()}
        self.log.check_finite(means)
        with stage.average.applied():
            scores, captioned = self.validation.score(
                self._checkpoint(),
                step=progress.total,
                grids=grids,
                after_batch=self._stop_if_requested,
            )
            best = stage.count_epoch(
                scores["CIDEr"],
                scores["cross_entropy"],
                has_cider=len(self.corpus.validation) >= MIN_IMAGES,
            )
            self._keep_checkpoint(scores, best=best)
        self.log.epoch(means, scores, captioned, stage=stage, clock=clock)
        if not stage.is_over:
            self._stop_if_requested()
            self._save()

    def _batches(self) -> StageBatches:
        number, any_style = self.state.progress.stage, self.recipe.data.any_style > 0
        return StageBatches(
            self.recipe,
            number,
            images=self.images.stage(number),
            captions=self.captions,
            sampler=stage_sampler(self.recipe, number, self.captions, self.processes),
            default_start=self.corpus.vocabulary.start(ANY_STYLE) if any_style else None,
        )

    def _keep_checkpoint(self, scores: dict[str, float], *, best: bool) -> None:
        """Write the checkpoint of the epoch. The model must have the averaged weights."""
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
        return Checkpoint(
            model=self.state.model,
            vocabulary=self.corpus.vocabulary,
            transform=self.recipe.transform,
            name=self.recipe.name,
            generation=self.recipe.generation,
        )

    def _score_origin(self, origin: Checkpoint) -> None:
        """Score the initial model, and keep it as the best until an epoch is better."""
        scores = self.validation.score_origin(origin)
        progress = self.state.progress
        progress.initial_score = scores["CIDEr"]
        progress.best = (scores["CIDEr"], -scores["cross_entropy"])
        if self.processes.main:
            origin.save(self.folder.best)
        self.log.origin(scores)
        self._save()

    def _save_if_due(self, stage: StageState, clock: Clock) -> None:
        """Save a state if it is time; stop if a signal arrived."""
        due = False
        # Several processes agree on signals and time only at steps where they communicate anyway.
        if self.processes.world == 1 or self.log.is_due(stage):
            self._stop_if_requested()
            overdue = time.monotonic() - self.saved_at > 60 * self.recipe.save_every_minutes
            due = self.processes.broadcast(overdue)
        if due:
            with clock.paused():
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
