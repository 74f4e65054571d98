"""Inputs from the command line as a stream of photos, which are never all in memory."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from captioner.errors import CaptionerError, ConfigError, DataError
from captioner.paths import is_system_folder, is_web_address, there_is_no
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

_SCHEMES = ("http", "https", "s3", "gs")
_SIDECARS = (".txt", ".caption", ".json", ".xmp")
_STARS = re.compile(r"(?:^|(?<=/))\*\*(?:/|$)")
_NAMED = 10  # links in the summary
_KINDS = 20  # suffixes and folders in the summary


class LeftOut:
    """Counts skipped entries of folders.

    These are files that are not images, symbolic links to folders, photos in folders of thumbnails
    and deleted files, and excluded photos. Sidecars, backups of exiftool, and `ignored` files are
    not counted.
    """

    def __init__(self, ignored: Iterable[str | os.PathLike[str]] = ()) -> None:
        self._ignored = {os.path.realpath(path) for path in ignored}
        self._counts: Counter[str] = Counter()
        self._system: Counter[str] = Counter()
        self._excluded: Counter[str] = Counter()
        self._links: set[str] = set()

    def add_files(self, folder: str, names: Iterable[str], images: Iterable[str]) -> None:
        """Count files of a folder that are not images; sidecars of its `images` are not counted."""
        real = os.path.realpath(folder)
        owners = {*images, *(os.path.splitext(name)[0] for name in images)}
        for name in names:
            stem, suffix = os.path.splitext(name)
            is_sidecar = suffix.lower() in _SIDECARS and stem in owners
            is_sidecar |= name.removesuffix("_original") in owners
            if not is_sidecar and os.path.join(real, name) not in self._ignored:
                self._counts[suffix.lower() or "no suffix"] += 1

    def add_link(self, folder: str) -> None:
        """Count a symbolic link to a folder."""
        self._links.add(os.path.normpath(folder))

    def add_system_folder(self, folder: str) -> None:
        """Count the images in a folder of thumbnails or deleted files."""
        name = os.path.basename(folder)
        self._system[name] += sum(
            file.lower().endswith(IMAGE_SUFFIXES)
            for _, _, files in os.walk(folder)
            for file in files
        )

    def skips(self, photo: str, source: str, patterns: Sequence[str]) -> bool:
        """Return whether a photo is excluded or in a system folder below its source; count it."""
        *folders, _ = parts = photo.split("/")
        system = (part for part in folders if is_system_folder(part) and part not in source)
        if (folder := next(system, None)) is not None:
            self._system[folder] += 1
            return True
        for pattern in patterns:
            if fnmatchcase(photo, pattern) or any(fnmatchcase(part, pattern) for part in parts):
                self._excluded[pattern] += 1
                return True
        return False

    def __str__(self) -> str:
        """Return a line for each kind of skipped entries."""
        lines = []
        if self._counts:
            lines.append(f"skipped, not images: {_most_common(self._counts)}")
        if self._system:
            counts = _most_common(self._system)
            lines.append(f"skipped, photos in folders of thumbnails or deleted files: {counts}")
        if self._excluded:
            lines.append(f"skipped, --exclude: {_most_common(self._excluded)}")
        if self._links:
            number = len(self._links)
            more = f" and {number - _NAMED:,} more" if number > _NAMED else ""
            noun = "symbolic link to a folder" if number == 1 else "symbolic links to folders"
            names = ", ".join(map(in_a_line, sorted(self._links)[:_NAMED]))
            lines.append(f"skipped {number:,} {noun}; add them as inputs: {names}{more}")
        return "\n".join(lines)


def _most_common(counts: Counter[str]) -> str:
    named = [f"{number:,} {in_a_line(name)}" for name, number in counts.most_common(_KINDS)]
    if len(counts) > len(named):
        rest = counts.total() - sum(number for _, number in counts.most_common(_KINDS))
        named.append(f"{rest:,} of {len(counts) - len(named):,} other kinds")
    return ", ".join(named)


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The photos to caption.

    sources: files, folders, globs, archives, URLs, tables (with `column`), and "-" for a list on
        standard input.
    lists: files with one path or URL per line.
    column: the column with paths or URLs in tables (CSV, JSONL and Parquet) among the sources.
    root: the base folder of relative paths in lists and tables; None: the current one.
    null: NUL, not a line break, ends each name in a list (find -print0).
    recursive: search subfolders.
    exclude: patterns of photos to skip, such as "*_small.jpg"; each is compared with the whole
        name, with the file name, and with the name of each folder in it.
    schemes: URL schemes that are allowed in lists and tables, besides http, https, s3 and gs.
    allow_private: allow URLs of private addresses. Otherwise only `sources` may contain such a URL,
        and no URL may redirect to another private host.
    """

    sources: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    column: str | None = None
    root: str | None = None
    null: bool = False
    recursive: bool = True
    exclude: tuple[str, ...] = ()
    schemes: tuple[str, ...] = ()
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
        """Whether the photos can be counted without reading streams, URLs or packed archives."""
        return not any(
            name == "-" or is_url(name) or name.lower().endswith(COMPRESSED) or _is_pipe(name)
            for name in (*self.sources, *self.lists)
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
                    next(self._in_table(source), None)  # raises if it lacks the column
            elif glob.has_magic(source):
                next(_matches(source, LeftOut()))
            elif source.lower().endswith((*IMAGE_SUFFIXES, *ARCHIVES)):
                missing.append(source)
            else:
                kind = "file" if os.path.splitext(source)[1] else "folder"
                raise DataError(there_is_no(kind, Path(source)))
        if missing and len(missing) == len(self.sources) and not self.lists:
            raise DataError(there_is_no("file", Path(missing[0])))

    def without_folder(self) -> str | None:
        """Return the first source that is an archive or URL, or None.

        Its photos are not files in a folder.
        """
        packed = (s for s in self.sources if is_url(s) or s.lower().endswith(ARCHIVES))
        return next(packed, None)

    def photos(self, left_out: LeftOut | None = None) -> Iterator[Photo]:
        """Yield the photos in a fixed order; a LostPhoto for an input that cannot be listed.

        Args:
            left_out: counts the files that are skipped.

        Raises DataError: a list or table cannot be read, or a pattern has no matches.
        """
        left_out = left_out or LeftOut()
        for source in self.sources:
            is_list = source == "-" or (_is_table(source) and not is_url(source))
            for photo in self._of_source(source, left_out):
                below = photo.name if is_list else source
                if not left_out.skips(photo.name, below, self.exclude):
                    yield photo
        for path in self.lists:
            for photo in self._listed(path):
                if not left_out.skips(photo.name, photo.name, self.exclude):
                    yield photo

    def _of_source(self, source: str, left_out: LeftOut) -> Iterator[Photo]:
        """Yield the photos of one source, including those that `LeftOut.skips`."""
        if source == "-":
            yield from self._listed("-")
        elif is_url(source):
            yield from self._at_url(source)
        elif _is_table(source):
            yield from self._of_names(self._in_table(source))
        elif os.path.lexists(source) or not glob.has_magic(source):
            yield from self._at(source, left_out, search=True)
        else:
            for path in _matches(source, left_out):
                if os.path.islink(path) and os.path.isdir(path):
                    left_out.add_link(path)
                else:  # ** already matches the files in folders
                    yield from self._at(path, left_out, search="**" not in source)

    def _at(self, path: str, left_out: LeftOut, *, search: bool) -> Iterator[Photo]:
        """Yield the photos at a path."""
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
        return self._of_names(list_names(path, null=self.null, root=self.root))

    def _in_table(self, path: str) -> Iterator[str | LostPhoto]:
        return table_names(path, self.column or "", root=self.root)

    def _of_names(self, names: Iterator[str | LostPhoto]) -> Iterator[Photo]:
        for name in names:
            if isinstance(name, LostPhoto):
                yield name
            elif is_url(name):
                yield self._remote_photo(name)
            else:
                yield PhotoFile(name=name, file=os.path.join(self.root or "", name))

    def _remote_photo(self, url: str) -> Photo:
        """Return the photo at a URL from a list or table; check the scheme, which is untrusted."""
        scheme = url.split("://")[0].lower()
        if "::" in url:  # fsspec would chain file systems
            reason = f"{url}: URLs with :: are not allowed; write an IPv6 address in full"
            return LostPhoto(name=url, reason=reason)
        if scheme in (*_SCHEMES, *self.schemes):
            return RemotePhoto(name=url, url=url, policy="any" if self.allow_private else "public")
        return LostPhoto(
            name=url,
            reason=f"{url}: {scheme}:// URLs are not allowed in lists and tables; if you trust the "
            f"list, add --allow-scheme {scheme}",
        )

    def _at_url(self, url: str) -> Iterator[Photo]:
        """Yield the photos at a URL of the command line: a photo, tar file, glob or bucket."""
        policy: AddressPolicy = "any" if self.allow_private else "same-host"
        is_web = is_web_address(url)
        is_glob = not is_web and any(sign in url for sign in "*[")
        bare = re.split(r"[?#]", url)[0].lower() if is_web else url.lower()
        try:
            if is_glob:
                yield from self._in_bucket(url, is_glob=True)
            elif bare.endswith(ARCHIVES):
                yield from _remote_archive(url, policy, is_zip=bare.endswith(".zip"))
            elif is_web or bare.endswith(IMAGE_SUFFIXES):
                yield RemotePhoto(name=url, url=url, policy=policy)
            else:
                yield from self._in_bucket(url, is_glob=False)
        except CaptionerError:
            raise
        except Exception as error:  # each file system has its own exceptions
            yield _lost(url, error)

    def _in_bucket(self, url: str, *, is_glob: bool) -> Iterator[Photo]:
        """Yield the photos that match a glob, or below a prefix."""
        system, path = file_system(url)
        base = path.rstrip("/")
        pattern = path if is_glob else f"{base}/**" if self.recursive else f"{base}/*"
        names: list[str] = sorted(system.glob(pattern))
        if not names:
            if not system.exists(path):
                raise FileNotFoundError(url)
            names = [path] if is_glob else []  # its name has a bracket or star
        for name in names:
            is_hidden = "/." in name.removeprefix(base)
            link = system.unstrip_protocol(name)
            if is_glob and link.lower().endswith(ARCHIVES):
                yield from _remote_archive(link, "any", is_zip=link.lower().endswith(".zip"))
            elif is_glob or (name.lower().endswith(IMAGE_SUFFIXES) and not is_hidden):
                yield RemotePhoto(name=link, url=link)


def _lost(url: str, error: Exception) -> LostPhoto:
    reason = f"{url} cannot be listed ({reason_of(error)}): check the URL"
    return LostPhoto(name=url, reason=reason)


def _remote_archive(url: str, policy: AddressPolicy, *, is_zip: bool) -> Iterator[Photo]:
    """Yield the photos of a tar file at a URL."""
    if is_zip:
        reason = f"{url}: zip files at URLs are not supported; download it, or use a .tar"
        yield LostPhoto(name=url, reason=reason)
        return
    try:
        with open_link(url, policy) as file:
            yield from tar_stream_photos(file, url)
    except CaptionerError:
        raise
    except Exception as error:  # each file system has its own exceptions
        yield _lost(url, error)


def _walk(
    folder: str, left_out: LeftOut, *, recursive: bool
) -> Iterator[tuple[str, list[str], str | None]]:
    """Yield each folder with its sorted files, or with the reason why it cannot be listed.

    Hidden files and folders, and system folders, are skipped. Symbolic links to folders are not
    followed.
    """
    problems: list[OSError] = []
    for here, folders, files in os.walk(folder, onerror=problems.append):
        while problems:
            problem = problems.pop(0)
            yield str(problem.filename), [], problem.strerror
        folders[:] = sorted(folders) if recursive else []
        for name in filter(is_system_folder, folders):
            left_out.add_system_folder(os.path.join(here, name))
        folders[:] = [n for n in folders if not (n.startswith(".") or is_system_folder(n))]
        for path in (os.path.join(here, name) for name in folders):
            if os.path.islink(path):
                left_out.add_link(path)
        yield here, sorted(name for name in files if not name.startswith(".")), None
    for problem in problems:
        yield str(problem.filename), [], problem.strerror


def _matches(pattern: str, left_out: LeftOut) -> Iterator[str]:
    """Yield the matches of a pattern, as a shell with globstar does.

    ** does not follow symbolic links to folders.

    Raises DataError: there are no matches.
    """
    path = None
    for path in _matches_of(pattern, left_out):
        yield path
    if path is None:
        raise DataError(f"nothing matches {pattern}: check the folder, and quote the pattern")


def _matches_of(pattern: str, left_out: LeftOut) -> Iterator[str]:
    before, *after = _STARS.split(pattern, maxsplit=1)
    if not after:
        yield from sorted(glob.glob(pattern))
        return
    for top in sorted(glob.glob(before)) if before else [""]:
        for folder, _, _ in _walk(top or ".", left_out, recursive=True):
            prefix = glob.escape(folder if top else folder[2:])  # without ./
            yield from _matches_of(os.path.join(prefix, after[0] or "*"), left_out)


def _is_table(source: str) -> bool:
    suffix = os.path.splitext(source)[1].lower()
    return suffix in TABLES and suffix != ".json" and not is_url(source)


def _is_pipe(source: str) -> bool:
    """Return whether a source can be read only once, such as /dev/stdin and <(...) of a shell."""
    return os.path.exists(source) and not (os.path.isfile(source) or os.path.isdir(source))
