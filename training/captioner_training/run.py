"""A run's folder: its recipe, its log, its state, and how an interrupted run is taken up again."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from captioner.errors import ConfigError, GenerationError, OutputError
from captioner.model import CaptionModel
from captioner_training.build import Data
from captioner_training.engine import Engine
from captioner_training.machinery.lock import locked
from captioner_training.machinery.processes import Processes
from captioner_training.recipe import Recipe
from captioner_training.reporting.board import Board
from captioner_training.reporting.log import RunLog
from captioner_training.state import Progress, StateFiles, capture_random, restore_random

__all__ = ["Run"]

# Fields that a run may be taken up with anew: they do not change what is computed.
_FREE = ("data.root", "data.workers", "save_every_minutes", "save_every_steps", "keep_states")


class Run:
    """A run of a recipe in a folder. The main process writes; all know how far it is."""

    def __init__(
        self, recipe: Recipe, out: Path, processes: Processes, state: dict[str, Any] | None
    ) -> None:
        self.recipe, self.out, self.processes = recipe, out, processes
        self.progress = Progress(**state["progress"]) if state else Progress()
        self._state = state
        self._files = StateFiles(out / "state", keep=recipe.keep_states)
        self._log: RunLog | None = None
        self._board: Board | None = None
        self._data_digest = ""
        self._saved = time.monotonic()

    @classmethod
    @contextmanager
    def open(cls, recipe: Recipe, out: Path, processes: Processes) -> Iterator[Run]:
        """Open a folder: a new one, or that of an interrupted run of the same recipe.

        Raises:
            ConfigError: it has the run of another recipe.
            DataError: it has states, none of which can be read.
            OutputError: it cannot be written, or another process trains in it.
            MissingExtraError: the recipe wants TensorBoard, which is not installed.

        """
        with ExitStack() as stack:
            if processes.main:
                stack.enter_context(locked(out / "lock", verb="train", what=out))
            yield stack.enter_context(cls._taken_up(recipe, out, processes))

    @classmethod
    @contextmanager
    def _taken_up(cls, recipe: Recipe, out: Path, processes: Processes) -> Iterator[Run]:
        files = StateFiles(out / "state", keep=recipe.keep_states)
        state = files.load()
        if state is not None:
            _refuse_another(recipe, state["recipe"], out)
        processes.wait()  # all have read before anyone writes
        run = cls(recipe, out, processes, state)
        try:
            if processes.main and not run.progress.finished:
                run._open_files()
            yield run
        finally:
            if run._log:
                run._log.close()
            if run._board:
                run._board.close()

    def _open_files(self) -> None:
        if self.recipe.tensorboard:
            self._board = Board(self.out / "tensorboard", step=self.progress.total)
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            text = json.dumps(_plain(self.recipe), indent=2) + "\n"
            (self.out / "recipe.json").write_text(text)
        except OSError as error:
            raise OutputError(f"{self.out} cannot be written: {error.strerror}") from error
        self._log = RunLog(self.out / "log.jsonl", keep=self.progress.log_bytes)

    @property
    def done(self) -> bool:
        """Whether the steps of a dry run are over."""
        return self.recipe.max_steps is not None and self.progress.total >= self.recipe.max_steps

    def restore_model(self, model: CaptionModel, data: Data) -> None:
        """Give a fresh model the weights of the interrupted run.

        Raises:
            ConfigError: the training data are not what they were.

        """
        self._data_digest = _digest(data)
        if self._state is None:
            return
        if self._state["data"] != self._data_digest:
            raise ConfigError(
                f"{self.out} has an unfinished run on other images or captions: start with "
                "another --out"
            )
        model.load_state_dict(self._state["model"])
        position = self.progress
        self.say(
            f"going on after step {position.total:,} (stage {position.stage}, epoch "
            f"{position.epoch})"
        )
        here = _conditions(self.processes)
        if self._state["conditions"] != here:
            self.say(
                f"note: the run began with {self._state['conditions']} and goes on with {here}; "
                "the numbers will not be those of an uninterrupted run to the last bit"
            )

    def restore_stage(self, engine: Engine) -> None:
        """Give a fresh engine what its stage had, and every process its random numbers."""
        state, self._state = self._state, None
        if state is None:
            return
        if state["engine"] is not None:
            engine.load_state_dict(state["engine"])
        each = state["processes"]
        self._restore_random(each)
        if len(each) == self.processes.world:
            engine.sums.copy_(each[self.processes.rank]["sums"])
        elif self.processes.main:  # of another number of processes: their sum is what counts
            engine.sums.copy_(torch.stack([one["sums"] for one in each]).sum(dim=0))

    def _restore_random(self, each: Sequence[Mapping[str, Any]]) -> None:
        if len(each) == self.processes.world:
            restore_random(each[self.processes.rank]["random"], self.processes.device)

    def save(self, model: CaptionModel, engine: Engine | None) -> None:
        """Save the state as it is between two steps.

        Args:
            model: of the run.
            engine: of the stage that goes on; None between two stages.

        Raises:
            GenerationError: the weights are no numbers any more; the last state stays.
            OutputError: it cannot be written; the last state stays.

        """
        mine = {
            "random": capture_random(self.processes.device),
            "sums": torch.zeros(4) if engine is None else engine.sums.cpu(),
        }
        each = self.processes.gather(mine)
        if self.processes.main:
            weights = model.state_dict()
            if not all(bool(t.isfinite().all()) for t in weights.values()):
                raise GenerationError(
                    f"the weights are not numbers any more at step {self.progress.total}: lower "
                    "learning_rate, or use --precision float32"
                )
            if self._log:
                self.progress.log_bytes = self._log.force()
            state = {
                "progress": asdict(self.progress),
                "recipe": _plain(self.recipe),
                "data": self._data_digest,
                "conditions": _conditions(self.processes),
                "model": weights,
                "engine": None if engine is None else engine.state_dict(),
                "processes": each,
            }
            self._files.save(state, step=self.progress.total)
        self._saved = time.monotonic()
        self.processes.wait()

    def overdue(self) -> bool:
        """Whether the last state is older than the recipe wants."""
        return time.monotonic() - self._saved > 60 * self.recipe.save_every_minutes

    def finish(self, model: CaptionModel) -> None:
        """Note that the run is over, so that starting it again says so."""
        if self._state is not None:  # killed after its last stage, and before it came to this
            self._restore_random(self._state["processes"])
        self.progress.finished = True
        self.log({"event": "finished", "steps": self.progress.total, "best": self.progress.best})
        self.save(model, None)

    def log(self, record: Mapping[str, Any]) -> None:
        """Append a record to the log."""
        if self._log:
            self._log.write(record)

    @property
    def board(self) -> Board | None:
        """TensorBoard, in the main process, where the recipe wants it."""
        return self._board

    def say(self, text: str) -> None:
        """Tell a person how it goes."""
        if self.processes.main:
            print(text, file=sys.stderr, flush=True)


def _plain(recipe: Recipe) -> dict[str, Any]:
    """Give a recipe as JSON would."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(recipe)))
    return plain


