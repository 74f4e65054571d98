"""One process at a time in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from captioner.errors import OutputError
from captioner.files import writing

__all__ = ["locked"]


@contextmanager
def locked(file: Path, *, verb: str, what: Path) -> Iterator[None]:
    """Hold a lock file until the block ends, or the process, however it ends.

    Its folder is made if need be. Where the block leaves nothing else there, both go again. An
    error says that `captioner VERB` is at work in `what`.

    Raises OutputError: another process holds it, or it cannot be written.
    """
    made = [folder for folder in file.parents if not folder.exists()]
    with writing(what):
        file.parent.mkdir(parents=True, exist_ok=True)
        handle = file.open("a")  # it may be a file of others
    with handle:
        with suppress(ImportError):  # not on Windows
            import fcntl

            try:
                # Not flock, which the workers of a killed process would go on to hold for seconds.
                fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError) as error:
                raise OutputError(
                    f"another `captioner {verb}` is at work in {what}: let it end, or choose "
                    "another folder"
                ) from error
        try:
            yield
        finally:
            with suppress(OSError):
                if made and list(file.parent.iterdir()) == [file]:
                    file.unlink()
                    for folder in made:
                        folder.rmdir()
