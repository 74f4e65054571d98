"""The files that browsers get, and the parts of HTML that two pages share."""

from __future__ import annotations

from pathlib import Path

__all__ = ["STATIC", "read_static", "with_parts"]

STATIC = Path(__file__).parent / "static"
"""What the browser gets as it lies there, under page/static."""


def read_static(name: str) -> str:
    """Read one of the files."""
    return (STATIC / name).read_text(encoding="utf-8")


def with_parts(html: str) -> str:
    """Put the parts that pages share, @intake, @strip and @viewer, into the HTML of a page."""
    for part in ("intake", "strip", "viewer"):
        html = html.replace(f"@{part}", read_static(f"{part}.html"))
    return html
