"""Downloads that take hours: resumed where they stopped, tried again, and checked at the end."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import BinaryIO

import httpx
from tqdm import tqdm

from captioner import __version__
from captioner.errors import DownloadError, OutputError
from captioner_training.prepare.published import RemoteFile

__all__ = ["Downloader"]

_TRY_AGAIN = {408, 425, 429, 500, 502, 503, 504}
_LONGEST_WAIT = 300.0  # seconds; a server may ask for more, and is asked again then


class _TransferError(Exception):
    """The transfer stopped early, and may be taken up again."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = wait


class Downloader:
    """Downloads files into a folder; one that is there by its name is whole and checked.

    Args:
        folder: where the files go; unfinished ones are NAME.part.
        tries: attempts without a single new byte before it gives up.
        backoff: seconds before the second attempt; they double from try to try.

    """

    def __init__(self, folder: Path, *, tries: int = 8, backoff: float = 0.5) -> None:
        self.folder = folder
        self.tries = tries
        self.backoff = backoff
        self._client = httpx.Client(
            follow_redirects=True,
            timeout=httpx.Timeout(30.0),
            # A compressed transfer could not be resumed at a byte of the file.
            headers={"User-Agent": f"captioner/{__version__}", "Accept-Encoding": "identity"},
        )

    def __enter__(self) -> Downloader:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def read_text(self, url: str) -> str | None:
        """Fetch a small text; None: the server has none.

        Raises:
            DownloadError: the server cannot be reached.

        """
        for attempt in range(self.tries):
            try:
                response = self._client.get(url)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                reason = str(error) or type(error).__name__
                if isinstance(error, httpx.UnsupportedProtocol | httpx.InvalidURL):
                    break
            else:
                if response.status_code not in _TRY_AGAIN:
                    return response.text if response.is_success else None
                reason = f"status {response.status_code}"
            self._wait(attempt, f"{url}: {reason}")
        raise DownloadError(f"{url} cannot be reached ({reason}): check the network and the URL")

    def sizes(self, file: RemoteFile) -> tuple[int, int]:
        """Say how many bytes a file has and how many are still to be fetched; unknown: 0."""
        path, part = self.folder / file.name, self._part(file)
        if path.exists():
            return _size(path), 0
        size = file.size
        if size is None:
            try:
                response = self._client.head(file.url)
                length = response.headers.get("Content-Length", "") if response.is_success else ""
            except (httpx.HTTPError, httpx.InvalidURL):
                length = ""  # the download itself will say what is wrong
            size = int(length) if length.isdigit() else 0
        return size, max(0, size - _size(part))

    def fetch(self, file: RemoteFile) -> Path:
        """Download a file, or the rest of it, and check it.

        Raises:
            DownloadError: the server does not have it, gives up on it too often, or what it
                gives differs from the known size or checksum.
            OutputError: the disk is full, or the folder cannot be written.

        """
        path = self.folder / file.name
        if path.exists():
            return path
        for attempt in ("first", "second"):
            self._transfer(file)
            with _writing(path):
                wrong = file.differs(self._part(file))
                if wrong is None:
                    break
                self._part(file).unlink()
            if attempt == "second":
                raise DownloadError(
                    f"{file.url} is not the file that was published: {wrong}; it was fetched twice "
                    "and deleted"
                )
        with _writing(path):
            self._part(file).replace(path)
            self._state(file).unlink(missing_ok=True)
        return path

    def _transfer(self, file: RemoteFile) -> None:
        failures = 0
        while True:
            before = _size(self._part(file))
            try:
                self._attempt(file)
                return
            except httpx.UnsupportedProtocol as error:
                raise DownloadError(f"{file.url} cannot be downloaded: {error}") from error
            except (httpx.TransportError, _TransferError) as error:
                # Without a single new byte it is a failure; a server that always drops the line
                # after some more bytes still gets there.
                failures = 1 if _size(self._part(file)) > before else failures + 1
                reason = str(error) or type(error).__name__
                if failures >= self.tries:
                    raise DownloadError(
                        f"{file.url} cannot be downloaded ({reason}, {failures} times in a row): "
                        "run the same command again later; it goes on where it stopped"
                    ) from error
                self._wait(failures - 1, f"{file.name}: {reason}", getattr(error, "wait", 0.0))
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise DownloadError(f"{file.url} cannot be downloaded: {error}") from error

    def _attempt(self, file: RemoteFile) -> None:
        """Make one request and write what it gives; returns when the file is complete."""
        part, validator = self._part(file), self._validator(file)
        # What is resumed without a validator must have a checksum to be found out by.
        offset = _size(part) if validator or file.checksum else 0
        if offset and offset == file.size:
            return
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        if offset and validator:
            headers["If-Range"] = validator
        with self._client.stream("GET", file.url, headers=headers) as response:
            _check_status(response, file)
            if response.status_code == 416:
                if response.headers.get("Content-Range") == f"bytes */{offset}":
                    return  # an earlier run was interrupted after the last byte
                with _writing(part):
                    part.unlink(missing_ok=True)
                raise _TransferError("the server no longer has the rest of the file")
            start = _start(response)
            total = _total(response, start)
            if file.size is not None and total is not None and total != file.size:
                raise DownloadError(
                    f"{file.url} is not the file that was published: it has {total:,} bytes, not "
                    f"{file.size:,}"
                )
            if start > offset:
                raise _TransferError("the server sent a different part than requested")
            with _writing(part):
                if start == 0:
                    part.write_bytes(b"")  # before the validator: it must not vouch for old bytes
                self._state(file).write_text(json.dumps({"validator": _validator(response)}))
            self._receive(response, part, start, total, file.name)
        if total is not None and _size(part) < total:
            raise _TransferError("the connection was closed early")

    def _receive(
        self, response: httpx.Response, part: Path, start: int, total: int | None, name: str
    ) -> None:
        bar = tqdm(total=total, initial=start, desc=name, unit="B", unit_scale=True, disable=None)
        with bar, _open(part) as output:
            output.seek(start)
            output.truncate()
            for chunk in response.iter_raw():
                with _writing(part):
                    output.write(chunk)
                bar.update(len(chunk))

    def _validator(self, file: RemoteFile) -> str:
        """What the server called the version of which a part is there."""
        try:
            return str(json.loads(self._state(file).read_text())["validator"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def _part(self, file: RemoteFile) -> Path:
        return self.folder / f"{file.name}.part"

    def _state(self, file: RemoteFile) -> Path:
        return self.folder / f"{file.name}.part.json"

    def _wait(self, failures: int, reason: str, least: float = 0.0) -> None:
        doubled = min(60.0, self.backoff * 2**failures)
        # Chance keeps many clients from coming back at the same moment.
        seconds = max(least, doubled * random.uniform(0.5, 1.0))
        tqdm.write(f"{reason}; trying again in {seconds:.1f} s", file=sys.stderr)
        time.sleep(seconds)


def _check_status(response: httpx.Response, file: RemoteFile) -> None:
    code = response.status_code
    if code in _TRY_AGAIN:
        raise _TransferError(f"the server answers {code}", wait=_retry_after(response))
    if code not in (200, 206, 416):
        raise DownloadError(f"{file.url} cannot be downloaded: the server answers {code}")


def _retry_after(response: httpx.Response) -> float:
    """Read Retry-After, in seconds or as a date."""
    value = response.headers.get("Retry-After", "")
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            seconds = 0.0
    return min(max(seconds, 0.0), _LONGEST_WAIT)


def _start(response: httpx.Response) -> int:
    """Where in the file the body begins: a server may ignore that only a part was asked for."""
    if response.status_code != 206:
        return 0
    given = response.headers.get("Content-Range", "").removeprefix("bytes ").split("-")[0]
    if not given.isdigit():
        raise _TransferError("the server does not say which part it is sending")
    return int(given)


def _total(response: httpx.Response, start: int) -> int | None:
    length = response.headers.get("Content-Length", "")
    return start + int(length) if length.isdigit() else None


def _validator(response: httpx.Response) -> str:
    """A strong ETag, else the date: what If-Range takes."""
    etag: str = response.headers.get("ETag", "")
    if etag and not etag.startswith("W/"):
        return etag
    modified: str = response.headers.get("Last-Modified", "")
    return modified


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _open(path: Path) -> BinaryIO:
    with _writing(path):
        return path.open("r+b" if path.exists() else "wb")


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}") from error
