"""Inputs as people name them, turned into photos one by one: never a list of them all."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

from captioner.errors import ConfigError, DataError
from captioner.readers import IMAGE_SUFFIXES
from captioner_serving.batch.inputs.archives import ARCHIVES, COMPRESSED, archive_photos
from captioner_serving.batch.inputs.links import Reach, is_url
from captioner_serving.batch.inputs.photos import LostPhoto, Photo, PhotoFile, RemotePhoto
from captioner_serving.batch.inputs.remote import remote_photos
from captioner_serving.batch.inputs.tables import TABLES, list_names, table_names

__all__ = ["Inputs"]

_SCHEMES = ("http", "https", "s3", "gs")
_BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What to caption.

    sources: files, folders, globs, archives, URLs; "-" for a list on standard input; tables, with
        `column`.
    lists: files with a path or URL a line; null: separated by NUL instead (find -print0).
    column: of the CSV, JSONL and Parquet files among the sources, the one with paths or URLs.
    root: the folder that relative paths in lists and tables start from; None: the current one.
    recursive: whether folders are searched all the way down.
    schemes: of links that are followed in lists and tables, besides http, https, s3 and gs.
    allow_private: whether links may lead to private addresses: those in lists and tables by their
        names and by redirects; the sources themselves may have one, but not be redirected to one.
    """

    sources: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    column: str | None = None
    root: str | None = None
    null: bool = False
    recursive: bool = True
    schemes: tuple[str, ...] = ()
    allow_private: bool = False

    def __post_init__(self) -> None:
        if not self.sources and not self.lists:
            raise ConfigError("there is nothing to caption: name photos, folders, or a list")
        if self.column is None and (tables := [s for s in self.sources if _is_table(s)]):
            raise ConfigError(f"{tables[0]} is a table: name the column of its paths with --column")
        if self.column is not None and not any(map(_is_table, self.sources)):
            raise ConfigError(f"--column {self.column}: no source is a {', '.join(TABLES)}")

    @property
    def countable(self) -> bool:
        """Whether the photos can be counted beforehand without reading anything twice over."""
        sources = (*self.sources, *self.lists)
        once = (s in ("-", "/dev/stdin") or is_url(s) or s.endswith(COMPRESSED) for s in sources)
        return not any(once)

    def without_folder(self) -> str | None:
        """Name a source whose photos are not files of their own: an archive, a URL; or None."""
        packed = (s for s in self.sources if is_url(s) or s.lower().endswith(ARCHIVES))
        return next(packed, None)

    def photos(self, left_out: Counter[str] | None = None) -> Iterator[Photo]:
        """List the photos in a fixed order; what cannot be listed is in it as a LostPhoto.

        Args:
            left_out: counts the files of folders that are not taken for photos, by suffix.

        Raises:
            DataError: a list or table cannot be read, or a source names nothing.

        """
        others = Counter() if left_out is None else left_out
        for source in self.sources:
            for expanded in _expand_braces(source):
                yield from self._photos_of(expanded, others)
        for path in self.lists:
            yield from self._named(list_names(path, null=self.null))

    def _photos_of(self, source: str, left_out: Counter[str]) -> Iterator[Photo]:
        if source == "-":
            yield from self._named(list_names(sys.stdin.fileno(), null=self.null))
        elif is_url(source):
            yield from remote_photos(
                source,
                IMAGE_SUFFIXES,
                recursive=self.recursive,
                reach="any" if self.allow_private else "own",
            )
        elif _is_table(source) and self.column is not None:
            yield from self._named(table_names(source, self.column))
        elif os.path.isdir(source):
            yield from _folder(source, left_out, recursive=self.recursive)
        elif not os.path.lexists(source) and any(sign in source for sign in "*?["):
            yield from self._matching(source, left_out)
        elif source.lower().endswith(ARCHIVES):
            yield from archive_photos(source, IMAGE_SUFFIXES)
        else:
            yield PhotoFile(name=source, file=source)

    def _named(self, names: Iterator[str | LostPhoto]) -> Iterator[Photo]:
        for name in names:
            if isinstance(name, LostPhoto):
                yield name
            elif is_url(name):
                yield self._linked(name)
            else:
                yield PhotoFile(name=name, file=os.path.join(self.root or "", name))

    def _linked(self, url: str) -> Photo:
        """A link out of a list or table, which may be another person's: not any scheme will do."""
        scheme = url.split("://")[0].lower()
        if "::" in url:  # with which fsspec chains file systems
            reason = f"{url}: links with :: are not followed; write an IPv6 address in full"
            return LostPhoto(name=url, reason=reason)
        if scheme in (*_SCHEMES, *self.schemes):
            reach: Reach = "any" if self.allow_private else "public"
            return RemotePhoto(name=url, url=url, reach=reach)
        return LostPhoto(
            name=url,
            reason=f"{url}: {scheme}:// links in lists and tables are not followed; if you trust "
            f"the list, add --allow-scheme {scheme}",
        )

    def _matching(self, pattern: str, left_out: Counter[str]) -> Iterator[Photo]:
        found = False
        for path in _glob(pattern):
            found = True
            if os.path.isdir(path):
                # ** goes into folders by itself; links to folders are not followed.
                if "**" not in pattern.split("/") and not os.path.islink(path):
                    yield from _folder(path, left_out, recursive=self.recursive)
            elif path.lower().endswith(ARCHIVES):
                yield from archive_photos(path, IMAGE_SUFFIXES)
            else:
                yield PhotoFile(name=path, file=path)
        if not found:
            raise DataError(f"nothing matches {pattern}: check the folder, and quote the pattern")


