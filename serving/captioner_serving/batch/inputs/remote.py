"""Photos at URLs (s3://, gs://, https://, ...), by fsspec and the file systems of its extras."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import IO, TYPE_CHECKING, TypeVar, cast

from captioner.errors import CaptionerError
from captioner.paths import is_web_address
from captioner_serving.batch.inputs.archives import ARCHIVES, tar_stream_photos
from captioner_serving.batch.inputs.links import Reach, open_file_system, read_up_to, reason_of
from captioner_serving.batch.inputs.photos import LostPhoto, Photo, RemotePhoto

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["remote_photos"]

_SECONDS = 120.0  # that each piece of an archive may take to come, as a photo may
_PIECE = 1 << 20  # bytes

T = TypeVar("T")


def remote_photos(
    url: str, suffixes: tuple[str, ...], *, recursive: bool, reach: Reach
) -> Iterator[Photo]:
    """List what a URL stands for: a photo, a tar file, a glob, a folder or bucket.

    Raises:
        MissingExtraError: the extra that reads such URLs is not there.

    """
    web = is_web_address(url)
    bare = re.split(r"[?#]", url)[0].lower() if web else url.lower()
    try:
        system, path = open_file_system(url, reach)
        if bare.endswith(".zip"):
            reason = f"{url}: zip files are not read over links; download it, or make it a .tar"
            yield LostPhoto(name=url, reason=reason)
        elif bare.endswith(ARCHIVES):
            with _in_time(partial(system.open, path, "rb")) as file:
                timed = cast(IO[bytes], _TimedFile(file))
                yield from tar_stream_photos(timed, url, suffixes)
        elif web or bare.endswith(suffixes):
            if any(sign in url for sign in "*[") and not web:
                matches = sorted(system.glob(path))
                if not matches:
                    yield LostPhoto(name=url, reason=f"{url} matches nothing: check the pattern")
                for match in matches:
                    yield _photo(system, match)
            else:
                yield RemotePhoto(name=url, url=url, reach=reach)
        else:
            for folder, folders, files in system.walk(path, on_error="raise"):
                folders.sort() if isinstance(folders, list) else None
                for name in sorted(files):
                    if name.lower().endswith(suffixes) and not name.startswith("."):
                        yield _photo(system, f"{folder.rstrip('/')}/{name}")
                if not recursive:
                    return
    except CaptionerError:
        raise
    except Exception as error:
        yield LostPhoto(
            name=url, reason=f"{url} cannot be listed ({reason_of(error)}): check the link"
        )


class _TimedFile:
    """A file behind a link, each piece of which has to come in time: the others are waiting."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._piece = io.BytesIO()
        self._place = 0

    def read(self, size: int) -> bytes:
        """Read at most so many bytes; none only at the end.

        Raises:
            TimeoutError: they did not come in time.

        """
        if not (data := self._piece.read(size)):
            self._piece = io.BytesIO(_in_time(partial(read_up_to, self._file, _PIECE)))
            data = self._piece.read(size)
        self._place += len(data)
        return data

    def tell(self) -> int:
        """Count the bytes that were read."""
        return self._place


def _in_time(call: Callable[[], T]) -> T:
    """Call, and wait for it no longer than is allowed; few file systems have a limit of their own.

    Raises:
        TimeoutError: it took too long.

    """
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name="listing", daemon=True).start()
    try:
        return result.result(_SECONDS)
    except TimeoutError as error:
        raise TimeoutError(f"its link is stalled: no more came within {_SECONDS:g} s") from error


def _photo(system: AbstractFileSystem, path: str) -> Photo:
    url = system.unstrip_protocol(path)
    return RemotePhoto(name=url, url=url)
