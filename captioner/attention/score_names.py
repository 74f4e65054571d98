"""Which score functions there are, and what sizes each can work with; without importing torch."""

from __future__ import annotations

from typing import Final

from captioner.errors import ConfigError

__all__ = ["SCORE_NAMES", "check_score", "problem_of_heads"]

SCORE_NAMES: Final = ("additive", "multiplicative", "dot", "scaled_dot", "none")
"""The names of captioner.attention.scores.SCORES."""

_MANY = 1000  # heads: more are not offered


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
    width, what = (query_dim, "query_dim") if name == "dot" else (attention_dim, "attention_dim")
    if problem := problem_of_heads(heads, what, width):
        raise ConfigError(problem)


def problem_of_heads(heads: int, what: str, width: int) -> str | None:
    """Say that heads do not divide a width into equal parts, and which numbers near would."""
    if width % heads == 0:
        return None
    fit = [number for number in range(1, min(width, _MANY) + 1) if width % number == 0]
    near = [*[number for number in fit if number < heads][-1:]]
    near += [number for number in fit if number > heads][:1]
    return (
        f"heads {heads} do not divide {what} {width} into equal parts: "
        f"{' and '.join(map(str, near))} would"
    )
