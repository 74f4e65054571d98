"""Inputs as people name them, turned into photos one by one: never a list of them all."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from captioner.errors import ConfigError, DataError
from captioner.paths import there_is_no
from captioner.readers import IMAGE_SUFFIXES
from captioner_serving.batch.inputs.archives import ARCHIVES, COMPRESSED, archive_photos
from captioner_serving.batch.inputs.folders import Listed, list_folder
from captioner_serving.batch.inputs.left_out import LeftOut
from captioner_serving.batch.inputs.links import Reach, is_url
from captioner_serving.batch.inputs.patterns import expand_braces, is_pattern, matches
from captioner_serving.batch.inputs.photos import LostPhoto, Photo, PhotoFile, RemotePhoto
from captioner_serving.batch.inputs.remote import remote_photos
from captioner_serving.batch.inputs.tables import TABLES, list_names, table_names

__all__ = ["Inputs"]

_SCHEMES = ("http", "https", "s3", "gs")


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
        return not any(
            s == "-" or is_url(s) or s.lower().endswith(COMPRESSED) or _is_pipe(s) for s in sources
        )

    def check(self) -> None:
        """Refuse what names nothing, before the work.

        A photo or an archive that is missing among others costs itself alone.

        Raises:
            DataError: a folder, list or table is not there, a pattern matches nothing, or nothing
                of all that is named is there.

        """
        if self.root is not None and not os.path.isdir(self.root):
            raise DataError(there_is_no("folder", Path(self.root)))
        for path in self.lists:
            if path != "-" and not os.path.lexists(path):
                raise DataError(there_is_no("list", Path(path)))
            if os.path.isdir(path):
                raise DataError(f"{path} is a folder and no list: name it without --list")
        missing = None
        found = bool(self.lists)
        for source in (expanded for each in self.sources for expanded in expand_braces(each)):
            if source == "-" or is_url(source):
                found = True
            elif os.path.lexists(source):
                found = True
                if _is_table(source) and self.column is not None and not _is_pipe(source):
                    next(table_names(source, self.column), None)  # or it has no such column
            elif is_pattern(source):
                found = next(matches(source), None) is not None
                if not found:
                    raise _no_match(source)
            elif not source.lower().endswith((*IMAGE_SUFFIXES, *ARCHIVES)):
                what = "file" if os.path.splitext(source)[1] else "folder"
                raise DataError(there_is_no(what, Path(source)))
            else:
                missing = missing or source
        if missing is not None and not found:
            raise DataError(there_is_no("file", Path(missing)))

    def without_folder(self) -> str | None:
        """Name a source whose photos are not files of their own: an archive, a URL; or None."""
        packed = (s for s in self.sources if is_url(s) or s.lower().endswith(ARCHIVES))
        return next(packed, None)

    def photos(self, left_out: LeftOut | None = None) -> Iterator[Photo]:
        """List the photos in a fixed order; what cannot be listed is in it as a LostPhoto.

        Args:
            left_out: counts the files of folders that are not taken for photos.

        Raises:
            DataError: a list or table cannot be read, or a source names nothing.

        """
        others = left_out or LeftOut()
        for source in self.sources:
            for expanded in expand_braces(source):
                yield from self._photos_of(expanded, others)
        for path in self.lists:
            yield from self._named(list_names(path, null=self.null))

    def _photos_of(self, source: str, left_out: LeftOut) -> Iterator[Photo]:
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
        elif not os.path.lexists(source) and is_pattern(source):
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

    def _matching(self, pattern: str, left_out: LeftOut) -> Iterator[Photo]:
        found = False
        for path in matches(pattern):
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
            raise _no_match(pattern)


def _is_table(source: str) -> bool:
    return source.lower().endswith(TABLES) and not is_url(source)


def _is_pipe(source: str) -> bool:
    """Whether a source can be read but once, as /dev/stdin and what a shell makes of <(...)."""
    return os.path.exists(source) and not (os.path.isfile(source) or os.path.isdir(source))


def _no_match(pattern: str) -> DataError:
    return DataError(f"nothing matches {pattern}: check the folder, and quote the pattern")


def _folder(folder: str, left_out: LeftOut, *, recursive: bool) -> Iterator[Photo]:
    """List a folder's images in the order of their names, folder by folder."""
    # No recursion: folders lie in one another deeper than Python's calls may.
    under_way: list[tuple[str, Iterator[Listed], list[str]]] = []
    below: str | None = folder
    while below is not None or under_way:
        if below is not None:
            entries, error = list_folder(below)
            under_way.append((below, iter(entries), [entry.name for entry in entries]))
            if error is not None:
                yield LostPhoto(name=below, reason=f"{below} cannot be listed ({error.strerror})")
            below = None
        here, rest, names = under_way[-1]
        for name, is_folder, is_link in rest:
            path = os.path.join(here, name)
            if is_folder:
                if recursive:
                    below = path
                    break
            elif not name.lower().endswith(IMAGE_SUFFIXES):
                left_out.see(here, name, names)
            elif not (is_link and os.path.isdir(path)):
                yield PhotoFile(name=path, file=path)
        else:
            under_way.pop()
