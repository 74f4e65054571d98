"""Downloads that take hours: resumed where they stopped, tried again, and checked at the end.

pooch, which would do the rest, begins a file anew that broke off.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx
from tqdm import tqdm

from captioner import __version__
from captioner.closing import Closing
from captioner.errors import DownloadError
from captioner.files import file_digest, writing

__all__ = ["Downloader", "RemoteFile"]

_TRY_AGAIN = {408, 425, 429, 500, 502, 503, 504}
_LONGEST_WAIT = 60.0  # seconds between two tries

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """A file on the web and what is known of it."""

    url: str
    size: int | None = None  # bytes
    checksum: str | None = None  # "md5:...", "sha1:..." or "sha256:..."

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.url.rsplit("/", 1)[-1]

    def difference(self, path: Path) -> str | None:
        """Compare a local file with what is known; None: it is the same. Raises OSError."""
        size = path.stat().st_size
        if self.size is not None and size != self.size:
            return f"it has {size:,} bytes, not {self.size:,}"
        if self.checksum is None:
            return None
        tqdm.write(f"checking {self.name}", file=sys.stderr)
        algorithm, _, expected = self.checksum.partition(":")
        found = file_digest(path, algorithm)
        return None if found == expected else f"its {algorithm} is {found}, not {expected}"


class _TransferError(Exception):
    """The transfer stopped early, and may be taken up again."""


class Downloader(Closing):
    """Downloads files into a folder; one that is there by its name is whole and checked.

    An unfinished one is NAME.part. It gives up after `tries` attempts without a new byte;
    `backoff` is the seconds before the second one, and doubles from try to try.
    """

    def __init__(self, folder: Path, *, tries: int = 8, backoff: float = 0.5) -> None:
        self.folder, self.tries, self.backoff = folder, tries, backoff
        self._client = httpx.Client(
            follow_redirects=True,
            timeout=httpx.Timeout(30.0),
            # A compressed transfer could not be resumed at a byte of the file.
            headers={"User-Agent": f"captioner/{__version__}", "Accept-Encoding": "identity"},
        )

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def read_text(self, url: str) -> str | None:
        """Fetch a small text; None: the server has none. Raises DownloadError."""

        def get() -> str | None:
            response = self._client.get(url)
            _check_busy(response)
            return response.text if response.is_success else None

        return self._again_and_again(url, get)

    def sizes(self, file: RemoteFile) -> tuple[int, int]:
        """Give the bytes that a file has and those that are still to be fetched; unknown: 0."""
        if (path := self.folder / file.name).exists():
            return _size(path), 0
        size = file.size or 0
        if not size:
            with suppress(httpx.HTTPError, httpx.InvalidURL):  # the download will say what is wrong
                response = self._client.head(file.url)
                size = _length(response) if response.is_success else 0
        return size, max(0, size - _size(self._part(file)))

    def fetch(self, file: RemoteFile) -> Path:
        """Download a file, or the rest of it, and check it.

        Raises:
            DownloadError: the server does not have it, gives up on it too often, or what it
                gives differs from the known size or checksum.
            OutputError: the disk is full, or the folder cannot be written.
        """
        path, part = self.folder / file.name, self._part(file)
        if path.exists():
            return path
        self._again_and_again(file.url, lambda: self._transfer(file), part)
        with writing(path):
            if (wrong := file.difference(part)) is None:
                part.replace(path)
                return path
            part.unlink()
        raise DownloadError(
            f"{file.url} is not the file that was published: {wrong}; it was deleted, and the same "
            "command fetches it again"
        )

    def _again_and_again(
        self, url: str, attempt: Callable[[], Result], part: Path | None = None
    ) -> Result:
        """Try until it works, or fails `tries` times in a row without a new byte in `part`."""
        failures, most = 0, _size(part)
        while True:
            try:
                return attempt()
            except (httpx.UnsupportedProtocol, httpx.InvalidURL, httpx.TooManyRedirects) as error:
                raise DownloadError(f"{url} cannot be downloaded: {error}") from error
            except (httpx.HTTPError, _TransferError) as error:
                # A server that always drops the line after some more bytes still gets there.
                size = _size(part)
                failures, most = 1 if size > most else failures + 1, max(most, size)
                reason = str(error) or type(error).__name__
                if failures >= self.tries:
                    raise DownloadError(
                        f"{url} cannot be downloaded ({reason}, {failures} times in a row): run "
                        "the same command again later; what has a checksum goes on where it stopped"
                    ) from error
            seconds = min(_LONGEST_WAIT, self.backoff * 2 ** (failures - 1))
            tqdm.write(f"{url}: {reason}; trying again in {seconds:.1f} s", file=sys.stderr)
            time.sleep(seconds)

    def _transfer(self, file: RemoteFile) -> None:
        """Make one request and write what it gives; returns when the file is complete."""
        part = self._part(file)
        # A part of what has changed since is found out by its checksum: without one, all again.
        offset = _size(part) if file.checksum else 0
        if offset and offset == file.size:
            return
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        with self._client.stream("GET", file.url, headers=headers) as response:
            start = _start(response, offset, file.url)
            if start is None:
                return
            length = _length(response)
            total = start + length if length else None
            if file.size and total and total != file.size:
                raise DownloadError(
                    f"{file.url} is not the file that was published: it has {total:,} bytes, not "
                    f"{file.size:,}"
                )
            with writing(part):
                self._receive(response, part, start, total)
        if total and _size(part) < total:
            raise _TransferError("the connection was closed early")

    def _receive(self, response: httpx.Response, part: Path, start: int, total: int | None) -> None:
        name = part.name.removesuffix(".part")
        bar = tqdm(total=total, initial=start, desc=name, unit="B", unit_scale=True, disable=None)
        with bar, part.open("ab" if start else "wb") as output:
            for chunk in response.iter_raw():
                output.write(chunk)
                bar.update(len(chunk))

    def _part(self, file: RemoteFile) -> Path:
        return self.folder / f"{file.name}.part"


def _start(response: httpx.Response, offset: int, url: str) -> int | None:
    """Find where in the file the body begins; None: there is nothing behind `offset`.

    A server may ignore that only a part was asked for. Raises DownloadError where it has no file.
    """
    _check_busy(response)
    if response.status_code in (200, 416):
        return 0 if response.status_code == 200 else None
    if response.status_code != 206:
        raise DownloadError(
            f"{url} cannot be downloaded: the server answers {response.status_code}"
        )
    if not response.headers.get("Content-Range", "").startswith(f"bytes {offset}-"):
        raise _TransferError("the server sent a different part than requested")
    return offset


def _check_busy(response: httpx.Response) -> None:
    """Raise _TransferError where a server asks to be asked again."""
    if response.status_code in _TRY_AGAIN:
        raise _TransferError(f"the server answers {response.status_code}")


def _length(response: httpx.Response) -> int:
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isdigit() else 0


def _size(path: Path | None) -> int:
    return path.stat().st_size if path and path.exists() else 0
