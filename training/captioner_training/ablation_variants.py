"""The decoders that an ablation compares."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from typing import Literal, get_args

import torch

from captioner.decoders.config import DecoderConfig
from captioner.decoders.decoder import build_decoder
from captioner.errors import ConfigError

__all__ = ["VARIANTS", "count_parameters", "decoder_variants", "equal_transformer"]

_Score = Literal["none", "additive", "multiplicative", "dot", "scaled_dot"]
_SCORES: tuple[_Score, ...] = get_args(_Score)
VARIANTS = (
    *(f"{score}-{query}" for query in ("previous", "current") for score in (*_SCORES, "heads")),
    "top_down",
    "transformer",
)
"""By score and query of the lstm (`heads`: scaled_dot with four of them), and the other kinds."""

_HEADS = 4  # of the variants with several
_STEP = 4  # a transformer's width is a multiple: sine positions over two axes come in fours


def decoder_variants(
    base: DecoderConfig, *, grid_dim: int, vocabulary_size: int
) -> dict[str, DecoderConfig]:
    """Make every variant of a decoder, by its name in VARIANTS.

    What is not varied is as in `base`; values have the length of the hidden state in all of them,
    which `dot` and several heads need. The transformer is made as wide as gives it the parameters
    of `additive-previous`.

    Args:
        base: gives sizes and dropout.
        grid_dim: D, the features of a grid cell.
        vocabulary_size: words and special tokens.

    Raises:
        ConfigError: the sizes do not allow one of the variants.

    """
    base = replace(
        base,
        kind="lstm",
        score="additive",
        heads=1,
        query="previous",
        positions="none",
        value_dim=base.hidden_dim,
    )
    found: dict[str, DecoderConfig] = {}
    for query in ("previous", "current"):
        for score in _SCORES:
            found[f"{score}-{query}"] = replace(base, score=score, query=query)
        found[f"heads-{query}"] = replace(base, score="scaled_dot", heads=_HEADS, query=query)
    found["top_down"] = replace(base, kind="top_down")
    size = {"grid_dim": grid_dim, "vocabulary_size": vocabulary_size}
    wanted = count_parameters(found["additive-previous"], **size)
    found["transformer"] = equal_transformer(base, parameters=wanted, **size)
    return found


def count_parameters(config: DecoderConfig, *, grid_dim: int, vocabulary_size: int) -> int:
    """Count the parameters of a decoder without making them."""
    with torch.device("meta"):
        decoder = build_decoder(config, grid_dim=grid_dim, vocabulary_size=vocabulary_size)
    return sum(parameter.numel() for parameter in decoder.parameters())


def equal_transformer(
    base: DecoderConfig, *, parameters: int, grid_dim: int, vocabulary_size: int
) -> DecoderConfig:
    """Make the transformer whose width brings it nearest to so many parameters.

    It has four heads, sine positions, and the layers, attention and embedding of `base`.

    Raises:
        ConfigError: even the narrowest has more.

    """
    base = replace(
        base,
        kind="transformer",
        score="scaled_dot",
        heads=_HEADS,
        query="previous",
        positions="sine",
        value_dim=None,
    )

    def sized(width: int) -> int:
        config = replace(base, hidden_dim=width)
        return count_parameters(config, grid_dim=grid_dim, vocabulary_size=vocabulary_size)

    widths = range(_STEP, 2**16, _STEP)  # the number of parameters grows with the width
    if sized(_STEP) > parameters:
        raise ConfigError(
            f"no transformer has as few as {parameters:,} parameters with {base.layers} layers: "
            "lower decoder.layers, or raise decoder.hidden_dim"
        )
    place = bisect_left(widths, parameters, key=sized)
    near = widths[max(place - 1, 0) : place + 1]
    return replace(base, hidden_dim=min(near, key=lambda width: abs(sized(width) - parameters)))