def _refuse_another(recipe: Recipe, before: Mapping[str, Any], out: Path) -> None:
    """Name the fields in which a recipe differs from that of an interrupted run."""
    old, new = _flat(before), _flat(_plain(recipe))
    changed = [
        f"{name}: {old.get(name)!r} there, {new.get(name)!r} now"
        for name in sorted(old.keys() | new.keys())
        if name not in _FREE and old.get(name) != new.get(name)
    ]
    if changed:
        raise ConfigError(
            f"{out} has the run of another recipe:\n  "
            + "\n  ".join(changed)
            + "\nstart it with another --out, or go on with the fields as they were"
        )


def _flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """Name every leaf of nested mappings and lists by its dotted path."""
    if not isinstance(values, dict | list) or not values:
        return {prefix.rstrip("."): values}
    pairs = values.items() if isinstance(values, dict) else enumerate(values)
    return {
        name: leaf for key, value in pairs for name, leaf in _flat(value, f"{prefix}{key}.").items()
    }


def _conditions(processes: Processes) -> str:
    """Say what a run's last bits depend on."""
    return (
        f"torch {torch.__version__}, {processes.world} x {processes.device.type}, "
        f"{torch.get_num_threads()} threads"
    )


def _digest(data: Data) -> str:
    digest = hashlib.sha256("\n".join(data.vocabulary.words).encode())
    for image in (*data.train, *data.validation):
        digest.update("\n".join((image.name, *image.captions, "")).encode())
    return digest.hexdigest()[:16]
