"""What a run tells of itself: a log of JSON lines, a bar, and sentences."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from captioner.checkpoint import Checkpoint
from captioner.closing import Closing
from captioner.device import best_dtype, find_dtype
from captioner.files import writing
from captioner_training.data.captioned import Captioned
from captioner_training.data.corpus import OTHER_LANGUAGE, Corpus, unknown_share
from captioner_training.data.dataset import Batch
from captioner_training.distributed import Processes, end_silently
from captioner_training.losses.objective import Objective
from captioner_training.recipe import Recipe
from captioner_training.state import Progress, StageState, TrainState, diverged
from captioner_training.trackers import Tracker, scalars

__all__ = ["Clock", "Log", "some_of"]

T = TypeVar("T")

_FOLLOWED = 10  # photos of validation in a run's report
_LINES = 20  # of the log in a stage, at least
_SILENCE = 10.0  # seconds between two lines about steps where no bar is shown


class Clock:
    """Counts what an epoch's training has done since this run began it or took it up.

    `processes` do as much each as this one, on a `device` each.
    """

    def __init__(
        self, *, processes: int, captions: NDArray[np.int64], device: torch.device
    ) -> None:
        self.processes, self.device = processes, device
        self._captions = captions  # of each image
        self.images = self.captions = self.steps = 0
        self.waiting = 0.0  # seconds for data
        self._started = time.perf_counter()
        self._stopped: float | None = None

    def waited(self, batches: Iterable[list[Batch]]) -> Iterator[list[Batch]]:
        """Pass batches on, and record how long they were waited for and what is in them."""
        each = iter(batches)
        while True:
            began = time.perf_counter()
            parts = next(each, None)
            self.waiting += time.perf_counter() - began
            if parts is None:
                return
            self.steps += 1
            self.images += self.processes * sum(len(part.positions) for part in parts)
            captions = sum(self._captions[part.positions].sum() for part in parts)
            self.captions += self.processes * int(captions)
            yield parts

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the time of the block out."""
        began = time.perf_counter()
        yield
        self._started += time.perf_counter() - began

    def stop(self) -> None:
        """Let no more time count: validation and saving are no training."""
        self._stopped = time.perf_counter()

    def timing(self) -> dict[str, float]:
        """Give seconds, rates a second, and the share of the time that data were waited for."""
        seconds = (self._stopped or time.perf_counter()) - self._started
        timing = {
            "seconds": round(seconds, 2),
            "images_per_second": round(self.images / seconds, 2),
            "captions_per_second": round(self.captions / seconds, 2),
            "waiting": round(self.waiting / seconds, 4),
        }
        if self.device.type == "cuda":
            timing["gpu_memory_bytes"] = torch.cuda.max_memory_allocated(self.device)
        return timing


