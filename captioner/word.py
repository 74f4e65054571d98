"""One word of a caption, with what is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor

from captioner.errors import ConfigError
from captioner.vision.transform import Box

__all__ = ["SHUT_GATE", "SMALL_EFFECT", "Word", "read_number"]

SHUT_GATE = 0.1
"""A gate below it has closed the view: the word comes from the sentence so far."""
SMALL_EFFECT = 0.05
"""In nats: the word loses less than a twentieth of its probability."""

# Of a record that somebody sent: what no model of ours exceeds.
_LONGEST, _CELLS, _HEADS = 200, 64, 64
_FAR = 1e3  # edges of a box in photos, effects in nats
_SUM = 0.02  # weights are rounded to six digits, and a grid has at most 4,096 cells


@dataclass(frozen=True, kw_only=True, eq=False)
class Word:
    """One word of a caption; two are equal when all that is known of them is.

    probability: of this word, given the photo and the words before it.
    gate: how much the model drew on what it saw, against what it had said (beta in the paper); None
        where the model has no gate.
    attention: (rows, columns), sums to 1, over the part of the photo that Caption.box names; None
        where the model does not attend.
    heads: (heads, rows, columns), of which attention is the mean; None where there is but one.
    effect: how much further the word's log-probability falls without the cells that it looked at
        than without others, in nats; None where nobody checked it. See captioner.deletion.
    """

    text: str
    probability: float
    gate: float | None = None
    attention: Tensor | None = field(default=None, repr=False)
    heads: Tensor | None = field(default=None, repr=False)
    effect: float | None = field(default=None, repr=False)

    def map(self, head: int | None = None) -> Tensor | None:
        """Give the attention (rows, columns) of one head, from 1; None: the mean of all.

        Raises:
            ConfigError: there is no such head.

        """
        if head is None or (head == 1 and self.heads is None):
            return self.attention
        count = 1 if self.heads is None else len(self.heads)
        if self.heads is None or not 1 <= head <= count:
            raise ConfigError(f"there is no head {head}: they go from 1 to {count}")
        return self.heads[head - 1]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Word):
            return NotImplemented
        return (
            self._known() == other._known()
            and _same(self.attention, other.attention)
            and _same(self.heads, other.heads)
        )

    def __hash__(self) -> int:
        return hash(self._known())

    def _known(self) -> tuple[object, ...]:
        return self.text, self.probability, self.gate, self.effect

    @property
    def drawn(self) -> float:
        """How much it drew on the photo; without a gate, how much of its attention one cell has."""
        if self.gate is not None:
            return self.gate
        return 0.0 if self.attention is None else float(self.attention.max())

    @property
    def guessed(self) -> bool:
        """Whether it came from the words before it rather than from the photo.

        Where the effect was measured, it is below SMALL_EFFECT; elsewhere the gate is below
        SHUT_GATE. A word of which neither is known counts as seen.
        """
        if self.effect is not None:
            return self.effect < SMALL_EFFECT
        return self.gate is not None and self.gate < SHUT_GATE

    def record(self, *, box: Box | None = None) -> dict[str, Any]:
        """Give the word as a part of the caption's record.

        Args:
            box: the part of the photo that the weights cover, row by row; None leaves them out.

        """
        record: dict[str, Any] = {"word": self.text, "probability": round(self.probability, 4)}
        if self.gate is not None:
            record["gate"] = round(self.gate, 4)
        if self.effect is not None:
            record["effect"] = round(self.effect, 4)
        if box is not None and self.attention is not None:
            rows, columns = self.attention.shape
            record["attention"] = {
                "rows": rows,
                "columns": columns,
                "box": [round(edge, 6) for edge in box],
                "weights": _rounded(self.attention),
            }
            if self.heads is not None:
                record["attention"]["heads"] = [_rounded(head) for head in self.heads]
        return record

    @classmethod
    def from_record(cls, record: object) -> tuple[Word, Box | None]:
        """Make a word of its part of a record, and give the part of the photo that it looked at.

        Raises:
            ConfigError: it is no such part, or a number of it is out of range.

        """
        if not isinstance(record, Mapping) or not isinstance(record.get("word"), str):
            raise ConfigError("a word of the record has no text")
        text = record["word"][:_LONGEST]

        def number(name: str, low: float = 0.0, high: float = 1.0) -> float | None:
            value = record.get(name)
            return None if value is None else read_number(value, f"{name} of {text!r}", low, high)

        word = cls(
            text=text,
            probability=read_number(record.get("probability"), f"probability of {text!r}"),
            gate=number("gate"),
            effect=number("effect", -_FAR, _FAR),
        )
        seen = record.get("attention")
        if seen is None:
            return word, None
        place = f"attention of {text!r}"
        if not isinstance(seen, Mapping):
            raise ConfigError(f"{place} is no object")
        sides = seen.get("rows"), seen.get("columns")
        if not all(type(side) is int and 1 <= side <= _CELLS for side in sides):
            raise ConfigError(f"{place} has no rows and columns from 1 to {_CELLS}")
        rows, columns = cast("tuple[int, int]", sides)
        box = _read_box(seen.get("box"), place)
        weights = _read_weights(seen.get("weights"), rows, columns, place)
        heads = seen.get("heads")
        if heads is None:
            return replace(word, attention=weights), box
        if not isinstance(heads, list) or not 1 <= len(heads) <= _HEADS:
            raise ConfigError(f"{place} has no 1 to {_HEADS} heads")
        own = torch.stack([_read_weights(head, rows, columns, place) for head in heads])
        return replace(word, attention=weights, heads=own), box


def _read_box(box: object, place: str) -> Box:
    if not isinstance(box, list) or len(box) != 4:
        raise ConfigError(f"{place} has no box of left, top, right and bottom")
    left, top, right, bottom = (read_number(edge, f"box of {place}", -_FAR, _FAR) for edge in box)
    if not (left < right and top < bottom):
        raise ConfigError(f"box of {place} is empty")
    return Box(left, top, right, bottom)


def _read_weights(weights: object, rows: int, columns: int, place: str) -> Tensor:
    if not isinstance(weights, list) or len(weights) != rows * columns:
        raise ConfigError(f"{place} has not {rows} x {columns} weights")
    found = torch.tensor([read_number(weight, f"weight of {place}") for weight in weights])
    if abs(float(found.sum()) - 1) > _SUM:
        raise ConfigError(f"weights of {place} do not sum to 1")
    return found.view(rows, columns)


def read_number(value: object, name: str, low: float = 0.0, high: float = 1.0) -> float:
    """Read a number of a record.

    Raises:
        ConfigError: it is none, or out of its range.

    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not low <= cast(float, value) <= high:  # NaN is in no range
        raise ConfigError(f"{name} is out of range: a number from {low:g} to {high:g}")
    return float(cast(float, value))


def _rounded(weights: Tensor) -> list[float]:
    return [round(weight, 6) for weight in weights.flatten().tolist()]


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one.detach().float().cpu(), other.detach().float().cpu())
