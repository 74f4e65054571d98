"""Inputs from the command line as a stream of photos, which are never all in memory."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from captioner.errors import CaptionerError, ConfigError, DataError
from captioner.photos.formats import IMAGE_SUFFIXES
from captioner.shared.paths import is_system_folder, is_web_address, there_is_no
from captioner.shared.tables import TABLES
from captioner.shared.text import in_a_line
from captioner_serving.batch.files import AUXILIARY
from captioner_serving.batch.inputs.archives import ARCHIVES, archive_photos
from captioner_serving.batch.inputs.photos import LostPhoto, Photo, PhotoFile
from captioner_serving.batch.inputs.tables import list_names, table_names
from captioner_serving.batch.inputs.urls import (
    AddressPolicy,
    RemotePhoto,
    file_system,
    is_url,
    reason_of,
)

_SCHEMES = ("http", "https", "s3", "gs")
_SIDECARS = (".txt", ".caption", ".json", ".xmp")
_BESIDE = ("_original", ".journal.jsonl", *AUXILIARY)  # backups of exiftool, files of a run
_STARS = re.compile(r"(?:^|(?<=/))\*\*(?:/|$)")
_ARCHIVE = "it is an archive: download it first"
# fsspec would read such a URL as a chain of file systems.
_CHAIN = "URLs with :: are not allowed; write an IPv6 address in full"
_KINDS = 20  # kinds of skipped entries in the summary


def skipped_entries(skipped: Counter[str]) -> str:
    """Return a line with the number of skipped entries of each kind; "" without any."""
    named = skipped.most_common(_KINDS)
    parts = [f"{number:,} {in_a_line(kind)}" for kind, number in named]
    if more := len(skipped) - len(named):
        rest = skipped.total() - sum(number for _, number in named)
        parts.append(f"{rest:,} of {more:,} other kinds")
    return f"skipped: {', '.join(parts)}" if parts else ""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The photos to caption.

    sources: files, folders, globs, archives, URLs, tables (with `column`), and "-" for a list on
        standard input.
    lists: files with one path or URL per line.
    column: the column with paths or URLs in tables (CSV, JSONL and Parquet) among the sources.
    root: the base folder of relative paths in lists and tables; None: the current one.
    exclude: patterns of photos to skip, such as "*_small.jpg"; each is compared with the whole
        name, with the file name, and with the name of each folder in it.
    allow_private: allow URLs of private addresses. Otherwise only `sources` may contain such a URL,
        and no URL may redirect to another private host.
    """

    sources: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    column: str | None = None
    root: str | None = None
    exclude: tuple[str, ...] = ()
    allow_private: bool = False

    def __post_init__(self) -> None:
        if not self.sources and not self.lists:
            raise ConfigError("there are no inputs: add photos, folders or --list")
        tables = [source for source in self.sources if _is_table(source)]
        if tables and self.column is None:
            raise ConfigError(f"{tables[0]} is a table: add --column with its column of paths")
        if not tables and self.column is not None:
            raise ConfigError(f"--column is {self.column}, but no input is a table")

    @property
    def countable(self) -> bool:
        """Whether the photos can be counted without reading streams or URLs."""
        return not any(
            name == "-" or is_url(name) or _is_pipe(name) for name in (*self.sources, *self.lists)
        )

    def check(self) -> None:
        """Check that the inputs exist.

        A missing photo or archive only gets an error record, unless all inputs are missing.

        Raises DataError: a folder, list or table does not exist, a pattern has no matches, or all
            inputs are missing.
        """
        if self.root is not None and not os.path.isdir(self.root):
            raise DataError(there_is_no("folder", Path(self.root)))
        for path in self.lists:
            if path != "-" and not os.path.lexists(path):
                raise DataError(there_is_no("list", Path(path)))
            if os.path.isdir(path):
                raise DataError(f"{path} is a folder, not a list: leave out --list")
        missing = []
        for source in self.sources:
            if source == "-" or is_url(source):
                continue
            if os.path.lexists(source):
                if _is_table(source) and not _is_pipe(source):
                    names = table_names(source, self.column or "", root=self.root)
                    next(names, None)  # raises if it lacks the column
            elif glob.has_magic(source):
                next(_matches(source, Counter()))
            elif source.lower().endswith((*IMAGE_SUFFIXES, *ARCHIVES)):
                missing.append(source)
            else:
                kind = "file" if os.path.splitext(source)[1] else "folder"
                raise DataError(there_is_no(kind, Path(source)))
        if missing and len(missing) == len(self.sources) and not self.lists:
            raise DataError(there_is_no("file", Path(missing[0])))

    def without_folder(self) -> str | None:
        """Return the first source whose photos are not files (an archive or URL), or None."""
        packed = (s for s in self.sources if is_url(s) or s.lower().endswith(ARCHIVES))
        return next(packed, None)

    def photos(self, skipped: Counter[str] | None = None) -> Iterator[Photo]:
        """Yield the photos in a fixed order; a LostPhoto for an input that cannot be listed.

        skipped: counts skipped entries by kind: files that are not images or sidecars, links to
            folders, photos in folders of thumbnails and deleted files, excluded photos.

        Raises DataError: a list or table cannot be read, or a pattern has no matches.
        """
        skipped = Counter() if skipped is None else skipped
        streams = [(source, self._of_source(source, skipped)) for source in self.sources]
        lists = (list_names(path, root=self.root) for path in self.lists)
        for source, photos in (*streams, *(("-", self._of_names(names)) for names in lists)):
            for photo in photos:
                base = photo.name if source == "-" or _is_table(source) else source
                if not self._skips(photo.name, base, skipped):
                    yield photo

    def _skips(self, photo: str, source: str, skipped: Counter[str]) -> bool:
        """Return whether a photo is excluded or in a system folder below its source; count it."""
        name = photo.replace(os.sep, "/")
        parts = name.split("/")
        for folder in filter(is_system_folder, parts):
            if folder not in source:
                skipped[f"in {folder}"] += 1
                return True
        for pattern in self.exclude:
            if fnmatchcase(name, pattern) or any(fnmatchcase(part, pattern) for part in parts):
                skipped[f"by --exclude {pattern}"] += 1
                return True
        return False

    def _of_source(self, source: str, skipped: Counter[str]) -> Iterator[Photo]:
        """Yield the photos of one source, including those to skip by name."""
        if source == "-":
            yield from self._of_names(list_names("-", root=self.root))
        elif is_url(source):
            yield from self._at_url(source)
        elif _is_table(source):
            names = table_names(source, self.column or "", root=self.root)
            yield from self._of_names(names)
        elif os.path.lexists(source) or not glob.has_magic(source):
            yield from self._at(source, skipped)
        else:
            for path in _matches(source, skipped):
                if os.path.islink(path) and os.path.isdir(path):
                    _count_link(path, skipped)
                elif "**" not in source or not os.path.isdir(path):  # ** matches files in folders
                    yield from self._at(path, skipped)

    def _at(self, path: str, skipped: Counter[str]) -> Iterator[Photo]:
        """Yield the photos at a path."""
        if not os.path.isdir(path):
            if path.lower().endswith(ARCHIVES):
                yield from archive_photos(path)
            else:
                yield PhotoFile(name=path, path=path)
            return
        for folder, names, problem in _walk(path, skipped):
            if problem is not None:
                reason = f"{folder} cannot be listed ({problem})"
                yield LostPhoto(name=folder, reason=reason)
            for name in names:
                file = os.path.join(folder, name)
                suffix = os.path.splitext(name)[1].lower()
                if suffix in IMAGE_SUFFIXES:
                    yield PhotoFile(name=file, path=file)
                elif not (
                    suffix in _SIDECARS
                    or name.endswith(_BESIDE)
                    or os.path.exists(f"{file}.run.json")  # the output of a run
                ):
                    skipped[suffix or "without suffix"] += 1

    def _of_names(self, names: Iterator[str | LostPhoto]) -> Iterator[Photo]:
        for name in names:
            if isinstance(name, LostPhoto):
                yield name
            elif is_url(name):
                yield self._remote_photo(name)
            else:
                yield PhotoFile(name=name, path=os.path.join(self.root or "", name))

    def _remote_photo(self, url: str) -> Photo:
        """Return the photo at a URL from a list or table; check the scheme, which is untrusted."""
        scheme = url.split("://")[0].lower()
        if "::" in url:
            return _refused(url, _CHAIN)
        if scheme in _SCHEMES:
            return RemotePhoto(name=url, url=url, policy="any" if self.allow_private else "public")
        schemes = ", ".join(_SCHEMES)
        return _refused(url, f"{scheme}:// URLs are not allowed in lists and tables; use {schemes}")

    def _at_url(self, url: str) -> Iterator[Photo]:
        """Yield the photos at a URL of the command line: a photo, glob or bucket."""
        policy: AddressPolicy = "any" if self.allow_private else "same-host"
        is_web = is_web_address(url)
        is_glob = not is_web and any(sign in url for sign in "*[")
        bare = re.split(r"[?#]", url)[0].lower() if is_web else url.lower()
        try:
            if "::" in url and not is_web:
                yield _refused(url, _CHAIN)
            elif not is_glob and bare.endswith(ARCHIVES):
                yield _refused(url, _ARCHIVE)
            elif not is_glob and (is_web or bare.endswith(IMAGE_SUFFIXES)):
                yield RemotePhoto(name=url, url=url, policy=policy)
            else:
                yield from self._in_bucket(url, is_glob=is_glob)
        except CaptionerError:
            raise
        except Exception as error:  # each file system has its own exceptions
            yield _refused(url, f"the URL cannot be listed ({reason_of(error)}): check it")

    def _in_bucket(self, url: str, *, is_glob: bool) -> Iterator[Photo]:
        """Yield the photos that match a glob, or below a prefix."""
        system, path = file_system(url)
        base = path.rstrip("/")
        names: list[str] = sorted(system.glob(path if is_glob else f"{base}/**"))
        if not names:
            if not system.exists(path):
                raise FileNotFoundError(url)
            names = [path] if is_glob else []  # its name has a bracket or star
        for name in names:
            is_hidden = "/." in name.removeprefix(base)
            link = system.unstrip_protocol(name)
            if is_glob and link.lower().endswith(ARCHIVES):
                yield _refused(link, _ARCHIVE)
            elif is_glob or (name.lower().endswith(IMAGE_SUFFIXES) and not is_hidden):
                yield RemotePhoto(name=link, url=link)


