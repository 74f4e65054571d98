"""A run's folder: whose run it has, what can be gone on with, and what stays when it is over."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from captioner.checkpoint import Checkpoint, load_checkpoint
from captioner.errors import ConfigError, OutputError
from captioner.files import replace_file
from captioner.model import ModelConfig
from captioner_training.data.grids import GRIDS_FILES
from captioner_training.distributed import Processes
from captioner_training.lock import locked
from captioner_training.precision import settled
from captioner_training.progress import Progress
from captioner_training.recipe import Recipe
from captioner_training.run_recipe import (
    CHECKPOINTS,
    Note,
    goes_on,
    plain,
    read_note,
    refuse_foreign,
    refuse_own_weights,
    with_defaults,
)
from captioner_training.state_files import StateFiles, remove_files

__all__ = ["RunFolder"]


class RunFolder:
    """The folder that a run writes into. Only the main process writes.

    Attributes:
        recipe: as asked for; once the folder is open, with its precision settled.
        state: of the interrupted run that is there, or None.
        finished: what is known of the finished run that is there, or None.
        longer: whether the recipe has more epochs than that finished run, and goes on from it.
        shared: where grids and drawn scenes are, which other runs may use too.

    """

    def __init__(
        self, recipe: Recipe, out: Path, *, processes: Processes, shared: Path | None = None
    ) -> None:
        self.recipe, self.out, self.processes = recipe, out, processes
        self.shared = out if shared is None else shared
        self.files = StateFiles(out / "state", keep=recipe.keep_states)
        self.best, self.last = (out / name for name in CHECKPOINTS)
        self.state = self.files.load()
        self.finished = read_note(out)
        self.longer = False

    @classmethod
    @contextmanager
    def open(
        cls, recipe: Recipe, out: Path, processes: Processes, *, shared: Path | None = None
    ) -> Iterator[RunFolder]:
        """Open a folder: a new one, or that of a run of the same recipe.

        Raises:
            ConfigError: it has the run of another recipe, files of others where this one would
                write, or the weights that it goes on from.
            DataError: it has states, none of which can be read.
            OutputError: it cannot be written, or another process trains in it.

        """
        with ExitStack() as stack:
            lock = locked(out / "lock", verb="train", what=out)
            processes.main_alone(lambda: stack.enter_context(lock))
            folder = processes.main_first(lambda: cls._read(recipe, out, processes, shared))
            there = folder._there()
            folder.recipe = settled(recipe, processes, before=there and with_defaults(there[0]))
            yield folder

    @classmethod
    def _read(
        cls, recipe: Recipe, out: Path, processes: Processes, shared: Path | None
    ) -> RunFolder:
        folder = cls(recipe, out, processes=processes, shared=shared)
        folder._check_recipe()
        return folder

    def _check_recipe(self) -> None:
        """Compare the recipe with that of the run that is there."""
        refuse_own_weights(self.recipe, self.out)
        if (there := self._there()) is None:
            refuse_foreign(self.recipe, self.out)
            return
        going = goes_on(there[0], self.recipe, self.out, finished=self.finished is not None)
        if going == "anew":
            self.state = self.finished = None
        self.longer = going == "longer"

    def _there(self) -> tuple[dict[str, Any], str] | None:
        """Give the recipe of the run that is there, and the digest of its data."""
        if self.finished is not None:
            return self.finished.recipe, self.finished.data
        return None if self.state is None else (self.state["recipe"], self.state["data"])

    def begin(self) -> None:
        """Write the recipe; remove what is left of a run that does not go on.

        Raises:
            OutputError: the folder cannot be written.

        """
        if not self.processes.main:
            return
        try:
            # Where the folder is, a run has begun that may do so again: see refuse_foreign.
            self.files.folder.mkdir(parents=True, exist_ok=True)
            if self.state is None:
                self.files.clear()
            if not self.longer:
                (self.out / "finished.json").unlink(missing_ok=True)
        except OSError as error:
            raise OutputError(f"{self.out} cannot be written: {error.strerror}") from error
        with replace_file(self.out / "recipe.json") as file:
            file.write((json.dumps(plain(self.recipe), indent=2) + "\n").encode())

    def save(self, state: Mapping[str, Any], *, digest: str) -> None:
        """Write a state of the run; a finished run that goes on is an unfinished one from then on.

        Raises:
            OutputError: it cannot be written; the last state stays.

        """
        if self.processes.main:
            about = {"recipe": plain(self.recipe), "data": digest}
            self.files.save({**state, **about}, step=state["progress"]["total"])
            (self.out / "finished.json").unlink(missing_ok=True)
        self.processes.wait()

    def refuse_other_data(self, digest: str) -> None:
        """Refuse to go on with other images or captions than the run began with.

        Raises:
            ConfigError: they are others.

        """
        there = self._there()
        if there is not None and there[1] != digest:
            kind = "a finished" if self.finished else "an unfinished"
            raise ConfigError(
                f"{self.out} has {kind} run on other images or captions, or from a "
                "model with other words: start with another --out"
            )

    def checkpoint_of_finished(self) -> Checkpoint:
        """Read the best checkpoint of the finished run.

        Raises:
            ConfigError: it is no longer there, or another model is in its place.

        """
        if not self.best.is_file():
            raise ConfigError(
                f"the run in {self.out} is finished, but {self.best} is gone: put it back, or "
                "start again with another --out"
            )
        checkpoint = load_checkpoint(self.best)
        there = checkpoint.model.config
        # An untouched model has its own dropout, in which a recipe may differ from it.
        ours = replace(self.recipe.decoder, dropout=there.decoder.dropout)
        if there != ModelConfig(encoder=self.recipe.encoder, decoder=ours):
            raise ConfigError(
                f"{self.best} is not the checkpoint of the run that is finished there: put that "
                "back, or start again with another --out"
            )
        return checkpoint

    def keep(self, checkpoint: Checkpoint, *, best: bool) -> None:
        """Write last.safetensors, and best.safetensors where it is the best.

        Raises:
            OutputError: they cannot be written.

        """
        if self.processes.main:
            checkpoint.save(self.last)
            if best:
                checkpoint.save(self.best)

    def keep_untouched(self, origin: Checkpoint) -> None:
        """Write the checkpoint that the run goes on from as the best one so far.

        Raises:
            OutputError: it cannot be written.

        """
        if self.processes.main:
            origin.save(self.best)

    def finish(self, *, digest: str, progress: Progress) -> None:
        """Note that the run is over, and remove what only an unfinished one needs.

        Raises:
            OutputError: the note cannot be written.

        """
        if not self.processes.main:
            return
        note = Note(recipe=plain(self.recipe), data=digest, progress=progress)
        with replace_file(self.out / "finished.json") as file:
            file.write((json.dumps(asdict(note), indent=2) + "\n").encode())
        if not self.recipe.keep_files:
            with suppress(OSError):  # files of others may lie there: they stay, and their folder
                self.files.clear()
                self.files.folder.rmdir()
            cache = self.out / "cache"
            with suppress(OSError):
                if not cache.is_symlink():  # else other runs may have it too
                    remove_files(cache, GRIDS_FILES)
                    cache.rmdir()
