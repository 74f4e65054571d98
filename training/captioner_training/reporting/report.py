"""What a run tells of itself: the log, the bar, TensorBoard, and lines for people."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from torch import Tensor
from tqdm import tqdm

from captioner.vision.transform import Transform
from captioner_training.distributed import Processes, leave_the_word
from captioner_training.evaluation.captioned import Captioned
from captioner_training.recipe import Recipe, Stage
from captioner_training.reporting.board import Board
from captioner_training.reporting.clock import Clock
from captioner_training.reporting.log import RunLog
from captioner_training.state import TrainState, diverged

__all__ = ["Report"]

_LINES = 20  # of the log in a stage, at least


class Report:
    """Tells how a run goes. The main process does; in the others every method is silent.

    Args:
        recipe: of the run.
        out: the folder of the run.
        processes: of the run.
        state: of the run: the log is cut back to it, and TensorBoard goes on from it.

    Raises:
        OutputError: the log cannot be written.
        MissingExtraError: the recipe wants TensorBoard, which is not installed.

    """

    def __init__(
        self, recipe: Recipe, out: Path, *, processes: Processes, state: TrainState
    ) -> None:
        self.recipe, self.processes, self.state = recipe, processes, state
        self._log: RunLog | None = None
        self._board: Board | None = None
        self._bar: tqdm[NoReturn] | None = None
        if processes.main:
            if recipe.tensorboard:
                self._board = Board(
                    out / "tensorboard", step=state.progress.total, tokenizer=recipe.data.tokenizer
                )
            self._log = RunLog(out / "log.jsonl", keep=state.progress.log_bytes)

    def close(self) -> None:
        """Close the files."""
        for one in (self._log, self._board):
            if one is not None:
                one.close()

    def say(self, text: str) -> None:
        """Tell a person how it goes."""
        if self.processes.main:
            tqdm.write(text, file=sys.stderr)
            sys.stderr.flush()

    def force(self) -> int:
        """Force the log to disk and return how long it is."""
        return self._log.force() if self._log else 0

    @contextmanager
    def epoch_bar(self, stage: Stage) -> Iterator[None]:
        """Show a bar of the stage's steps."""
        progress, stages = self.state.progress, len(self.recipe.stages)
        with tqdm(
            desc=f"stage {progress.stage + 1}/{stages} epoch {progress.epoch + 1}/{stage.epochs}",
            total=self.state.steps,
            initial=progress.taken,
            unit="step",
            disable=self.processes.no_bar,
        ) as self._bar:
            yield

    def logs_now(self) -> bool:
        """Whether the step just taken is one that is logged."""
        every = min(self.recipe.log_every, max(1, self.state.steps // _LINES))
        return self.state.progress.taken % every == 0

    def step(self, values: Tensor, clock: Clock) -> None:
        """Move the bar on, and log the step where one is due.

        Args:
            values: (4,), of `TrainStep`: the shares of this process.
            clock: of the epoch.

        Raises:
            GenerationError: the step is logged, and its values are NaN or infinite.

        """
        if self._bar is not None:
            self._bar.update()
        if not self.logs_now():
            return
        told = self.processes.sum(values.clone()).tolist()
        self.refuse_diverged(told)
        named = self._named(told)
        named["learning_rate"] = float(self.state.scheduler.get_last_lr()[0])
        timing = clock.timing()
        self._write({"event": "step", **self._place(), **named, "timing": timing})
        if self._bar is not None:
            self._bar.set_postfix(loss=f"{named['loss']:.3f}", refresh=False)
        if self._board:
            rates = {**named, "images_per_second": timing["images_per_second"]}
            self._board.curves("train", rates, step=self.state.progress.total)

    def refuse_diverged(self, values: Sequence[float]) -> None:
        """Refuse to go on with a training that has come to no number; one process says so.

        Raises:
            GenerationError: one of the values is NaN or infinite.

        """
        if all(map(math.isfinite, values)):
            return
        if not self.processes.main:
            leave_the_word()
        raise diverged(self.state.progress.total)

    def origin(self, scores: Mapping[str, float]) -> None:
        """Tell what the checkpoint scores that the run goes on from."""
        self._write({"event": "origin", "validation": scores})
        self.say(f"the model as it is: CIDEr {scores['CIDEr']:.1f}, BLEU-4 {scores['BLEU-4']:.1f}")

    def epoch(
        self, values: Sequence[float], scores: Mapping[str, float], captioned: Sequence[Captioned],
        *, clock: Clock, stage: Stage,
    ) -> None:  # fmt: skip
        """Log the epoch just counted, and say in a line how it went.

        Args:
            values: the means of what its steps returned.
            scores: of the validation.
            captioned: the validation split.
            clock: of the epoch.
            stage: of the epoch.

        """
        result, timing, progress = self._named(values), clock.timing(), self.state.progress
        place = {**self._place(), "epoch": progress.epoch}
        self._write({"event": "epoch", **place, **result, "validation": scores, "timing": timing})
        if self._board:
            self._board.curves("validation", scores, step=progress.total)
            self._board.photos(captioned, Transform(self.recipe.transform), step=progress.total)
        left = timing["seconds"] / max(1, clock.steps) * (self.state.steps - progress.taken)
        told = f"cross-entropy {result['cross_entropy']:.3f},"
        if stage.self_critical is not None:
            told = f"reward {result['reward']:.3f}, cross-entropy"
        extra = f"exact {scores['exact']:.1f} %, " if "pointing" in scores else ""
        self.say(
            f"stage {progress.stage + 1}/{len(self.recipe.stages)} "
            f"epoch {progress.epoch}/{stage.epochs}: "
            f"{told} {scores['cross_entropy']:.3f} on validation, CIDEr {scores['CIDEr']:.1f}, "
            f"BLEU-4 {scores['BLEU-4']:.1f}, {extra}{timing['images_per_second']:.0f} images/s, "
            f"{left / 60:.0f} min left in this stage"
        )
        if progress.best == 0 and progress.epoch == 1:
            self.say(
                "note: CIDEr is 0 so far: of such epochs the one with the lowest cross-entropy on "
                "validation is the best"
            )
        if self.state.is_out_of_patience(stage) and progress.taken < self.state.steps:
            epochs = "epoch" if progress.stale == 1 else "epochs"
            self.say(f"no better score for {progress.stale} {epochs}: the stage ends here")

    def finished(self, *, best: Path, last: Path) -> None:
        """Log the end, and compare with the model that the run began from."""
        progress = self.state.progress
        record = {"event": "finished", "steps": progress.total, "best": progress.best}
        self._write(record)
        if (before := progress.untouched) is None:
            return
        if progress.best > before:
            gain = progress.best - before
            gained = f"{gain:.1f}" if gain > 0.05 else "less than 0.1"
            self.say(
                f"CIDEr {progress.best:.1f}, before the training {before:.1f}: the run gained "
                f"{gained} ({best})"
            )
        elif progress.best_at is not None:
            self.say(
                f"CIDEr {before:.1f}, as before the training, but a lower cross-entropy on "
                f"validation ({best})"
            )
        else:
            self.say(
                f"no epoch was better than the model as it was (CIDEr {before:.1f}): {best} is "
                f"that model, {last} the trained one"
            )

    def _named(self, values: Sequence[float]) -> dict[str, float]:
        loss, cross_entropy, reward, norm = values
        named = {"loss": loss, "cross_entropy": cross_entropy, "gradient_norm": norm}
        critic = self.recipe.stages[self.state.progress.stage].self_critical
        return named if critic is None else {**named, "reward": reward}

    def _place(self) -> dict[str, int]:
        progress = self.state.progress
        return {"stage": progress.stage + 1, "epoch": progress.epoch + 1, "step": progress.total}

    def _write(self, record: Mapping[str, Any]) -> None:
        if self._log:
            self._log.write(record)
