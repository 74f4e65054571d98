"""Which decoder, and its sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from captioner.bounds import Fraction, Positive, check_bounds

__all__ = ["DecoderConfig"]


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Which decoder, and the sizes that are free to choose.

    Those that follow from data and encoder, the vocabulary's size and the features of a grid cell,
    are arguments of `build_decoder`.

    Raises:
        ConfigError: a value cannot work; the detail names every such field.

    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}  # in recipes

    kind: Literal["lstm"] = "lstm"  # see captioner.decoders.build; older files do not say
    embedding_dim: Positive = 512  # m: words, and the deep output layer, which shares their matrix
    hidden_dim: Positive = 512  # n: the LSTM's hidden and cell state
    attention_dim: Positive = 256  # A: A numbers a cell and hypothesis are much of a step on a CPU
    value_dim: Positive | None = None  # V: None attends over the raw features, as the paper does
    score: str = "additive"  # the score function, by its name in captioner.attention
    dropout: Fraction = 0.3  # on embedded words and before the output; 0.5 starves small data sets

    def __post_init__(self) -> None:
        check_bounds(self)