def _refused(url: str, reason: str) -> LostPhoto:
    return LostPhoto(name=url, reason=f"{url}: {reason}")


def _count_link(folder: str, skipped: Counter[str]) -> None:
    skipped[f"link to a folder ({os.path.normpath(folder)})"] = 1


def _walk(folder: str, skipped: Counter[str]) -> Iterator[tuple[str, list[str], str | None]]:
    """Yield each folder with its sorted files, or with the reason why it cannot be listed.

    Hidden files and folders are skipped. Symbolic links to folders are not followed.
    """
    problems: list[OSError] = []
    for here, folders, files in os.walk(folder, onerror=problems.append):
        while problems:
            problem = problems.pop(0)
            yield str(problem.filename), [], problem.strerror
        folders.sort()
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (os.path.join(here, name) for name in folders):
            if os.path.islink(path):
                _count_link(path, skipped)
        yield here, sorted(name for name in files if not name.startswith(".")), None
    for problem in problems:
        yield str(problem.filename), [], problem.strerror


def _matches(pattern: str, skipped: Counter[str]) -> Iterator[str]:
    """Yield the matches of a pattern, as a shell with globstar does.

    ** does not follow symbolic links to folders.

    Raises DataError: there are no matches.
    """
    path = None
    for path in _matches_of(pattern, skipped):
        yield path
    if path is None:
        raise DataError(f"nothing matches {pattern}: check the folder, and quote the pattern")


def _matches_of(pattern: str, skipped: Counter[str]) -> Iterator[str]:
    before, *after = _STARS.split(pattern, maxsplit=1)
    if not after:
        yield from sorted(glob.glob(pattern))
        return
    for top in sorted(glob.glob(before)) if before else [""]:
        for folder, _, _ in _walk(top or ".", skipped):
            prefix = glob.escape(folder if top else folder[2:])  # without ./
            yield from _matches_of(os.path.join(prefix, after[0] or "*"), skipped)


def _is_table(source: str) -> bool:
    suffix = os.path.splitext(source)[1].lower()
    return suffix in TABLES and suffix != ".json" and not is_url(source)


def _is_pipe(source: str) -> bool:
    """Return whether a source can be read only once, such as /dev/stdin and <(...) of a shell."""
    return os.path.exists(source) and not (os.path.isfile(source) or os.path.isdir(source))
