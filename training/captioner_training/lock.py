"""A lock on a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from captioner.errors import OutputError
from captioner.files import writing


@contextmanager
def locked(file: Path, *, verb: str, folder: Path) -> Iterator[None]:
    """Hold a lock file until the block or the process ends.

    Missing parent folders are created, and removed again if the block leaves them empty. The error
    names the command `verb` and the locked `folder`.

    Raises OutputError: another process has the lock, or the file cannot be written.
    """
    created = [parent for parent in file.parents if not parent.exists()]
    lock = FileLock(file, blocking=False)
    with writing(folder):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except Timeout as error:
            raise OutputError(
                f"another `captioner {verb}` is running in {folder}: wait until it ends, or choose "
                "another folder"
            ) from error
    try:
        yield
    finally:
        with suppress(OSError):
            if created and set(file.parent.iterdir()) <= {file}:
                file.unlink(missing_ok=True)
                for parent in created:
                    parent.rmdir()
        lock.release()
