"""The server: page, HTTP API, and the static files that exported pages share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

STATIC = Path(__file__).parent / "static"
"""The folder of the files at page/static."""

# Limits of the bundled checkpoint; see its model card.
_LIMITS = (
    "Trained on 12,420 photos, mostly of people, dogs, sports and streets. It names unknown things "
    "wrongly, miscounts, cannot read text, and guesses sex and age."
)
_ANY_LIMITS = "A model gives wrong names to things that are not in its training data."


def limits_of(models: Sequence[str]) -> str:
    """Return the text about the limits of models, given their names."""
    return _LIMITS if [*models] == ["bundled"] else _ANY_LIMITS


def read_static(name: str) -> str:
    """Return the text of a static file."""
    return (STATIC / name).read_text(encoding="utf-8")


def with_parts(html: str) -> str:
    """Replace @intake, @strip and @viewer in the HTML of a page by the shared parts."""
    for part in ("intake", "strip", "viewer"):
        html = html.replace(f"@{part}", read_static(f"{part}.html"))
    return html
