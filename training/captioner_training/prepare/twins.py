"""Images of equal bytes, found before any of them is decoded."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence

from captioner_training.prepare.places import Location, read_location

__all__ = ["equal_images"]

_SAMPLE = 4096  # bytes from the middle: enough to tell nearly all photos of equal size apart


def equal_images(locations: Sequence[Location]) -> list[list[int]]:
    """Group the positions of images whose bytes are equal; nearly all groups have one.

    Only images of equal size are read, and only those whose middles are equal are read whole.
    """
    groups = [list(range(len(locations)))]
    for key in (lambda one: one.size, _middle, _digest):
        groups = [part for group in groups for part in _parted(group, locations, key)]
    return sorted(groups)


def _parted(
    group: list[int], locations: Sequence[Location], key: Callable[[Location], Hashable]
) -> Iterable[list[int]]:
    if len(group) == 1:
        return [group]
    parts: dict[Hashable, list[int]] = defaultdict(list)
    for index in group:
        try:
            parts[key(locations[index])].append(index)
        except OSError:  # it will be told as a corrupt image
            parts[index, "unreadable"].append(index)
    return parts.values()


def _middle(location: Location) -> Hashable:
    if location.member is not None:
        return location.stamp  # a zip file's checksum
    skip = max(0, location.size - _SAMPLE) // 2
    part = location._replace(offset=location.offset + skip, size=min(_SAMPLE, location.size))
    return read_location(part)


def _digest(location: Location) -> Hashable:
    return hashlib.sha256(read_location(location)).digest()
