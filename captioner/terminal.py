"""What strangers wrote, made fit for a terminal."""

from __future__ import annotations

import re

__all__ = ["printable"]

# Line breaks may stay; what turns the direction of the writing may not.
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    r"""Write control characters out: a name must not steer the terminal.

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)
