"""What is wrong with a data set, gathered and told in one go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from captioner.errors import DataError

__all__ = ["KINDS", "Problems"]

# Each kind of problem, and what --skip-bad does about it.
KINDS: Final[Mapping[str, str]] = {
    "missing image": "the image is left out",
    "corrupt image": "the image is left out",
    "unreadable captions": "the file is left out, and its image with it",
    "image without caption": "the image is left out",
    "empty caption": "the caption is left out",
    "caption that is no text": "the caption is left out",
    "duplicate id": "the first one counts",
    "image in two splits": "it stays where it is scored: in test, else in val",
    "caption of an unknown image": "the caption is left out",
    "incomplete row": "the row is left out",
    "row with too many cells": "the row is left out",
}
_EXAMPLES = 5  # enough to see what they have in common


class _Tally:
    """Counts by kind, with the first examples of each."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._examples: dict[str, list[str]] = {}

    def add(self, kind: str, example: str, count: int) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + count
        examples = self._examples.setdefault(kind, [])
        if example and len(examples) < _EXAMPLES:
            examples.append(example)

    def line(self, kind: str) -> str:
        examples = "; ".join(self._examples[kind])
        if not examples:
            return kind
        more = "; ..." if self.counts[kind] > len(self._examples[kind]) else ""
        return f"{kind}: {self.counts[kind]:,} ({examples}{more})"


class Problems:
    """Problems by kind, which stop the preparation, and notes, which do not."""

    def __init__(self) -> None:
        self._problems = _Tally()
        self._notes = _Tally()
        self._hints: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._problems.counts)

    @property
    def counts(self) -> dict[str, int]:
        """How many problems there are of each kind."""
        return self._problems.counts

    def add(self, kind: str, example: str, *, count: int = 1) -> None:
        """Count a problem of one of KINDS; `example` names the file, id or line."""
        self._problems.add(kind, example, count)

    def explain(self, kind: str, hint: str) -> None:
        """Say what may help against a kind of problem."""
        told = self._hints.get(kind)
        self._hints[kind] = f"{told}; {hint}" if told else hint

    def note(self, kind: str, example: str = "") -> None:
        """Say something that a reader should know, though nothing is wrong with the data."""
        self._notes.add(kind, example, 1)

    def notes(self) -> list[str]:
        """Say all notes, a line each."""
        return [self._notes.line(kind) for kind in self._notes.counts]

    def refuse(self, kind: str, name: str) -> None:
        """Refuse a file, called `name`, that has a kind of problem, where nothing is left out.

        Raises:
            DataError: it has.

        """
        if kind in self.counts:
            raise DataError(f"{name} cannot be used: {self._problems.line(kind)}")

    def report(self) -> str:
        """Say all problems, a line a kind."""
        lines = []
        for kind in KINDS:
            if kind in self.counts:
                lines.append(f"  {self._problems.line(kind)}")
                if kind in self._hints:
                    lines.append(f"    {self._hints[kind]}")
        return "\n".join(lines)
