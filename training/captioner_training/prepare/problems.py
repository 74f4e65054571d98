"""What is wrong with a data set, gathered and told in one go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["KINDS", "Problems"]

# Each kind of problem, and what --skip-bad does about it.
KINDS: Final[Mapping[str, str]] = {
    "missing image": "the image is left out",
    "corrupt image": "the image is left out",
    "image without caption": "the image is left out",
    "empty caption": "the caption is left out",
    "duplicate id": "the first one counts",
    "image in two splits": "it stays where it is scored: in test, else in val",
    "caption of an unknown image": "the caption is left out",
    "incomplete row": "the row is left out",
}
_EXAMPLES = 5  # enough to see what they have in common


class Problems:
    """Counts of problems by kind, with the first examples of each."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._examples: dict[str, list[str]] = {}

    def __bool__(self) -> bool:
        return bool(self.counts)

    def add(self, kind: str, example: str, *, count: int = 1) -> None:
        """Count a problem of one of KINDS; `example` names the file, id or line."""
        self.counts[kind] = self.counts.get(kind, 0) + count
        examples = self._examples.setdefault(kind, [])
        if len(examples) < _EXAMPLES:
            examples.append(example)

    def report(self) -> str:
        """Say all of it, a line a kind."""
        lines = []
        for kind in KINDS:
            if count := self.counts.get(kind, 0):
                examples = "; ".join(self._examples[kind])
                more = "; ..." if count > len(self._examples[kind]) else ""
                lines.append(f"  {kind}: {count:,} ({examples}{more})")
        return "\n".join(lines)
