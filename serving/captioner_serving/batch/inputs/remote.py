"""Photos at URLs (s3://, gs://, https://, ...), by fsspec and the file systems of its extras."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from captioner.errors import CaptionerError
from captioner.paths import is_web_address
from captioner_serving.batch.inputs.archives import ARCHIVES, tar_stream_photos
from captioner_serving.batch.inputs.links import Reach, open_file_system, reason_of
from captioner_serving.batch.inputs.photos import LostPhoto, Photo, RemotePhoto

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["remote_photos"]


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
            with system.open(path, "rb") as file:
                yield from tar_stream_photos(file, url, suffixes)
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


def _photo(system: AbstractFileSystem, path: str) -> Photo:
    url = system.unstrip_protocol(path)
    return RemotePhoto(name=url, url=url)
