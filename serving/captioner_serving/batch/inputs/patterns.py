"""Patterns that stand for several paths: globs, and the braces of WebDataset."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from captioner_serving.batch.inputs.folders import list_folder

__all__ = ["expand_braces", "is_pattern", "matches"]

_BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")


def is_pattern(name: str) -> bool:
    """Whether a name has a sign that stands for others."""
    return any(sign in name for sign in "*?[")


def expand_braces(source: str) -> Iterator[str]:
    """Turn "shard-{000..012}.tar", as WebDataset writes it, into the names it stands for."""
    match = _BRACES.search(source)
    if match is None or os.path.lexists(source):
        yield source
        return
    first, last = match.groups()
    for number in range(int(first), int(last) + 1):
        yield from expand_braces(
            f"{source[: match.start()]}{number:0{len(first)}d}{source[match.end() :]}"
        )


def matches(pattern: str) -> Iterator[str]:
    """Match as a shell with globstar does, sorted, without a list of all matches."""
    start = "/" if pattern.startswith("/") else ""
    yield from _descend(start, [part for part in pattern.split("/") if part])


def _descend(folder: str, parts: Sequence[str]) -> Iterator[str]:
    """Follow a pattern downwards; folders lie deeper than Python's calls may."""
    under_way = [iter([(folder, parts)])]
    while under_way:
        step = next(under_way[-1], None)
        if step is None:
            under_way.pop()
        elif not step[1]:
            yield step[0]
        else:
            under_way.append(_steps(*step))


def _steps(folder: str, parts: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """Take the first part of a pattern: each path that it leads to, with the parts that remain."""
    part, *rest = parts
    if part == "**":
        yield folder, rest
        for name, is_folder, _ in list_folder(folder)[0]:
            path = os.path.join(folder, name)
            if is_folder:
                yield path, parts
            elif not rest:
                yield path, rest
    elif is_pattern(part):
        for name, *_ in list_folder(folder)[0]:
            path = os.path.join(folder, name)
            if fnmatchcase(name, part) and (not rest or os.path.isdir(path)):
                yield path, rest
    elif os.path.lexists(path := os.path.join(folder, part)):
        yield path, rest
