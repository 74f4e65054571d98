"""What strangers wrote, made fit for a terminal or a line of JSON; and what is typed there."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["in_a_line", "json_line", "printable", "probability"]

# Line breaks may stay; what turns the direction of the writing may not.
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
# What UTF-8 cannot hold (a name on disk need not be text), what steers a terminal or turns the
# direction of the writing, and what some programs take for the end of a line.
_ESCAPED = re.compile(r"[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Write control characters out: a name must not steer the terminal.

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def in_a_line(text: str) -> str:
    r"""Write line breaks out too: what is said of one photo must not look like two messages.

    >>> in_a_line("a\ncaptioner: b")
    'a\\ncaptioner: b'
    """
    return printable(text).replace("\n", r"\n")


def probability(text: str) -> float:
    """Read a number from 0 to 1, for argparse's `type`."""
    if not 0 <= (value := float(text)) <= 1:
        raise argparse.ArgumentTypeError(f"{text} is no probability from 0 to 1")
    return value


def json_line(
    value: Mapping[str, Any] | Sequence[Any],
    *,
    indent: int | None = None,
    encoding: str | None = "utf-8",
) -> str:
    r"""Write a record, so that a search for a name finds it; without a line break at the end.

    Args:
        value: plain data.
        indent: spaces for each level; None: all in one line.
        encoding: of the stream that it is written to; in another than UTF-8, or where it is not
            known, all but ASCII is escaped.

    >>> print(json_line({"image": "Müller \udcff.jpg"}))
    {"image": "Müller \udcff.jpg"}
    """
    if (encoding or "").lower().replace("_", "-") not in ("utf-8", "utf8"):
        return json.dumps(value, indent=indent)
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return text if text.isascii() else _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
