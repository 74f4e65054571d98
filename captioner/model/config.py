"""The configuration of a decoder: its kind, its attention and its sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Interval

from captioner.errors import ConfigError
from captioner.model.positions import POSITIONS
from captioner.model.scores import SCORES, build_score, check_heads
from captioner.shared.settings import EXPLAINED, Fraction, OneOf, Width, check_bounds

DECODERS = {
    "lstm": "captioner.model.lstm:LSTMDecoder",
    "top_down": "captioner.model.top_down:TopDownDecoder",
    "transformer": "captioner.model.transformer:TransformerDecoder",
}
"""The class of each `DecoderConfig.kind`, as MODULE:CLASS; see docs/design.md for adding one."""


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """The kind of a decoder, its attention and its sizes.

    Sizes that follow from data and encoder (vocabulary, features of a grid cell) are arguments of
    `build_decoder`.

    Raises ConfigError: values are out of range or contradict each other; the message names each.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = EXPLAINED

    kind: Annotated[str, OneOf(DECODERS)] = "lstm"
    """A name in DECODERS."""
    score: Annotated[str, OneOf(SCORES)] = "additive"
    """The score function of the attention; see captioner.model.scores."""
    heads: Width = 1
    """The number of attention heads; each gets a part of attention_dim and value_dim."""
    query: Literal["previous", "current"] = "previous"
    """For lstm: attend with the hidden state before the word (Show, Attend and Tell) or after it
    (Luong et al. 2015)."""
    positions: Annotated[str, OneOf(POSITIONS)] = "none"
    """Positional encodings of cells, and of a transformer's words; see
    captioner.model.positions."""
    scaled_positions: bool = True
    """Whether the encodings are scaled to the features. Older checkpoints have False."""
    encoder_layers: Annotated[int, Interval(ge=0, le=100)] = 0
    """The number of transformer layers over the grid before the decoder; hidden_dim wide."""
    layers: Annotated[int, Interval(ge=1, le=100)] = 2
    """The number of layers of a transformer decoder."""
    norm: Literal["pre", "post"] = "pre"
    """The place of a transformer's norms: before each sublayer, which needs no warm-up, or after
    it, as in Vaswani et al. 2017."""
    embedding_dim: Width = 512
    """m, the size of word embeddings and of the deep output."""
    hidden_dim: Width = 512
    """n, the size of hidden and cell state; the width of the transformer."""
    attention_dim: Width = 256
    """A, the size of projected queries and keys."""
    value_dim: Width | None = None
    """V, the size of projected values; None: no projection, as in the paper."""
    dropout: Fraction = 0.3
    """Dropout on embedded words and before the output."""

    def __post_init__(self) -> None:
        check_bounds(self, also=self._contradictions())

    def _contradictions(self) -> Iterator[str]:
        """Yield contradictions between fields that are valid individually."""
        if self.query == "current" and self.kind != "lstm":
            yield f"query 'current' needs kind lstm, not {self.kind}"
        projected = self.kind == "transformer" or self.value_dim is not None
        layered = self.kind == "transformer" or self.encoder_layers > 0
        if layered and self.positions == "sine" and self.hidden_dim < 4:
            yield (f"positions 'sine' need a hidden_dim of at least 4, not {self.hidden_dim}")
        if not projected and (self.heads > 1 or not SCORES[self.score].projects):
            setting = f"heads {self.heads}" if self.heads > 1 else f"score {self.score!r}"
            yield (
                f"{setting} needs projected values: set value_dim, for example to hidden_dim, "
                f"{self.hidden_dim}"
            )
            return
        values = self.value_dim or self.hidden_dim
        sizes = {"query_dim": self.hidden_dim, "attention_dim": self.attention_dim}
        try:
            if layered:
                check_heads(self.heads, hidden_dim=self.hidden_dim)
            if self.value_dim is not None:
                check_heads(self.heads, value_dim=values)
            with torch.device("meta"):  # checks sizes without allocating memory
                build_score(self.score, key_dim=values, heads=self.heads, **sizes)
        except ConfigError as error:
            yield error.detail
