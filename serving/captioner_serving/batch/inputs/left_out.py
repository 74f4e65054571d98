"""Files of folders that are not taken for photos: how many, by suffix."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

from captioner.readers import IMAGE_SUFFIXES

__all__ = ["LeftOut"]

_SIDECARS = (".txt", ".caption", ".json", ".xmp")


class LeftOut:
    """Counts what is in folders beside photos, so that nobody misses a photo without being told.

    A sidecar belongs to the photo beside it, and is not counted; nor is what the run itself writes.

    Args:
        own: the files of the run.

    """

    def __init__(self, own: Iterable[str | os.PathLike[str]] = ()) -> None:
        self._own = {os.path.realpath(path) for path in own}
        self._names = {os.path.basename(path) for path in self._own}
        self._counts: Counter[str] = Counter()

    def see(self, folder: str, name: str, names: Sequence[str]) -> None:
        """Take in a file that is no image; `names` are all in its folder, sorted."""
        if name in self._names and os.path.realpath(os.path.join(folder, name)) in self._own:
            return
        stem, suffix = os.path.splitext(name)
        if suffix.lower() not in _SIDECARS or not _is_of_photo(stem, names):
            self._counts[suffix.lower() or "no suffix"] += 1

    def __str__(self) -> str:
        """Say it in a line; nothing where nothing was left out."""
        if not self._counts:
            return ""
        others = ", ".join(f"{n:,} {suffix}" for suffix, n in self._counts.most_common(8))
        return f"left out, as these are not images: {others}"


def _is_of_photo(stem: str, names: Sequence[str]) -> bool:
    """Whether a sidecar of this stem has its photo: photo.txt and photo.jpg.txt have photo.jpg."""
    if stem.lower().endswith(IMAGE_SUFFIXES):
        at = bisect_left(names, stem)
        if at < len(names) and names[at] == stem:
            return True
    for at in range(bisect_left(names, f"{stem}."), len(names)):
        if not names[at].startswith(f"{stem}."):
            return False
        if names[at][len(stem) :].lower() in IMAGE_SUFFIXES:
            return True
    return False