def some_of(images: Sequence[T]) -> list[T]:
    """Take the photos that a report follows, from all over the split."""
    return list(images[:: -(-len(images) // _FOLLOWED)])


def _told(one: Captioned) -> dict[str, Any]:
    """Write a caption with its maps, in thousandths, as the log has it."""
    attention, gate = one.attention, one.hypothesis.gate
    return {
        "image": one.image.name,
        "words": one.words,
        "attention": None if attention is None else (1000 * attention).round().int().tolist(),
        "gate": None if gate is None else [round(each, 3) for each in gate.tolist()],
    }


class Log(Closing):
    """Tells how a run goes. The main process does; in the others every method is silent.

    log.jsonl has one record a line. What depends on the clock stands under `timing`: all else is
    the same in every run of the same recipe on the same machine, interrupted or not.

    It is cut back to `progress`.

    Raises OutputError: the log cannot be written.
    """

    def __init__(
        self,
        recipe: Recipe,
        out: Path,
        *,
        processes: Processes,
        progress: Progress,
        tracker: Tracker | None = None,
    ) -> None:
        self.recipe, self.processes, self.progress = recipe, processes, progress
        self._tracker = tracker if processes.main else None
        self.path = out / "log.jsonl"
        self._bar: tqdm[NoReturn] | None = None
        self._said_at = -math.inf
        if not processes.main:
            return
        with writing(self.path):
            keep = progress.log_bytes
            self._file = self.path.open("r+b" if keep and self.path.exists() else "w+b")
            # Who has taken the log away, or put an older one back, has the rest of it from here on.
            keep = self._file.read(keep).rfind(b"\n") + 1
            self._file.truncate(keep)
            self._file.seek(keep)

    def close(self) -> None:
        """Close the file."""
        if self.processes.main:
            self._file.close()
        if self._tracker is not None:
            self._tracker.close()

    def _write(self, record: Mapping[str, Any]) -> None:
        """Append a record, at once visible to readers."""
        if self.processes.main:
            with writing(self.path):
                self._file.write(json.dumps(record, allow_nan=False).encode() + b"\n")
                self._file.flush()
        if self._tracker is not None:
            self._tracker.log(scalars(record), step=self.progress.total)

    def sync(self) -> int:
        """Force all records to disk and return how long the log is."""
        if not self.processes.main:
            return 0
        with writing(self.path):
            os.fsync(self._file.fileno())
            return self._file.tell()

    def say(self, text: str) -> None:
        """Tell a person how it goes."""
        if self.processes.main:
            tqdm.write(text, file=sys.stderr)
            sys.stderr.flush()

    def begins(
        self, corpus: Corpus, origin: Checkpoint | None,
        objectives: Sequence[Mapping[str, Objective]], state: TrainState,
    ) -> None:  # fmt: skip
        """Say what a run learns from, in which precision, and where it begins."""
        for line in corpus.described(self.recipe.data):
            self.say(line)
        device, precision = self.processes.device, self.recipe.precision
        fast, why = best_dtype(device)
        is_fast = find_dtype(precision, device) is fast
        self.say(
            f"computing in {precision}{':' if is_fast else ', as this run is set to, though'} {why}"
        )
        for note in dict.fromkeys(one.note for each in objectives for one in each.values()):
            if note:
                self.say(note)
        if origin is not None:
            known = len(origin.vocabulary.ordinary_words)
            added = len(corpus.vocabulary.ordinary_words) - known
            self.say(f"{known:,} words are those of the model, {added:,} new")
            captions = (words for image in corpus.train for words in image.words)
            if (share := unknown_share(captions, origin.vocabulary)) > OTHER_LANGUAGE:
                self.say(
                    f"note: {100 * share:.0f} % of the words in your captions are none that the "
                    "model knows: for another language `captioner train own-language` learns all "
                    "words from nothing"
                )
            if (styles := origin.vocabulary.styles) and not corpus.vocabulary.styles:
                self.say(
                    f"its styles, {', '.join(styles)}, are given up: data.styles would keep them"
                )
        if (before := state.conditions_before) is not None:
            progress, now = self.progress, self.processes.conditions
            self.say(
                f"going on after step {progress.total:,} (stage {progress.stage + 1}, epoch "
                f"{progress.epoch + 1})"
            )
            if before != now:
                self.say(
                    f"note: the run had {before} before and goes on with {now}; the numbers will "
                    "differ in their last digits from those of an uninterrupted run"
                )

    def stopped(self, states: Sequence[Path]) -> None:
        """Say from which of the states, the newest first, the run will go on."""
        if states:
            self.say(
                f"stopped after step {self.progress.total:,}: the same command goes on from "
                f"{states[0]}"
            )
        else:
            self.say("stopped: the same command begins again, with the grids that are done")

    @contextmanager
    def epoch_bar(self, stage: StageState) -> Iterator[None]:
        """Show a bar of the stage's steps."""
        with tqdm(
            desc=self._epoch(stage, self.progress.epoch + 1),
            total=stage.steps,
            initial=self.progress.taken,
            unit="step",
            disable=self.processes.no_bar,
        ) as self._bar:
            yield

    def is_due(self, stage: StageState) -> bool:
        """Whether the step just taken is one that is logged."""
        every = min(self.recipe.log_every, max(1, stage.steps // _LINES))
        return self.progress.taken % every == 0

    def step(self, values: Mapping[str, Tensor], stage: StageState, clock: Clock) -> None:
        """Move the bar on, and log this process's share of the step where one is due.

        Raises GenerationError: the step is logged, and its values are NaN or infinite.
        """
        if self._bar is not None:
            self._bar.update()
        if not sys.stderr.isatty() and time.monotonic() - self._said_at > _SILENCE:
            self._said_at = time.monotonic()
            epoch, loss = self._epoch(stage, self.progress.epoch + 1), float(values["loss"])
            self.say(f"{epoch}: step {self.progress.taken:,} of {stage.steps:,}, loss {loss:.3f}")
        if not self.is_due(stage):
            return
        named = self.processes.sum_named(values)
        self.refuse_diverged(named)
        named["learning_rate"] = float(stage.scheduler.get_last_lr()[0])
        place = self._place(self.progress.epoch + 1)
        self._write({"event": "step", **place, **named, "timing": clock.timing()})
        if self._bar is not None:
            self._bar.set_postfix(loss=f"{named['loss']:.3f}", refresh=False)

    def refuse_diverged(self, values: Mapping[str, float]) -> None:
        """Refuse to go on with a training that has come to no number; one process says so.

        Raises GenerationError: one of the values is NaN or infinite.
        """
        if all(map(math.isfinite, values.values())):
            return
        if not self.processes.main:
            end_silently()
        raise diverged(self.progress.total)

    def origin(self, scores: Mapping[str, float]) -> None:
        """Tell what the checkpoint scores that the run goes on from."""
        self._write({"event": "origin", "validation": scores})
        self.say(f"the model as it is: CIDEr {scores['CIDEr']:.1f}, BLEU-4 {scores['BLEU-4']:.1f}")

    def epoch(
        self, means: Mapping[str, float], scores: Mapping[str, float],
        captioned: Sequence[Captioned], *, stage: StageState, clock: Clock,
    ) -> None:  # fmt: skip
        """Log the epoch just counted, and say in a line how it went; `means` are of its steps."""
        timing, progress = clock.timing(), self.progress
        place = self._place(progress.epoch)
        record = {"event": "epoch", **place, **means, "validation": scores, "timing": timing}
        if (progress.stage, progress.epoch) == (0, 1):  # what report.html begins with
            record["photos"] = [_told(one) for one in some_of(captioned)]
        self._write(record)
        left = timing["seconds"] / max(1, clock.steps) * (stage.steps - progress.taken)
        learned = f"cross-entropy {means['cross_entropy']:.3f},"
        if "reward" in means:
            learned = f"reward {means['reward']:.3f}, cross-entropy"
        extra = f"exact {scores['exact']:.1f} %, " if "pointing" in scores else ""
        self.say(
            f"{self._epoch(stage, progress.epoch)}: "
            f"{learned} {scores['cross_entropy']:.3f} on validation, CIDEr {scores['CIDEr']:.1f}, "
            f"BLEU-4 {scores['BLEU-4']:.1f}, {extra}{timing['images_per_second']:.0f} images/s, "
            f"{left / 60:.0f} min left in this stage"
        )
        if stage.is_out_of_patience and progress.taken < stage.steps:
            epochs = "epoch" if progress.stale == 1 else "epochs"
            self.say(f"no better score for {progress.stale} {epochs}: the stage ends here")

    def finished(self) -> None:
        """Log the end."""
        progress = self.progress
        self._write({"event": "finished", "steps": progress.total, "best": progress.best[0]})

    def _epoch(self, stage: StageState, number: int) -> str:
        stages = len(self.recipe.stages)
        return f"stage {self.progress.stage + 1}/{stages} epoch {number}/{stage.config.epochs}"

    def _place(self, epoch: int) -> dict[str, int]:
        progress = self.progress
        return {"stage": progress.stage + 1, "epoch": epoch, "step": progress.total}
