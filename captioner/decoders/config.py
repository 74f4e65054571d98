"""Which decoder, how it attends, and its sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Interval

from captioner.attention.positions import POSITIONS
from captioner.attention.scores import SCORES, build_score, check_heads
from captioner.errors import ConfigError
from captioner.vision.bounds import EXPLAINED, Fraction, OneOf, Width, check_bounds

__all__ = ["DECODERS", "DecoderConfig"]

DECODERS = {
    "lstm": "captioner.decoders.lstm:LSTMDecoder",
    "top_down": "captioner.decoders.top_down:TopDownDecoder",
    "transformer": "captioner.decoders.transformer:TransformerDecoder",
}
"""Where the class of each `DecoderConfig.kind` is, as MODULE:CLASS; a decoder of one's own is a row
more (docs/design.md)."""


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Which decoder, how it attends, and the sizes that are free to choose.

    Those that follow from data and encoder, the vocabulary's size and the features of a grid cell,
    are arguments of `build_decoder`.

    Raises ConfigError: a value cannot work; the detail names every such field.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = EXPLAINED

    kind: Annotated[str, OneOf(DECODERS)] = "lstm"
    """The kind of decoder; older files do not say."""
    score: Annotated[str, OneOf(SCORES)] = "additive"
    """How the grid is looked at; see captioner.attention.scores."""
    heads: Width = 1
    """Each looks for itself, with its part of attention_dim and value_dim."""
    query: Literal["previous", "current"] = "previous"
    """What the lstm looks with: the hidden state before a word is read (Show, Attend and Tell), or
    after (Luong et al. 2015). The other kinds leave no choice."""
    positions: Annotated[str, OneOf(POSITIONS)] = "none"
    """Tells the cells, and a transformer's words, where they are; see
    captioner.attention.positions."""
    scaled_positions: bool = True
    """Whether positions begin as loud as what they place, and learn how loud to be; older files,
    which do not say, add them as they are."""
    encoder_layers: Annotated[int, Interval(ge=0, le=100)] = 0
    """Layers of self-attention between the cells of the grid, hidden_dim wide, before any decoder
    looks at them."""
    layers: Annotated[int, Interval(ge=1, le=100)] = 2
    """Of the transformer."""
    norm: Literal["pre", "post"] = "pre"
    """Where the transformer normalises: before each part, which trains without a slow start, or
    after it and its input are added up, as in Vaswani et al. 2017."""
    embedding_dim: Width = 512
    """m: words, and the deep output layer, which shares their matrix."""
    hidden_dim: Width = 512
    """n: hidden and cell state; the width of the transformer."""
    attention_dim: Width = 256
    """A: A numbers a cell and hypothesis are much of a step on a CPU."""
    value_dim: Width | None = None
    """V: None attends over the raw features, as the paper does."""
    dropout: Fraction = 0.3
    """On embedded words and before the output; 0.5 starves small data sets."""

    def __post_init__(self) -> None:
        check_bounds(self, also=self._contradictions())

    def _contradictions(self) -> Iterator[str]:
        """Name what each field allows and all of them together do not."""
        if self.query == "current" and self.kind != "lstm":
            yield f"query 'current' is a choice of kind lstm alone, not of {self.kind}"
        projected = self.kind == "transformer" or self.value_dim is not None
        layered = self.kind == "transformer" or self.encoder_layers > 0
        if layered and self.positions == "sine" and self.hidden_dim < 4:
            yield (
                f"positions 'sine' need a hidden_dim of at least 4, not {self.hidden_dim}: a "
                "sine and a cosine of the row, and of the column"
            )
        if not projected and (self.heads > 1 or not SCORES[self.score].projects):
            which = f"heads {self.heads}" if self.heads > 1 else f"score {self.score!r}"
            yield (
                f"{which} needs projected values: set value_dim, to hidden_dim "
                f"{self.hidden_dim} for instance"
            )
            return
        values = self.value_dim or self.hidden_dim
        try:
            if layered:
                check_heads(self.heads, hidden_dim=self.hidden_dim)
            if self.value_dim is not None:
                check_heads(self.heads, value_dim=values)
            with torch.device("meta"):  # what cannot be made says why
                build_score(
                    self.score,
                    query_dim=self.hidden_dim,
                    key_dim=values,
                    attention_dim=self.attention_dim,
                    heads=self.heads,
                )
        except ConfigError as error:
            yield error.detail
