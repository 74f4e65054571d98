"""A run that is under way: its data, model and state, and what the loop of train.py asks of it."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from captioner.checkpoint import Checkpoint
from captioner.errors import GenerationError
from captioner_training.data.batches import stage_sampler
from captioner_training.data.corpus import Corpus
from captioner_training.evaluation.captioned import Captioned
from captioner_training.evaluation.split import validate
from captioner_training.initialization import build_model
from captioner_training.interrupts import Interrupts
from captioner_training.losses.supervision import SupervisedAttention
from captioner_training.precision import autocast_of, told_precision
from captioner_training.progress import Progress
from captioner_training.reporting.clock import Clock
from captioner_training.reporting.report import Report
from captioner_training.run_folder import RunFolder
from captioner_training.stage import StageRun, read_supervision
from captioner_training.state import TrainState, diverged

__all__ = ["Run"]


class Run:
    """The parts of a run, put together from its recipe and its folder.

    Args:
        folder: opened for the recipe.
        corpus: of the recipe.
        origin: the checkpoint that the recipe goes on from.

    """

    report: Report

    def __init__(self, folder: RunFolder, corpus: Corpus, origin: Checkpoint | None) -> None:
        self.corpus, self.origin = corpus, origin
        self.folder, self.recipe, self.processes = folder, folder.recipe, folder.processes
        self.autocast = autocast_of(self.recipe, self.processes.device)
        self.interrupts = Interrupts()
        self._digest = corpus.digest()
        self.supervision: SupervisedAttention | None = None
        self.processes.main_first(self._check)
        self.state = self.processes.main_first(self._state)
        self._saved = time.monotonic()
        self._validating = False
        self._stopped_together = False

    @classmethod
    @contextmanager
    def begin(cls, folder: RunFolder, corpus: Corpus, origin: Checkpoint | None) -> Iterator[Run]:
        """Put the parts together, say what there is, and take a finished run for what it is."""
        run = cls(folder, corpus, origin)
        if run.state.progress.finished:
            if run.processes.main:
                print(
                    f"this run is finished: {folder.best} is its best checkpoint", file=sys.stderr
                )
            yield run
            return
        folder.begin()
        run.report = Report(run.recipe, folder.out, processes=run.processes, state=run.state)
        try:
            with run.interrupts.heard():
                run._say_where_it_begins()
                folder.state = None  # taken over: as large as the run itself
                yield run
        except KeyboardInterrupt:
            run._say_where_it_stopped()
            raise
        finally:
            run.report.close()

    def _check(self) -> None:
        """Refuse now what would be refused hours later."""
        self.folder.refuse_other_data(self._digest)
        for number in range(len(self.recipe.stages)):
            stage_sampler(self.recipe, number, self.corpus.train_numbers, self.processes)
        if self.folder.finished is None or self.folder.longer:
            self.supervision = read_supervision(self.recipe, self.corpus)

    def _state(self) -> TrainState:
        """Make the model, and give it the weights that it goes on from."""
        recipe, processes, folder = self.recipe, self.processes, self.folder
        torch.backends.cudnn.benchmark = True  # the images of a stage have one size
        torch.manual_seed(recipe.seed)
        finished = folder.finished
        origin = folder.checkpoint_of_finished() if finished else self.origin
        share = 1.0 if finished and finished.progress.best_at else recipe.encoder_share
        model = build_model(recipe, self.corpus.vocabulary, origin=origin, encoder_share=share)
        model.to(processes.device).requires_grad_(True)
        model.encoder.to(memory_format=torch.channels_last)
        if recipe.compile:
            model.encoder.compile()
        torch.manual_seed(recipe.seed + 7919 * processes.rank)  # each drops out other units
        state = TrainState(model, processes=processes)
        if finished is not None:
            state.progress = replace(finished.progress)
            if folder.longer:
                self._lengthen(state.progress)
        elif folder.state is not None:
            state.load_state_dict(folder.state)
        return state

    def _lengthen(self, progress: Progress) -> None:
        """Go back from the end of a finished run to the end of its last stage's epochs."""
        number = len(self.recipe.stages) - 1
        stage = self.recipe.stages[number]
        progress.finished, progress.stage = False, number
        progress.epoch = progress.last_epoch
        progress.stage_best, progress.stage_surprise = progress.best, progress.best_surprise
        batches = -(-len(self.corpus.train) // stage.batch_size)
        progress.taken = progress.epoch * batches

    def _say_where_it_begins(self) -> None:
        folder, progress, say = self.folder, self.state.progress, self.report.say
        for line in self.corpus.described(self.recipe.data):
            say(line)
        say(told_precision(self.recipe, self.processes.device))
        if self.supervision is not None:
            say(f"{self.supervision.words:,} words of the captions are told where to look")
        if self.origin is not None:
            known = len(self.origin.vocabulary.ordinary_words)
            added = len(self.corpus.vocabulary.ordinary_words) - known
            say(f"{known:,} words are those of the model, {added:,} new")
            if (styles := self.origin.vocabulary.styles) and not self.corpus.vocabulary.styles:
                say(f"its styles, {', '.join(styles)}, are given up: data.styles would keep them")
        if folder.longer:
            say(
                f"going on from {folder.best} ({progress.told_best}) with more epochs, after "
                f"epoch {progress.epoch}: what was learned after the best is discarded"
            )
            self.save()
        elif folder.state is not None:
            say(
                f"going on after step {progress.total:,} (stage {progress.stage + 1}, epoch "
                f"{progress.epoch + 1})"
            )
            before, here = folder.state["conditions"], self.processes.conditions
            if before != here:
                say(
                    f"note: the run had {before} before and goes on with {here}; the numbers will "
                    "differ in their last digits from those of an uninterrupted run"
                )
        elif self.origin is not None:
            self._score_origin(self.origin)

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
        progress.untouched = progress.best = scores["CIDEr"]
        progress.best_surprise = scores["cross_entropy"]
        self.folder.keep_untouched(origin)
        self.report.origin(scores)

    def _say_where_it_stopped(self) -> None:
        # All is as after the last step, but one process alone must not wait for the others.
        if self._validating and (self._stopped_together or self.processes.world == 1):
            self.save()
        if self.folder.files.paths():
            self.report.say(
                f"stopped after step {self.state.progress.total:,}: the same command goes on from "
                f"{self.folder.files.paths()[0]}"
            )
        else:
            self.report.say("stopped: the same command begins again, with the grids that are done")

    def begin_stage(self) -> StageRun:
        """Make the batches, the step and the validation of the stage that the run is at.

        Raises:
            KeyboardInterrupt: somebody asked for the end of the run; its state is saved.

        """
        self.stop_if_asked()
        return StageRun(
            self.recipe,
            self.state,
            corpus=self.corpus,
            cache=self.folder.shared / "cache",
            processes=self.processes,
            supervision=self.supervision,
        )

    def validate(self, stage: StageRun) -> tuple[dict[str, float], list[Captioned]]:
        """Score the model, which has the averaged weights, on the validation split."""
        boxes = None
        if self.recipe.data.scenes is not None:
            boxes = self.folder.shared / "scenes" / "boxes_val.json"
        self._validating = True
        try:
            result = validate(
                self.state.model,
                self.corpus.validation,
                self.recipe,
                vocabulary=self.corpus.vocabulary,
                autocast=self.autocast,
                processes=self.processes,
                boxes=boxes,
                grids=stage.validation_grids,
                together=self.stop_if_asked,
            )
        except GenerationError as error:  # the last step alone may have made the weights useless
            raise diverged(self.state.progress.total) from error
        if not math.isfinite(result[0]["cross_entropy"]):
            raise diverged(self.state.progress.total)
        self._validating = False
        return result

    def keep_checkpoint(self, scores: dict[str, float], *, best: bool) -> None:
        """Write the checkpoint of the epoch; the model has the averaged weights."""
        checkpoint = Checkpoint(
            model=self.state.model,
            vocabulary=self.corpus.vocabulary,
            transform=self.recipe.transform,
            name=self.recipe.name,
            metrics=scores,
            generation=self.recipe.generation,
        )
        self.folder.keep(checkpoint, best=best)

    def save_if_due(self, clock: Clock) -> None:
        """Save a state where it is time, and stop where somebody asked for it.

        Raises:
            KeyboardInterrupt: somebody did; the state is saved.

        """
        every, together = self.recipe.save_every_steps, self.processes.world > 1
        due = every is not None and self.state.progress.total % every == 0
        asked = self.interrupts.asked
        if together:  # what one process hears or reads off its clock counts for all
            asked = False
            if self.report.logs_now():
                asked = any(self.processes.gather(self.interrupts.asked))
                due = due or self.processes.broadcast(self._overdue())
        if asked or due or (not together and self._overdue()):
            with clock.paused():
                self.save()
        if asked:
            raise KeyboardInterrupt

    def stop_if_asked(self) -> None:
        """Stop where somebody asked for it; every process comes here at the same time.

        Raises:
            KeyboardInterrupt: somebody did; during a validation, a state is saved on the way out.

        """
        asked = self.interrupts.asked
        if self.processes.world > 1:
            asked = any(self.processes.gather(asked))
        if asked:
            self._stopped_together = True
            raise KeyboardInterrupt

    def _overdue(self) -> bool:
        return time.monotonic() - self._saved > 60 * self.recipe.save_every_minutes

    def save(self) -> None:
        """Save the state as it is between two steps.

        Raises:
            GenerationError: the weights are NaN or infinite; the last state stays.
            OutputError: it cannot be written; the last state stays.

        """
        self.state.progress.log_bytes = self.report.force()
        state: dict[str, Any] = self.state.state_dict()
        state["conditions"] = self.processes.conditions
        self.folder.save(state, digest=self._digest)
        self._saved = time.monotonic()

    def finish(self) -> None:
        """Note that the run is over, so that starting it again says so."""
        progress = self.state.progress
        self.report.finished(best=self.folder.best, last=self.folder.last)
        progress.finished, progress.log_bytes = True, self.report.force()
        self.folder.finish(digest=self._digest, progress=progress)
