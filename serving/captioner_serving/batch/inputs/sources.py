"""Inputs as people name them, turned into photos one by one: never a list of them all."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from captioner.errors import CaptionerError, ConfigError, DataError
from captioner.paths import is_web_address, there_is_no
from captioner.tables import TABLES
from captioner.terminal import in_a_line
from captioner.vision.header import IMAGE_SUFFIXES
from captioner_serving.batch.inputs.archives import (
    ARCHIVES,
    COMPRESSED,
    archive_photos,
    tar_stream_photos,
)
from captioner_serving.batch.inputs.links import (
    AddressPolicy,
    RemotePhoto,
    file_system,
    is_url,
    open_link,
    reason_of,
)
from captioner_serving.batch.inputs.photos import LostPhoto, Photo, PhotoFile
from captioner_serving.batch.inputs.tables import list_names, table_names

__all__ = ["Inputs", "LeftOut"]

_SCHEMES = ("http", "https", "s3", "gs")
_SIDECARS = (".txt", ".caption", ".json", ".xmp")
_STARS = re.compile(r"(?:^|(?<=/))\*\*(?:/|$)")
_NAMED = 10  # links in the summary


class LeftOut:
    """Counts what is left out of folders: files that are not images, and folders behind links.

    Sidecars, copies that exiftool or embed keep, and the run's `own` files are not counted.
    """

    def __init__(self, own: Iterable[str | os.PathLike[str]] = ()) -> None:
        self._own = {os.path.realpath(path) for path in own}
        self._counts: Counter[str] = Counter()
        self._links: set[str] = set()

    def add_files(self, folder: str, others: Iterable[str], images: Iterable[str]) -> None:
        """Count the files of a folder that are not images."""
        real = os.path.realpath(folder)
        owners = {*images, *(os.path.splitext(name)[0] for name in images)}
        for name in others:
            stem, suffix = os.path.splitext(name)
            sidecar = suffix.lower() in _SIDECARS and stem in owners
            sidecar |= name.removesuffix("_original") in owners
            if not sidecar and os.path.join(real, name) not in self._own:
                self._counts[suffix.lower() or "no suffix"] += 1

    def add_link(self, folder: str) -> None:
        """Count a link to a folder."""
        self._links.add(os.path.normpath(folder))

    def __str__(self) -> str:
        """Return one line for the files and one for the links."""
        lines = []
        if self._counts:
            others = ", ".join(f"{n:,} {suffix}" for suffix, n in self._counts.most_common(8))
            lines.append(f"left out, as these are not images: {others}")
        if self._links:
            number = len(self._links)
            more = f" and {number - _NAMED:,} more" if number > _NAMED else ""
            noun = "folder behind a link" if number == 1 else "folders behind links"
            names = ", ".join(map(in_a_line, sorted(self._links)[:_NAMED]))
            lines.append(f"left out: {number:,} {noun}; to caption them, name them: {names}{more}")
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What to caption.

    sources: files, folders, globs, archives, links; "-" for a list on standard input; tables, with
        `column`.
    lists: files with a path or link a line; null: separated by NUL instead (find -print0).
    column: of the CSV, JSONL and Parquet files among the sources, the one with paths or links.
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
        tables = [source for source in self.sources if _is_table(source)]
        if tables and self.column is None:
            raise ConfigError(f"{tables[0]} is a table: name the column of its paths with --column")
        if not tables and self.column is not None:
            raise ConfigError(f"--column {self.column}: no source is a table")

    @property
    def countable(self) -> bool:
        """Whether the photos can be counted beforehand without reading anything twice over."""
        return not any(
            name == "-" or is_url(name) or name.lower().endswith(COMPRESSED) or _is_pipe(name)
            for name in (*self.sources, *self.lists)
        )

    def check(self) -> None:
        """Refuse what names nothing, before the work.

        A photo or an archive that is missing among others costs itself alone.

        Raises DataError: a folder, list or table is not there, a pattern matches nothing, or
        nothing of all that is named is there.
        """
        if self.root is not None and not os.path.isdir(self.root):
            raise DataError(there_is_no("folder", Path(self.root)))
        for path in self.lists:
            if path != "-" and not os.path.lexists(path):
                raise DataError(there_is_no("list", Path(path)))
            if os.path.isdir(path):
                raise DataError(f"{path} is a folder and no list: name it without --list")
        missing = []
        for source in self.sources:
            if source == "-" or is_url(source):
                continue
            if os.path.lexists(source):
                if _is_table(source) and not _is_pipe(source):
                    next(self._in_table(source), None)  # or it has no such column
            elif glob.has_magic(source):
                next(_matches(source, LeftOut()))
            elif source.lower().endswith((*IMAGE_SUFFIXES, *ARCHIVES)):
                missing.append(source)
            else:
                what = "file" if os.path.splitext(source)[1] else "folder"
                raise DataError(there_is_no(what, Path(source)))
        if missing and len(missing) == len(self.sources) and not self.lists:
            raise DataError(there_is_no("file", Path(missing[0])))

    def without_folder(self) -> str | None:
        """Name a source whose photos are not files of their own: an archive, a link; or None."""
        packed = (s for s in self.sources if is_url(s) or s.lower().endswith(ARCHIVES))
        return next(packed, None)

    def photos(self, left_out: LeftOut | None = None) -> Iterator[Photo]:
        """List the photos in a fixed order; what cannot be listed is in it as a LostPhoto.

        Args:
            left_out: counts the files of folders that are not taken for photos.

        Raises DataError: a list or table cannot be read, or a source names nothing.
        """
        left_out = left_out or LeftOut()
        for source in self.sources:
            if source == "-":
                yield from self._listed("-")
            elif is_url(source):
                yield from self._behind(source)
            elif _is_table(source):
                yield from self._named(self._in_table(source))
            elif os.path.lexists(source) or not glob.has_magic(source):
                yield from self._at(source, left_out, search=True)
            else:
                for path in _matches(source, left_out):
                    if os.path.islink(path) and os.path.isdir(path):
                        left_out.add_link(path)
                    else:  # ** searches folders by itself
                        yield from self._at(path, left_out, search="**" not in source)
        for path in self.lists:
            yield from self._listed(path)

    def _at(self, path: str, left_out: LeftOut, *, search: bool) -> Iterator[Photo]:
        """List what lies at a path."""
        if not os.path.isdir(path):
            if path.lower().endswith(ARCHIVES):
                yield from archive_photos(path)
            else:
                yield PhotoFile(name=path, file=path)
        elif search:
            for folder, names, problem in _walk(path, left_out, recursive=self.recursive):
                if problem is not None:
                    reason = f"{folder} cannot be listed ({problem})"
                    yield LostPhoto(name=folder, reason=reason)
                images = [name for name in names if name.lower().endswith(IMAGE_SUFFIXES)]
                if len(images) < len(names):
                    left_out.add_files(folder, sorted({*names} - {*images}), images)
                for name in images:
                    file = os.path.join(folder, name)
                    yield PhotoFile(name=file, file=file)

    def _listed(self, path: str) -> Iterator[Photo]:
        return self._named(list_names(path, null=self.null, root=self.root))

    def _in_table(self, path: str) -> Iterator[str | LostPhoto]:
        return table_names(path, self.column or "", root=self.root)

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
            return RemotePhoto(name=url, url=url, policy="any" if self.allow_private else "public")
        return LostPhoto(
            name=url,
            reason=f"{url}: {scheme}:// links in lists and tables are not followed; if you trust "
            f"the list, add --allow-scheme {scheme}",
        )

    def _behind(self, url: str) -> Iterator[Photo]:
        """List what an input that is a link stands for: a photo, a tar file, a glob, a bucket."""
        policy: AddressPolicy = "any" if self.allow_private else "own"
        web, matching = is_web_address(url), any(sign in url for sign in "*[")
        bare = re.split(r"[?#]", url)[0].lower() if web else url.lower()
        try:
            if bare.endswith(".zip"):
                reason = f"{url}: zip files are not read over links; download it, or make it a .tar"
                yield LostPhoto(name=url, reason=reason)
            elif bare.endswith(ARCHIVES):
                with open_link(url, policy) as file:
                    yield from tar_stream_photos(file, url)
            elif web or (bare.endswith(IMAGE_SUFFIXES) and not matching):
                yield RemotePhoto(name=url, url=url, policy=policy)
            else:
                yield from self._in_bucket(url, matching=matching)
        except CaptionerError:
            raise
        except Exception as error:  # every file system has exceptions of its own
            reason = f"{url} cannot be listed ({reason_of(error)}): check the link"
            yield LostPhoto(name=url, reason=reason)

    def _in_bucket(self, url: str, *, matching: bool) -> Iterator[Photo]:
        """List the photos that match, or that lie below a prefix."""
        system, path = file_system(url)
        base = path.rstrip("/")
        pattern = path if matching else f"{base}/**" if self.recursive else f"{base}/*"
        names: list[str] = sorted(system.glob(pattern))
        if not names and (matching or not system.exists(path)):
            raise FileNotFoundError(url)
        for name in names:
            hidden = "/." in name.removeprefix(base)
            if matching or (name.lower().endswith(IMAGE_SUFFIXES) and not hidden):
                link = system.unstrip_protocol(name)
                yield RemotePhoto(name=link, url=link)


def _walk(
    folder: str, left_out: LeftOut, *, recursive: bool
) -> Iterator[tuple[str, list[str], str | None]]:
    """Yield each folder with its sorted files, or why it cannot be listed.

    Hidden files and folders are skipped; links to folders are not followed.
    """
    problems: list[OSError] = []
    for here, folders, files in os.walk(folder, onerror=problems.append):
        while problems:
            problem = problems.pop(0)
            yield str(problem.filename), [], problem.strerror
        folders[:] = sorted(name for name in folders if recursive and not name.startswith("."))
        for path in (os.path.join(here, name) for name in folders):
            if os.path.islink(path):
                left_out.add_link(path)
        yield here, sorted(name for name in files if not name.startswith(".")), None
    for problem in problems:
        yield str(problem.filename), [], problem.strerror


def _matches(pattern: str, left_out: LeftOut) -> Iterator[str]:
    """Match as a shell with globstar does, folder by folder; ** follows no link to a folder.

    Raises DataError: nothing matches.
    """
    path = None
    for path in _matches_of(pattern, left_out):
        yield path
    if path is None:
        raise DataError(f"nothing matches {pattern}: check the folder, and quote the pattern")


def _matches_of(pattern: str, left_out: LeftOut) -> Iterator[str]:
    before, *behind = _STARS.split(pattern, maxsplit=1)
    if not behind:
        yield from sorted(glob.glob(pattern))
        return
    for top in sorted(glob.glob(before)) if before else [""]:
        for folder, _, _ in _walk(top or ".", left_out, recursive=True):
            way = glob.escape(folder if top else folder[2:])  # without the ./ in front
            yield from _matches_of(os.path.join(way, behind[0] or "*"), left_out)


def _is_table(source: str) -> bool:
    suffix = os.path.splitext(source)[1].lower()
    return suffix in TABLES and suffix != ".json" and not is_url(source)


def _is_pipe(source: str) -> bool:
    """Whether a source can be read but once, as /dev/stdin and what a shell makes of <(...)."""
    return os.path.exists(source) and not (os.path.isfile(source) or os.path.isdir(source))
