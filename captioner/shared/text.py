"""Text for terminals, logs and records: escape untrusted text, write JSON, choose keywords."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

KEYWORD_TRUST = 0.55
"""The default minimum trust of a keyword. Words with less trust are marked as doubtful."""

# Control characters except line breaks, and marks that change the direction of writing.
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
# Lone surrogates (of file names that are not UTF-8), control characters, marks that change the
# direction of writing, and line ends of Unicode.
_ESCAPED = re.compile(r"[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Escape control characters except line breaks.

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return _CONTROL.sub(lambda match: repr(match[0])[1:-1], text)


def in_a_line(text: str) -> str:
    r"""Escape control characters and line breaks.

    >>> in_a_line("a\ncaptioner: b")
    'a\\ncaptioner: b'
    """
    return printable(text).replace("\n", r"\n")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, whose plural is regular.

    >>> counted(1, "photo"), counted(2000, "photo"), counted(2, "process")
    ('1 photo', '2,000 photos', '2 processes')
    """
    ending = "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{'' if number == 1 else ending}"


def probability(text: str) -> float:
    """Parse a number from 0 to 1, for argparse's `type`."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def add_keywords(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add `--keywords`, whose value is the minimum trust of a keyword."""
    parser.add_argument("--keywords", nargs="?", const=KEYWORD_TRUST, type=probability, metavar="P",
        help=f"add words with a trust of at least P (default: {KEYWORD_TRUST})")  # fmt: skip


def choose_keywords(
    words: Iterable[tuple[str, float | None]], *, minimum_trust: float = KEYWORD_TRUST
) -> list[str]:
    """Return the words with enough trust, in lower case and without repetitions.

    Args:
        words: text and trust of each word; None for words without a claim, such as "a".
        minimum_trust: 0 to 1.
    """
    # Rounded as in records, so that the same words are keywords there.
    trusted = (
        text.lower()
        for text, trust in words
        if trust is not None and round(trust, 4) >= minimum_trust
    )
    return list(dict.fromkeys(trusted))


def json_line(
    value: Mapping[str, Any] | Sequence[Any],
    *,
    indent: int | None = None,
    encoding: str | None = "utf-8",
) -> str:
    r"""Return a value as JSON, without a line break at the end. Letters are not escaped.

    Args:
        value: plain data.
        indent: spaces per level; None: one line.
        encoding: the encoding of the output; if it is not UTF-8, everything but ASCII is escaped.

    >>> print(json_line({"image": "Müller \udcff.jpg"}))
    {"image": "Müller \udcff.jpg"}
    """
    if (encoding or "").lower().replace("_", "-") not in ("utf-8", "utf8"):
        return json.dumps(value, indent=indent)
    # Plain data has no cycles.
    text = json.dumps(value, indent=indent, ensure_ascii=False, check_circular=False)
    return text if text.isascii() else _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
