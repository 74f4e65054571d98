"""The log of a run as JSON lines, its progress bar and its messages."""

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
from captioner.files import writing
from captioner.inference.device import best_dtype
from captioner.terminal import counted
from captioner.vocabulary import Vocabulary
from captioner_training.data.batches import Batch
from captioner_training.data.captioned import Captioned
from captioner_training.data.corpus import OTHER_LANGUAGE, Corpus, unknown_share
from captioner_training.distributed import Processes, exit_silently
from captioner_training.losses.objective import Objective
from captioner_training.recipe import Recipe
from captioner_training.state import Progress, StageState, TrainState, diverged
from captioner_training.trackers import Tracker, scalars

T = TypeVar("T")

_REPORTED = 10  # validation photos in a run's report, at most
_LINES = 20  # log lines about steps per stage, at least
_INTERVAL = 10.0  # seconds between two messages about steps if no bar is shown


class Clock:
    """Measures the speed of an epoch since it began or was resumed.

    Args:
        processes: the number of processes. All do equal work, so the images and captions of this
            one are multiplied by it.
        captions: (N,), the number of captions of each training image.
        device: the device of this process; if it is a GPU, `timing` has its peak memory.
    """

    def __init__(
        self, *, processes: int, captions: NDArray[np.int64], device: torch.device
    ) -> None:
        self.processes, self.device = processes, device
        self._captions = captions
        self.images = self.captions = self.steps = 0
        self.waiting = 0.0  # seconds waited for data
        self._started = time.perf_counter()
        self._stopped: float | None = None
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    def timed(self, batches: Iterable[list[Batch]]) -> Iterator[list[Batch]]:
        """Yield the batches, and record their sizes and the time waited for them."""
        iterator = iter(batches)
        while True:
            began = time.perf_counter()
            parts = next(iterator, None)
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
        """Exclude the time of the block."""
        began = time.perf_counter()
        yield
        self._started += time.perf_counter() - began

    def stop(self) -> None:
        """Stop the clock before validation and saving, which do not count."""
        self._stopped = time.perf_counter()

    def timing(self) -> dict[str, float]:
        """Return seconds, images and captions per second, and the share of time spent waiting."""
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


