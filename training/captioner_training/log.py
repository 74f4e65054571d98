"""The log of a run: JSON lines, a progress bar, messages, and TensorBoard."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor
from tqdm import tqdm

from captioner.checkpoint import Checkpoint
from captioner.closing import Closing
from captioner.errors import ConfigError
from captioner.shared.files import writing
from captioner.shared.text import counted
from captioner_training.data.captions import OTHER_LANGUAGE, Corpus, unknown_share
from captioner_training.distributed import exit_silently, progress_bar
from captioner_training.losses.cider import MIN_IMAGES
from captioner_training.recipe import Recipe
from captioner_training.run_folder import flat
from captioner_training.state import StageState, TrainState, diverged

_LINES = 20  # log lines about steps per stage, at least


def import_tensorboard() -> Any:
    """Import torch's writer of TensorBoard events. Raises ConfigError: it is not installed."""
    try:
        return import_module("torch.utils.tensorboard")
    except ImportError as error:
        raise ConfigError(
            "--log tensorboard needs tensorboard: pip install 'captioner[tensorboard]'"
        ) from error


class Log(Closing):
    """Writes log.jsonl and prints messages, in the main process only.

    Apart from `timing`, all runs of a recipe on the same machine write the same records,
    interrupted or not. When a run resumes, records after the progress of `state` are removed. With
    `tensorboard`, DIR/tensorboard gets them too.
    """

    def __init__(
        self, recipe: Recipe, out: Path, *, state: TrainState, tensorboard: bool = False
    ) -> None:
        self.recipe, self.processes, self.progress = recipe, state.processes, state.progress
        self.path = out / "log.jsonl"
        self._events: Any = None  # a SummaryWriter
        self._timing: dict[str, float] = {}  # of the steps of the last epoch
        self._has_cider = True
        if not self.processes.main:
            return
        with writing(self.path):
            keep = self.progress.log_bytes
            self._file = self.path.open("r+b" if keep and self.path.exists() else "w+b")
            keep = self._file.read(keep).rfind(b"\n") + 1  # the file may be shorter than log_bytes
            self._file.truncate(keep)
            self._file.seek(keep)
            if tensorboard:
                self._events = import_tensorboard().SummaryWriter(
                    str(out / "tensorboard"), purge_step=self.progress.global_step + 1
                )

    def close(self) -> None:
        """Close the files."""
        if self.processes.main:
            self._file.close()
        if self._events is not None:
            self._events.close()

    def _write(self, record: Mapping[str, Any]) -> None:
        if self.processes.main:
            with writing(self.path):
                self._file.write(json.dumps(record, allow_nan=False).encode() + b"\n")
                self._file.flush()
        if self._events is not None:
            for name, value in flat(record, "/").items():  # such as timing/seconds
                if isinstance(value, int | float):
                    self._events.add_scalar(name, value, global_step=self.progress.global_step)

    def sync(self) -> int:
        """Force all records to disk and return the length of the log in bytes."""
        if not self.processes.main:
            return 0
        with writing(self.path):
            os.fsync(self._file.fileno())
            return self._file.tell()

    def print(self, text: str) -> None:
        """Print a message on standard error, above the bar."""
        if self.processes.main:
            tqdm.write(text, file=sys.stderr)
            sys.stderr.flush()

    def start(self, corpus: Corpus, initial: Checkpoint | None) -> None:
        """Print the data, the precision and the step to resume from."""
        for line in corpus.describe(self.recipe.data):
            self.print(line)
        self._has_cider = len(corpus.validation) >= MIN_IMAGES
        words = (words for image in corpus.train for words in image.words)
        if initial and (share := unknown_share(words, initial.vocabulary)) > OTHER_LANGUAGE:
            self.print(
                f"note: the model does not know {100 * share:.0f} % of the words in your captions; "
                "for another language use `captioner train new-language`"
            )
        self.print(f"precision: {self.recipe.precision}")
        if (progress := self.progress).global_step:
            self.print(
                f"resuming after step {progress.global_step:,} (stage {progress.stage + 1}, epoch "
                f"{progress.epoch + 1})"
            )

    def stop(self, states: Sequence[Path]) -> None:
        """Print the state that the run will resume from: the first of `states`, if any."""
        text = "stopped before the first state: the same command starts again"
        if states:
            step = self.progress.global_step
            text = f"stopped after step {step:,}: the same command resumes from {states[0]}"
        self.print(text)

    @contextmanager
    def epoch_bar(self, stage: StageState, *, images: int) -> Iterator[None]:
        """Log an epoch of a stage; show a bar of the stage's steps, of `images` images each."""
        self._stage = stage
        began, first = time.monotonic(), self.progress.stage_step
        with progress_bar(
            self._epoch(self.progress.epoch + 1),
            stage.steps,
            initial=first,
            unit="step",
            quiet=not self.processes.main,
        ) as self._bar:
            yield
        seconds = time.monotonic() - began
        rate = images * (self.progress.stage_step - first) / max(seconds, 1e-9)
        self._timing = {"seconds": round(seconds, 2), "images_per_second": round(rate, 2)}

    @property
    def is_due(self) -> bool:
        """Whether the last step is to be logged."""
        every = min(self.recipe.log_every, max(1, self._stage.steps // _LINES))
        return self.progress.stage_step % every == 0

    def step(self, values: Mapping[str, Tensor]) -> None:
        """Advance the bar, and log the step if it is due."""
        self._bar.update()
        if not self.is_due:
            return
        named = self.processes.sum_named(values)
        self.check_finite(named)
        named["learning_rate"] = float(self._stage.scheduler.get_last_lr()[0])
        self._write({"event": "step", **self._place(self.progress.epoch + 1), **named})
        self._bar.set_postfix(loss=f"{named['loss']:.3f}", refresh=False)

    def check_finite(self, values: Mapping[str, float]) -> None:
        """Raise GenerationError in the main process if a value is NaN or infinite."""
        if not all(map(math.isfinite, values.values())):
            if not self.processes.main:
                exit_silently()
            raise diverged(self.progress.global_step)

    def _scores(self, scores: Mapping[str, float]) -> str:
        cider = f"CIDEr {scores['CIDEr']:.1f}, " if self._has_cider else ""
        return f"{cider}BLEU-4 {scores['BLEU-4']:.1f}"

    def initial(self, scores: Mapping[str, float]) -> None:
        """Log the scores of the checkpoint that the run starts from."""
        self._write({"event": "origin", "validation": scores})
        self.print(f"before training: {self._scores(scores)}")

    def epoch(self, means: Mapping[str, float], scores: Mapping[str, float]) -> None:
        """Log the epoch that just ended and print its scores; `means` are of the training."""
        timing, progress = self._timing, self.progress
        place = self._place(progress.epoch)
        self._write({"event": "epoch", **place, **means, "validation": scores, "timing": timing})
        training = f"cross-entropy {means['cross_entropy']:.3f},"
        if "reward" in means:
            training = f"reward {means['reward']:.3f}, cross-entropy"
        exact = f"exact {scores['exact']:.1f} %, " if "pointing" in scores else ""
        self.print(
            f"{self._epoch(progress.epoch)}: {training} {scores['cross_entropy']:.3f} on "
            f"validation, {self._scores(scores)}, {exact}{timing['images_per_second']:.0f} images/s"
        )
        if self._stage.is_out_of_patience and progress.stage_step < self._stage.steps:
            epochs = counted(progress.epochs_without_improvement, "epoch")
            self.print(f"no better score for {epochs}: the stage ends")

    def finish(self) -> None:
        """Log the end of the run."""
        step, best = self.progress.global_step, self.progress.best
        self._write({"event": "finished", "steps": step, "best": best and best.cider})

    def _epoch(self, number: int) -> str:
        stage, stages = self.progress.stage, self.recipe.stages
        return f"stage {stage + 1}/{len(stages)} epoch {number}/{stages[stage].epochs}"

    def _place(self, epoch: int) -> dict[str, int]:
        progress = self.progress
        return {"stage": progress.stage + 1, "epoch": epoch, "step": progress.global_step}
