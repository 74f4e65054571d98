"""A record as JSON, with names in their own letters."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["json_line"]

# What UTF-8 cannot hold (a name on disk need not be text), what steers a terminal or turns the
# direction of the writing, and what some programs take for the end of a line.
_ESCAPED = re.compile(r"[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


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
