"""A caption and the text that is there already."""

from __future__ import annotations

from captioner_serving.batch.config import Existing

__all__ = ["combine"]


def combine(old: str | None, new: str, existing: Existing) -> str | None:
    """Bring two texts together; None keeps the old one. Doing it twice does it once."""
    if old is None or not old.strip() or existing == "overwrite":
        return new
    if existing == "append":
        return old if old == new or old.endswith(f" {new}") else f"{old} {new}"
    if existing == "prepend":
        return old if old == new or old.startswith(f"{new} ") else f"{new} {old}"
    return None
