"""Keywords: the words of a caption that are probably right."""

from __future__ import annotations

from collections.abc import Iterable

KEYWORD_TRUST = 0.55
"""The default minimum trust of a keyword. Words with less trust are marked as doubtful."""


def choose_keywords(
    words: Iterable[tuple[str, float | None]], *, minimum_trust: float = KEYWORD_TRUST
) -> list[str]:
    """Return the words with enough trust, in lower case and without repetitions.

    Words without trust, such as "a" and "group", are not keywords.

    Args:
        words: text and trust of each word, in the order of the sentence.
        minimum_trust: the minimum probability that a keyword is right, 0 to 1.
    """
    # Rounded as in records, so that the same words are keywords there.
    trusted = (
        text.lower()
        for text, trust in words
        if trust is not None and round(trust, 4) >= minimum_trust
    )
    return list(dict.fromkeys(trusted))
