"""Download large files with retries, resume and verification."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import httpx
from tqdm import tqdm

from captioner import __version__
from captioner.certificates import CertificatesError, tls_context
from captioner.errors import DownloadError
from captioner.shared.files import file_digest, writing

_RETRY_STATUS = {408, 425, 429, 500, 502, 503, 504}
_LONGEST_WAIT = 60.0  # seconds between two attempts


class _TransferError(Exception):
    """The transfer stopped early and can be retried."""


def fetch(
    url: str, folder: Path, *, checksum: str | None = None, tries: int = 8, backoff: float = 0.5
) -> Path:
    """Download a file into a folder and return its path. An existing file is not downloaded again.

    Args:
        url: URL of the file.
        folder: where to store the file. Its name is the last part of the URL, and NAME.part until
            the file is complete.
        checksum: "md5:...", "sha1:..." or "sha256:..."; a download without one is not resumed.
        tries: attempts in a row without a new byte before giving up.
        backoff: seconds before the second attempt, doubled for each further one.

    Raises:
        DownloadError: the server does not have the file, fails too often, or sends another file.
        OutputError: the disk is full, or the folder cannot be written.
    """
    path = folder / url.rsplit("/", 1)[-1]
    part = path.with_name(f"{path.name}.part")
    if path.exists():
        return path
    with writing(path):
        _download(url, part, resume=checksum is not None, tries=tries, backoff=backoff)
        if checksum is not None:
            algorithm, _, expected = checksum.partition(":")
            if file_digest(part, algorithm) != expected:
                part.unlink()
                raise DownloadError(
                    f"{url} is not the published file (expected {checksum}) and was deleted: run "
                    "the same command again to download it again"
                )
        part.replace(path)
    return path


def _client() -> httpx.Client:
    # Compressed transfers cannot be resumed at a byte of the file.
    headers = {"User-Agent": f"captioner/{__version__}", "Accept-Encoding": "identity"}
    try:
        context = tls_context()
    except CertificatesError as error:
        raise DownloadError(str(error)) from error
    return httpx.Client(verify=context, follow_redirects=True, timeout=30.0, headers=headers)


def _download(url: str, part: Path, *, resume: bool, tries: int, backoff: float) -> None:
    """Transfer until the file is complete; give up after `tries` attempts without a new byte."""
    failures = most = 0
    with _client() as client:
        while True:
            try:
                return _transfer(client, url, part, offset=_size(part) if resume else 0)
            except (httpx.UnsupportedProtocol, httpx.InvalidURL, httpx.TooManyRedirects) as error:
                raise DownloadError(f"{url} cannot be downloaded: {error}") from error
            except (httpx.HTTPError, _TransferError) as error:
                reason = str(error) or type(error).__name__
                failures = 1 if _size(part) > most else failures + 1
                most = max(most, _size(part))
                if failures >= tries:
                    raise DownloadError(
                        f"{url} cannot be downloaded ({reason}, {failures} times in a row): run "
                        "the same command again later; files with a checksum are resumed"
                    ) from error
            seconds = min(_LONGEST_WAIT, backoff * 2 ** (failures - 1))
            tqdm.write(f"{url}: {reason}; retrying in {seconds:.1f} s", file=sys.stderr)
            time.sleep(seconds)


def _transfer(client: httpx.Client, url: str, part: Path, *, offset: int) -> None:
    """Send one request and append its body to `part`; return when the file is complete."""
    headers = {"Range": f"bytes={offset}-"} if offset else {}
    with client.stream("GET", url, headers=headers) as response:
        status = response.status_code
        if status in _RETRY_STATUS:
            raise _TransferError(f"the server answers {status}")
        if status == 416:  # the file ends at `offset`
            return
        if status not in (200, 206):
            raise DownloadError(f"{url} cannot be downloaded: the server answers {status}")
        if status == 206 and not response.headers.get("Content-Range", "").startswith(
            f"bytes {offset}-"
        ):
            raise _TransferError("the server sent a different part than requested")
        start = offset if status == 206 else 0
        total = start + length if (length := _length(response)) else None
        bar = tqdm(
            total=total, initial=start, desc=part.stem, unit="B", unit_scale=True, disable=None
        )
        with writing(part), bar, part.open("ab" if start else "wb") as output:
            for chunk in response.iter_raw():
                output.write(chunk)
                bar.update(len(chunk))
    if total and _size(part) < total:
        raise _TransferError("the connection was closed early")


def _length(response: httpx.Response) -> int:
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isdigit() else 0


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
