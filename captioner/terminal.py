"""What strangers wrote, made fit for a terminal."""

from __future__ import annotations

import re
import textwrap

__all__ = ["folded", "in_a_line", "printable"]

# Line breaks may stay; what turns the direction of the writing may not.
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


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


def folded(text: str, *, columns: int) -> str:
    """Break lines that are too long for a terminal between words; never a word itself.

    >>> print(folded("12 captions in all; 1 failed, in c.errors", columns=30))
    12 captions in all; 1 failed,
      in c.errors
    """
    lines = [
        textwrap.wrap(
            line,
            columns,
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in text.split("\n")
    ]
    return "\n".join(part for parts in lines for part in parts or [""])
