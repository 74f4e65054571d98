"""The files of a run: where they lie, and that none of them is somebody else's."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from captioner.errors import ConfigError, OutputError
from captioner_serving.batch.inputs.sources import Inputs
from captioner_serving.batch.journal.commits import settings_of

__all__ = ["RunFiles", "check_free", "file_digest"]


@dataclass(frozen=True, kw_only=True)
class RunFiles:
    """What a run writes.

    output: what was asked for; records: the journal, which is the output itself where that has a
    record a line; errors, progress, written: beside the output; review: the unsure records, or
    None.

    Raises:
        ConfigError: the review is one of the others.

    """

    output: Path
    records: Path
    errors: Path
    progress: Path
    written: Path
    review: Path | None

    @classmethod
    def beside(cls, output: str, review: str | None) -> RunFiles:
        """Name the files that belong to an output."""
        return cls(
            output=Path(output),
            records=Path(output if output.endswith(".jsonl") else f"{output}.journal.jsonl"),
            errors=Path(f"{output}.errors.jsonl"),
            progress=Path(f"{output}.progress.jsonl"),
            written=Path(f"{output}.written.jsonl"),
            review=None if review is None else Path(review),
        )

    def __post_init__(self) -> None:
        own = {os.path.realpath(path) for path in self._own}
        if any(os.path.realpath(path) in own for path in self._of_review):
            raise ConfigError(
                f"review {self.review} is a file that the run itself writes: name another"
            )

    @property
    def review_name(self) -> str | None:
        """The review as seen from the output: the same file, whatever the current folder is."""
        return None if self.review is None else _seen_from(self.output, self.review)

    @property
    def review_owner(self) -> Path | None:
        """The file that says whose the review is, where an output of its name has its progress."""
        if self.review is None:
            return None
        return Path(f"{os.path.realpath(self.review)}.progress.jsonl")

    @property
    def beside_records(self) -> tuple[Path, ...]:
        """What `captions-*.jsonl` matches beside the records, and has no captions."""
        return self.errors, self.progress, self.written

    @property
    def _own(self) -> tuple[Path, ...]:
        return self.output, self.records, *self.beside_records

    @property
    def _of_review(self) -> tuple[Path, ...]:
        return tuple(filter(None, (self.review, self.review_owner)))

    @property
    def all(self) -> tuple[Path, ...]:
        """Every file that the run may write, but for sidecars and maps."""
        return (*self._own, *self._of_review)

    def check_apart(self, inputs: Inputs) -> None:
        """Refuse to write over what is to be read.

        Raises:
            ConfigError: one of the files is an input.

        """
        written = {os.path.realpath(path) for path in self.all}
        for source in (*inputs.sources, *inputs.lists):
            if os.path.realpath(source) in written:
                raise ConfigError(f"{source} is an input, and would be written to: name another")

    def check_review(self) -> str | None:
        """Give the output as seen from the review, unless another run has that: lines may come.

        Raises:
            OutputError: the review is another run's, or the output is a review.

        """
        owner = self.review_owner
        own = None if owner is None else _seen_from(owner, self.output)
        for path, log, wanted in ((self.output, self.progress, None), (self.review, owner, own)):
            known = None if log is None else settings_of(log)
            if known is not None and (other := known.get("review_of")) != wanted:
                what = f"the review of {other}" if other else "the output of another run"
                raise OutputError(
                    f"{path} is {what}: name another file, or remove {log} where that run is gone "
                    "for good"
                )
        return own

    def check_unused(self) -> None:
        """Refuse to begin a run over files that no run has left.

        Raises:
            OutputError: one of them has something in it.

        """
        for path in (self.output, self.records, self.errors, self.written, self.review):
            if path is not None:
                check_free(path)


def _seen_from(place: Path, path: Path) -> str:
    """Name a file by its way from another one: the same, whatever the current folder is."""
    return os.path.relpath(os.path.realpath(path), os.path.realpath(place.absolute().parent))


def file_digest(path: Path) -> str:
    """Digest what is in a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_free(path: Path) -> None:
    """See that nothing is in a file, or that there is none.

    Raises:
        OutputError: there is.

    """
    if os.path.lexists(path) and not (path.is_file() and path.stat().st_size == 0):
        raise OutputError(
            f"{path} already exists, and no run has left its progress beside it: "
            "choose another name, or move the file away"
        )
