"""The alternative sentences of a caption as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from captioner.vision.transform import Box
from captioner.word import Word


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """An alternative sentence; fields as in Caption."""

    text: str
    score: float
    words: tuple[Word, ...] = field(repr=False)
    trust: float | None = None

    def record(self, *, box: Box | None = None) -> dict[str, Any]:
        """Return the sentence's part of a caption's record, with attention if `box` is given."""
        record: dict[str, Any] = {"caption": self.text, "score": round(self.score, 4)}
        if self.trust is not None:
            record["trust"] = round(self.trust, 4)
        return {**record, "words": [word.record(box=box) for word in self.words]}
