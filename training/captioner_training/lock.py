"""Allow one process at a time in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from captioner.errors import OutputError
from captioner.files import writing

__all__ = ["locked"]


@contextmanager
def locked(file: Path, *, verb: str, what: Path) -> Iterator[None]:
    """Hold a lock file until the block or the process ends.

    Its folder is created if needed. A file and folders that the block leaves empty are removed.

    Raises OutputError: another `captioner VERB` works in `what`, or the file cannot be written.
    """
    created = [folder for folder in file.parents if not folder.exists()]
    lock = FileLock(file, blocking=False)
    with writing(what):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except Timeout as error:
            raise OutputError(
                f"another `captioner {verb}` is at work in {what}: wait until it ends, or choose "
                "another folder"
            ) from error
    try:
        yield
    finally:
        with suppress(OSError):
            if created and set(file.parent.iterdir()) <= {file}:
                file.unlink(missing_ok=True)
                for folder in created:
                    folder.rmdir()
        lock.release()
