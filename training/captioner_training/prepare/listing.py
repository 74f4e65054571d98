"""What a data set lists: its images with their captions, and what is wrong with them."""

from __future__ import annotations

from typing import NamedTuple

from captioner.errors import DataError

__all__ = ["ListedImage", "Problems"]

_EXAMPLES = 5  # enough to see what they have in common


class ListedImage(NamedTuple):
    """An image as a table, a json file or a folder names it."""

    id: int | str
    file_name: str
    captions: tuple[str, ...]
    split: str | None = None  # None: drawn by Fractions
    licence: str | None = None


class Problems:
    """Problems by kind, which stop the preparation, and notes, which do not."""

    def __init__(self) -> None:
        self._problems: dict[str, list[str]] = {}
        self._notes: dict[str, list[str]] = {}
        self._hints: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._problems)

    @property
    def counts(self) -> dict[str, int]:
        """The number of problems of each kind."""
        return {kind: len(examples) for kind, examples in self._problems.items()}

    def add(self, kind: str, example: str, *, count: int = 1) -> None:
        """Count a problem, or several; `example` names the file, id or line."""
        self._problems.setdefault(kind, []).extend([example] * count)

    def explain(self, kind: str, hint: str) -> None:
        """Say what may help against a kind of problem."""
        self._hints[kind] = f"{self._hints[kind]}; {hint}" if kind in self._hints else hint

    def note(self, kind: str, example: str = "") -> None:
        """Say something that a reader should know, though nothing is wrong with the data."""
        self._notes.setdefault(kind, []).append(example)

    def notes(self) -> list[str]:
        """Give all notes, a line a kind."""
        return [_line(kind, examples) for kind, examples in self._notes.items()]

    def refuse(self, kind: str, name: str) -> None:
        """Raise DataError for a file, called `name`, that has a kind of problem."""
        if kind in self._problems:
            raise DataError(f"{name} cannot be used: {_line(kind, self._problems[kind])}")

    def report(self) -> str:
        """Give all problems, a line a kind, each with its hint below."""
        lines = []
        for kind, examples in self._problems.items():
            lines.append(f"  {_line(kind, examples)}")
            if kind in self._hints:
                lines.append(f"    {self._hints[kind]}")
        return "\n".join(lines)


def _line(kind: str, examples: list[str]) -> str:
    different = list(dict.fromkeys(filter(None, examples)))
    if not different:
        return kind
    more = "; ..." if len(different) > _EXAMPLES else ""
    return f"{kind}: {len(examples):,} ({'; '.join(different[:_EXAMPLES])}{more})"
