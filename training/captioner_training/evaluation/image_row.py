"""One image of a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["ImageRow", "best_and_worst"]


@dataclass(frozen=True, kw_only=True)
class ImageRow:
    """What a report says of one image.

    cider, rouge_l: in percent; score: mean log-probability, None for captions made elsewhere;
    familiarity: in 0..1, None where it is not known; invented: categories that the caption names
    and no reference does; cross_entropy: of the references, in nats a token, and how many tokens
    they have, None where nobody asked.
    """

    id: int | str
    name: str
    caption: str
    references: tuple[str, ...]
    cider: float
    rouge_l: float
    score: float | None = None
    familiarity: float | None = None
    invented: tuple[str, ...] = ()
    cross_entropy: float | None = None
    reference_tokens: int | None = None

    def record(self) -> dict[str, Any]:
        """Give the row as JSON has it."""
        values = {key: value for key, value in asdict(self).items() if value is not None}
        values["CIDEr"], values["ROUGE-L"] = values.pop("cider"), values.pop("rouge_l")
        return values


def best_and_worst(rows: Sequence[ImageRow], count: int) -> tuple[list[int], list[int]]:
    """Find the places of the images with the highest and the lowest CIDEr-D; none is in both."""
    count = min(count, len(rows) // 2)
    order = sorted(range(len(rows)), key=lambda at: (rows[at].cider, rows[at].rouge_l))
    return order[::-1][:count], order[:count]
