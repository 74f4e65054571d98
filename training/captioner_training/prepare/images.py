"""An image on its way into a prepared data set, and the data set that it comes from.

ListedImage   as a table, a json file or a folder names it, with its captions
FoundImage    with the place of its bytes, and its split
ResizedImage  the JPEG that is stored (resize.py)
IndexRow      where that JPEG lies in a shard, and all that was known of it (manifest.py)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from captioner_training.prepare.places import Location
from captioner_training.prepare.problems import Problems

__all__ = ["FoundImage", "ListedImage", "SourceData"]


class ListedImage(NamedTuple):
    """An image as the data set lists it."""

    id: int | str
    file_name: str
    captions: tuple[str, ...]
    split: str | None = None  # None: drawn by Fractions
    licence: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundImage:
    """An image that was found, with its captions and split."""

    id: int | str
    file_name: str
    location: Location
    captions: tuple[str, ...]
    split: str
    licence: str | None

    def identity(self) -> tuple[object, ...]:
        """All that decides what is stored of it; not the folder, which may have another name."""
        return self.id, self.file_name, self.captions, self.licence, *self.location[1:]


@dataclass(frozen=True, kw_only=True)
class SourceData:
    """A data set as it was found."""

    name: str
    images: list[FoundImage]
    problems: Problems
    source: dict[str, Any]  # kind and options, for the manifest
    licence: str | None = None
    # A published split stays as published: scores on it must stay comparable. Images of equal
    # content in two of its splits are noted, not treated as a problem.
    published: bool = False