def _is_table(source: str) -> bool:
    return source.lower().endswith(TABLES) and not is_url(source)


def _expand_braces(source: str) -> Iterator[str]:
    """Turn "shard-{000..012}.tar", as WebDataset writes it, into the names it stands for."""
    match = _BRACES.search(source)
    if match is None or os.path.lexists(source):
        yield source
        return
    first, last = match.groups()
    for number in range(int(first), int(last) + 1):
        yield from _expand_braces(
            f"{source[: match.start()]}{number:0{len(first)}d}{source[match.end() :]}"
        )


class _Listed(NamedTuple):
    """What a folder says of an entry, without a look at the entry itself."""

    name: str
    is_folder: bool
    is_link: bool


def _entries(folder: str) -> tuple[list[_Listed], OSError | None]:
    """List a folder, sorted by name; hidden entries left out.

    A link to a folder is not followed: it may lead back up, and its photos are found anyway.
    """
    entries: list[_Listed] = []
    try:
        with os.scandir(folder or ".") as scan:
            for entry in scan:
                if not entry.name.startswith("."):
                    is_folder = entry.is_dir(follow_symlinks=False)
                    entries.append(_Listed(entry.name, is_folder, entry.is_symlink()))
    except OSError as error:
        return sorted(entries), error
    return sorted(entries), None


def _folder(folder: str, left_out: Counter[str], *, recursive: bool) -> Iterator[Photo]:
    """List a folder's images in the order of their names, folder by folder."""
    # No recursion: folders lie in one another deeper than Python's calls may.
    under_way: list[tuple[str, Iterator[_Listed]]] = []
    below: str | None = folder
    while below is not None or under_way:
        if below is not None:
            entries, error = _entries(below)
            under_way.append((below, iter(entries)))
            if error is not None:
                yield LostPhoto(name=below, reason=f"{below} cannot be listed ({error.strerror})")
            below = None
        here, rest = under_way[-1]
        for name, is_folder, is_link in rest:
            path = os.path.join(here, name)
            if is_folder:
                if recursive:
                    below = path
                    break
            elif not name.lower().endswith(IMAGE_SUFFIXES):
                left_out[os.path.splitext(name)[1].lower() or "no suffix"] += 1
            elif not (is_link and os.path.isdir(path)):
                yield PhotoFile(name=path, file=path)
        else:
            under_way.pop()


def _glob(pattern: str) -> Iterator[str]:
    """Match as a shell with globstar does, sorted, without a list of all matches."""
    start = "/" if pattern.startswith("/") else ""
    yield from _descend(start, [part for part in pattern.split("/") if part])


def _descend(folder: str, parts: Sequence[str]) -> Iterator[str]:
    """Follow a pattern downwards; like _folder, without recursion."""
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
        for name, is_folder, _ in _entries(folder)[0]:
            path = os.path.join(folder, name)
            if is_folder:
                yield path, parts
            elif not rest:
                yield path, rest
    elif any(sign in part for sign in "*?["):
        for name, *_ in _entries(folder)[0]:
            path = os.path.join(folder, name)
            if fnmatchcase(name, part) and (not rest or os.path.isdir(path)):
                yield path, rest
    elif os.path.lexists(path := os.path.join(folder, part)):
        yield path, rest