def report_photos(images: Sequence[T]) -> list[T]:
    """Return the photos that a run's report shows, evenly spread over the split."""
    return list(images[:: max(1, -(-len(images) // _REPORTED))])


def _caption_record(captioned: Captioned) -> dict[str, Any]:
    """Return a caption as the log stores it, with its attention in thousandths."""
    attention, gate = captioned.attention, captioned.hypothesis.gate
    return {
        "image": captioned.image.name,
        "words": captioned.words,
        "attention": None if attention is None else (1000 * attention).round().int().tolist(),
        "gate": None if gate is None else [round(value, 3) for value in gate.tolist()],
    }


class Log(Closing):
    """Writes log.jsonl and prints messages, in the main process only.

    log.jsonl has one record per line. Apart from `timing`, all runs of a recipe on the same machine
    write the same records, interrupted or not. When a run resumes, records after the saved
    `progress` are removed.

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
        self._printed_at = -math.inf
        if not processes.main:
            return
        with writing(self.path):
            keep = progress.log_bytes
            self._file = self.path.open("r+b" if keep and self.path.exists() else "w+b")
            keep = self._file.read(keep).rfind(b"\n") + 1  # the file may be shorter than log_bytes
            self._file.truncate(keep)
            self._file.seek(keep)

    def close(self) -> None:
        """Close the file."""
        if self.processes.main:
            self._file.close()
        if self._tracker is not None:
            self._tracker.close()

    def _write(self, record: Mapping[str, Any]) -> None:
        if self.processes.main:
            with writing(self.path):
                self._file.write(json.dumps(record, allow_nan=False).encode() + b"\n")
                self._file.flush()
        if self._tracker is not None:
            self._tracker.log(scalars(record), step=self.progress.total)

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

    def start(
        self, corpus: Corpus, origin: Checkpoint | None,
        objectives: Sequence[Mapping[str, Objective]], state: TrainState,
    ) -> None:  # fmt: skip
        """Print the data, the precision, the initial model and the step to resume from."""
        for line in corpus.described(self.recipe.data):
            self.print(line)
        precision = self.recipe.precision  # a run replaces "auto"
        fast, reason = best_dtype(self.processes.device)
        is_fast = getattr(torch, precision) is fast
        self.print(f"precision: {precision}{'' if is_fast else ', as set for this run'} ({reason})")
        notes = (objective.note for stage in objectives for objective in stage.values())
        for note in dict.fromkeys(filter(None, notes)):
            self.print(note)
        if origin is not None:
            self._describe_origin(corpus, origin.vocabulary)
        if (before := state.conditions_before) is not None:
            progress, now = self.progress, self.processes.conditions
            self.print(
                f"resuming after step {progress.total:,} (stage {progress.stage + 1}, epoch "
                f"{progress.epoch + 1})"
            )
            if before != now:
                self.print(
                    f"note: the run started with {before} and resumes with {now}; its numbers may "
                    "differ in the last digits from those of an uninterrupted run"
                )

    def _describe_origin(self, corpus: Corpus, origin: Vocabulary) -> None:
        count = len(origin.ordinary_words)
        added = len(corpus.vocabulary.ordinary_words) - count
        self.print(f"vocabulary: {count:,} words of the initial model, {added:,} new")
        captions = (words for image in corpus.train for words in image.words)
        if (share := unknown_share(captions, origin)) > OTHER_LANGUAGE:
            self.print(
                f"note: the model does not know {100 * share:.0f} % of the words in your captions; "
                "for another language use `captioner train new-language`"
            )
        if origin.styles and not corpus.vocabulary.styles:
            self.print(
                f"note: the model's styles ({', '.join(origin.styles)}) are dropped; to keep "
                "them, set data.styles"
            )

    def stop(self, states: Sequence[Path]) -> None:
        """Print the state that the run will resume from: the first of `states`, if any."""
        if states:
            self.print(
                f"stopped after step {self.progress.total:,}: the same command resumes from "
                f"{states[0]}"
            )
        else:
            self.print("stopped: the same command starts again and reuses finished grids")

    @contextmanager
    def epoch_bar(self, stage: StageState) -> Iterator[None]:
        """Show a progress bar of the stage's steps."""
        with tqdm(
            desc=self._epoch(stage, self.progress.epoch + 1),
            total=stage.steps,
            initial=self.progress.taken,
            unit="step",
            disable=self.processes.no_bar,
        ) as self._bar:
            yield

    def is_due(self, stage: StageState) -> bool:
        """Whether the last step is to be logged."""
        every = min(self.recipe.log_every, max(1, stage.steps // _LINES))
        return self.progress.taken % every == 0

    def step(self, values: Mapping[str, Tensor], stage: StageState, clock: Clock) -> None:
        """Advance the bar, and log the step if it is due.

        Raises GenerationError: the step is due, and one of its values is NaN or infinite.
        """
        if self._bar is not None:
            self._bar.update()
        if not self.is_due(stage):
            return
        named = self.processes.sum_named(values)
        self.check_finite(named)
        named["learning_rate"] = float(stage.scheduler.get_last_lr()[0])
        place = self._place(self.progress.epoch + 1)
        self._write({"event": "step", **place, **named, "timing": clock.timing()})
        if not sys.stderr.isatty() and time.monotonic() - self._printed_at > _INTERVAL:
            self._printed_at = time.monotonic()
            self.print(
                f"{self._epoch(stage, self.progress.epoch + 1)}: step {self.progress.taken:,} of "
                f"{stage.steps:,}, loss {named['loss']:.3f}, {self._left(stage, clock)}"
            )
        if self._bar is not None:
            self._bar.set_postfix(loss=f"{named['loss']:.3f}", refresh=False)

    def check_finite(self, values: Mapping[str, float]) -> None:
        """Check the values of a step or epoch; only the main process reports a problem.

        Raises GenerationError: one of the values is NaN or infinite.
        """
        if all(map(math.isfinite, values.values())):
            return
        if not self.processes.main:
            exit_silently()
        raise diverged(self.progress.total)

    def origin(self, scores: Mapping[str, float]) -> None:
        """Log the scores of the checkpoint that the run starts from."""
        self._write({"event": "origin", "validation": scores})
        self.print(f"before training: CIDEr {scores['CIDEr']:.1f}, BLEU-4 {scores['BLEU-4']:.1f}")

    def epoch(
        self, means: Mapping[str, float], scores: Mapping[str, float],
        captioned: Sequence[Captioned], *, stage: StageState, clock: Clock,
    ) -> None:  # fmt: skip
        """Log the epoch that just ended and print its scores.

        means: the mean of each training value over the epoch's steps.
        """
        timing, progress = clock.timing(), self.progress
        place = self._place(progress.epoch)
        record = {"event": "epoch", **place, **means, "validation": scores, "timing": timing}
        if (progress.stage, progress.epoch) == (0, 1):  # for report.html
            record["photos"] = [_caption_record(caption) for caption in report_photos(captioned)]
        self._write(record)
        training = f"cross-entropy {means['cross_entropy']:.3f},"
        if "reward" in means:
            training = f"reward {means['reward']:.3f}, cross-entropy"
        exact = f"exact {scores['exact']:.1f} %, " if "pointing" in scores else ""
        self.print(
            f"{self._epoch(stage, progress.epoch)}: "
            f"{training} {scores['cross_entropy']:.3f} on validation, CIDEr {scores['CIDEr']:.1f}, "
            f"BLEU-4 {scores['BLEU-4']:.1f}, {exact}{timing['images_per_second']:.0f} images/s, "
            f"{self._left(stage, clock)}"
        )
        if stage.is_out_of_patience and progress.taken < stage.steps:
            self.print(f"no better score for {counted(progress.stale, 'epoch')}: the stage ends")

    def _left(self, stage: StageState, clock: Clock) -> str:
        """Estimate the time of the remaining steps of a stage."""
        each = clock.timing()["seconds"] / max(1, clock.steps)
        seconds = each * (stage.steps - self.progress.taken)
        left = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
        return f"{left} left in this stage"

    def finish(self) -> None:
        """Log the end of the run."""
        progress = self.progress
        self._write({"event": "finished", "steps": progress.total, "best": progress.best[0]})

    def _epoch(self, stage: StageState, number: int) -> str:
        stages = len(self.recipe.stages)
        return f"stage {self.progress.stage + 1}/{stages} epoch {number}/{stage.config.epochs}"

    def _place(self, epoch: int) -> dict[str, int]:
        progress = self.progress
        return {"stage": progress.stage + 1, "epoch": epoch, "step": progress.total}
