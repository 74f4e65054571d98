"""Names and captions that strangers wrote, made fit for a page: they run and steer nothing."""

from __future__ import annotations

import re

from captioner.terminal import printable

__all__ = ["in_a_line", "in_markdown"]

# What begins HTML, a link, an image, code or emphasis; an underscore inside of a word does not.
_LIVE = re.compile(r"[\\`*\[\]<>&~|]|(?<![^\W_])_|_(?![^\W_])")


def in_a_line(text: str) -> str:
    r"""Write text in a line, with what steers a terminal made visible.

    >>> print(in_a_line("a\x1b[2J\n"))
    a\x1b[2J
    """
    return printable(" ".join(text.split()))  # captions of COCO end in line breaks


def in_markdown(text: str) -> str:
    r"""Write text for Markdown.

    >>> print(in_markdown("<b> COCO_val_1 ![x](y)"))
    \<b\> COCO_val_1 !\[x\](y)
    """
    return _LIVE.sub(r"\\\g<0>", in_a_line(text))
