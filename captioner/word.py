"""The words of a caption as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from captioner.drawing.overlay import WHOLE, attention_density
from captioner.errors import ConfigError
from captioner.record import WordRecord
from captioner.trust.trust import DOUBTFUL, DOUBTFUL_SUBJECT
from captioner.vision.transform import Box


@dataclass(frozen=True, kw_only=True, eq=False)
class Word:
    """A word of a caption. Words are equal if all fields but `subject` are.

    probability: the probability of the word, given the photo and the words before it.
    gate: the share of the context that comes from the photo, 0 to 1 (beta in the paper); None if
        the model has no gate.
    attention: float32 (rows, columns), sums to 1, over the part of the photo in Caption.box; None
        if the model has no attention.
    heads: float32 (heads, rows, columns), whose mean is `attention`; None if there is one head.
    effect: the fall of the word's log-probability without the attended cells minus the fall without
        random cells, in nats; None if not measured. See captioner.deletion.
    trust: the probability that the word is right; None if the checkpoint has no trust, and for
        words without a claim, such as "a" or "group". See captioner.trust.trust.
    subject: whether the word is the caption's first noun. `doubtful` uses a higher limit for it.
    """

    text: str
    probability: float
    gate: float | None = None
    attention: NDArray[np.float32] | None = field(default=None, repr=False)
    heads: NDArray[np.float32] | None = field(default=None, repr=False)
    effect: float | None = field(default=None, repr=False)
    trust: float | None = field(default=None, repr=False)
    subject: bool = field(default=False, repr=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Word) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((self.text, self.probability))

    def _key(self) -> tuple[object, ...]:
        maps = [None if part is None else part.tolist() for part in (self.attention, self.heads)]
        return self.text, self.probability, self.gate, self.effect, self.trust, maps

    def map(self, head: int | None = None) -> NDArray[np.float32] | None:
        """Return the attention (rows, columns) of a head, from 1; None: the mean of all heads.

        Raises ConfigError: there is no such head.
        """
        heads = [self.attention] if self.heads is None else [*self.heads]
        if head is None:
            return self.attention
        if not 1 <= head <= len(heads):
            raise ConfigError(f"there is no head {head}: choose from 1 to {len(heads)}")
        return heads[head - 1]

    def attention_map(
        self,
        size: tuple[int, int],
        *,
        box: Box = WHOLE,
        head: int | None = None,
        smooth: bool = True,
    ) -> NDArray[np.float32]:
        """Return the attention to each pixel of a photo: float32 (height, width), sums to 1.

        Args:
            size: width and height of the photo.
            box: the box of the caption; the attention outside the box is 0.
            head: the number of the head, from 1; None: the mean of all heads.
            smooth: interpolate linearly between cells; False: cells are constant.

        Raises ConfigError: the model has no attention, or no such head.
        """
        weights = self.map(head)
        if weights is None:
            raise ConfigError("the model has no attention")
        return attention_density(weights, size, box=box, smooth=smooth)

    def head_label(self, head: int | None = None) -> str:
        """Return a label for the weights of `map(head)`; "" if the model has one head."""
        if self.heads is None:
            return ""
        count = len(self.heads)
        return f"mean of {count} heads" if head is None else f"head {head} of {count}"

    @property
    def visual_share(self) -> float:
        """The gate; without a gate, the largest attention weight."""
        if self.gate is not None:
            return self.gate
        return 0.0 if self.attention is None else float(self.attention.max())

    @property
    def doubtful(self) -> bool:
        """Whether the trust is below the limit; False if the trust is None."""
        limit = DOUBTFUL_SUBJECT if self.subject else DOUBTFUL
        return self.trust is not None and self.trust < limit

    def record(self, *, box: Box | None = None) -> dict[str, Any]:
        """Return the word's part of the caption's record, with its attention if `box` is given."""
        record: dict[str, Any] = {"word": self.text, "probability": round(self.probability, 4)}
        if self.trust is not None:
            record["trust"] = round(self.trust, 4)
        if self.doubtful:  # a word's trust does not show whether it is the subject
            record["doubtful"] = True
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


def read_word(read: WordRecord) -> Word:
    """Make a word from its part of a record."""
    word = Word(
        text=read.word,
        probability=read.probability,
        trust=read.trust,
        subject=read.doubtful is True,
        gate=read.gate,
        effect=read.effect,
    )
    if (attention := read.attention) is None:
        return word

    def table(weights: Sequence[float]) -> NDArray[np.float32]:
        return np.array(weights, np.float32).reshape(attention.rows, attention.columns)

    heads = None
    if attention.heads is not None:
        heads = np.stack([table(head) for head in attention.heads])
    return replace(word, attention=table(attention.weights), heads=heads)


def _rounded(weights: NDArray[np.float32]) -> list[float]:
    # The same as round(), because a float32 times 10^6 is exact in float64.
    rounded: list[float] = np.round(weights.ravel().astype(np.float64), 6).tolist()
    return rounded
