"""The files that browsers get, and the parts of HTML that two pages share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

__all__ = ["STATIC", "limits_of", "read_static", "with_parts"]

STATIC = Path(__file__).parent / "static"
"""What the browser gets as it lies there, under page/static."""


# Of the bundled checkpoint; its card has more.
_LIMITS = (
    "Trained on 12,420 photos, mostly of people, dogs, sports and streets. It names unknown things "
    "wrongly, miscounts, cannot read text, and guesses sex and age."
)
_ANY = "A model names things that are not in its training data wrongly."


def limits_of(models: Sequence[str]) -> str:
    """Return the sentences about the limits of models, given their names."""
    return _LIMITS if [*models] == ["bundled"] else _ANY


def read_static(name: str) -> str:
    """Read one of the files."""
    return (STATIC / name).read_text(encoding="utf-8")


def with_parts(html: str) -> str:
    """Put the parts that pages share, @intake, @strip and @viewer, into the HTML of a page."""
    for part in ("intake", "strip", "viewer"):
        html = html.replace(f"@{part}", read_static(f"{part}.html"))
    return html
