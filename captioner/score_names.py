"""Which score functions there are, and what sizes each can work with; without importing torch."""

from __future__ import annotations

import math
from typing import Final

from captioner.errors import ConfigError

__all__ = ["SCORE_NAMES", "check_score"]

SCORE_NAMES: Final = ("additive", "multiplicative", "dot", "scaled_dot", "none")
"""The names of captioner.scores.SCORES."""


def check_score(
    name: str, *, query_dim: int, key_dim: int, attention_dim: int, heads: int = 1
) -> None:
    """Refuse what cannot be built, before anything is.

    Raises:
        ConfigError: no score function has that name, or the sizes do not fit it.

    """
    if name not in SCORE_NAMES:
        raise ConfigError(f"score {name!r} is not known; known are {', '.join(SCORE_NAMES)}")
    if heads < 1:
        raise ConfigError(f"heads {heads} is not positive")
    if name == "none":
        if heads > 1:
            raise ConfigError(
                f"heads {heads} with score 'none': all of them would see the same mean; set heads "
                "to 1, or choose another score"
            )
        return
    if name == "dot" and query_dim != key_dim:
        raise ConfigError(
            f"score 'dot' multiplies a query of {query_dim} numbers with a key of {key_dim}: make "
            "the two equal, or choose 'multiplicative' or 'scaled_dot', which project them"
        )
    width, what = (query_dim, "query") if name == "dot" else (attention_dim, "attention_dim")
    if width % heads:
        lower = math.gcd(width, heads)
        raise ConfigError(
            f"heads {heads} do not divide the {what} of {width} numbers into equal parts: "
            f"{lower} would"
        )
