"""Files: the one way to write one, and how to know one again.

Whoever reads its name finds the old file or the new one, whole: the new one is written beside the
old one, brought to the disk, and only then takes its name.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from captioner.errors import ConfigError, OutputError

__all__ = [
    "HEADER_KEY",
    "digest",
    "file_digest",
    "identity",
    "new_part",
    "refuse_input",
    "replace_file",
    "sync_folder",
    "writing",
]

HEADER_KEY = "captioner"
"""Under which a checkpoint's header stands in the metadata of its file."""


@contextmanager
def replace_file(path: str | os.PathLike[str], *, part: str | None = None) -> Iterator[BinaryIO]:
    """Open a binary file that becomes `path` when the block ends without an error.

    >>> with replace_file("captions.json") as file:         # doctest: +SKIP
    ...     file.write(data)

    It has the permissions of the file it replaces, or those that any new file gets. A link is
    written through. After an error, `path` is as it was and nothing is left beside it; a process
    that is killed may leave a hidden file `.captioner-*.part`. Once the block has ended, the file
    survives a power cut. `file.name` is where the bytes are until then, for writers that want a
    path.

    Args:
        path: of the file.
        part: the name of that hidden file, from `new_part`, for a writer of one file at a time who
            wants to find what it left when it was killed. None: a name that is used but once.

    Raises OutputError: the file cannot be written: an OSError from opening it, or in the block.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(part or new_part())
    with writing(path):
        try:
            rights = _rights(target)
            if part is not None:
                temporary.unlink(missing_ok=True)
            # Not tempfile: its files are private, and asking for the umask disturbs other threads.
            with temporary.open("xb") as file:
                if rights is not None:
                    os.fchmod(file.fileno(), rights)
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        sync_folder(target.parent)


@contextmanager
def writing(what: str | os.PathLike[str]) -> Iterator[None]:
    """Raise OutputError where the block raises OSError: `what` cannot be written, and why."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"{what} cannot be written: {error.strerror or error}") from error


def new_part() -> str:
    """Name a file that is being written so that two writers do not meet."""
    return f".captioner-{secrets.token_hex(8)}.part"


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Bring the names in a folder to the disk, or a new file could be missing after a power cut.

    Raises OSError: the disk failed.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def identity(path: str | os.PathLike[str]) -> set[object]:
    """Name a file so that links and other spellings of its path are recognised.

    Two paths lead to one file when these sets have anything in common.
    """
    real = os.path.realpath(path)
    # On these systems A.jpg is a.jpg.
    keys: set[object] = {real.casefold() if sys.platform in ("darwin", "win32") else real}
    with suppress(OSError, ValueError):
        status = Path(real).stat()
        keys.add((status.st_dev, status.st_ino))
    return keys


def digest(text: str | bytes) -> bytes:
    """Digest a name or the content of a file: sixteen bytes that stand for it."""
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return hashlib.sha256(data).digest()[:16]


def file_digest(path: Path, algorithm: str = "sha256") -> str:
    """Digest a file, in hexadecimal. Raises OSError where it cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def refuse_input(
    option: str, path: str | os.PathLike[str], inputs: Iterable[str | os.PathLike[str] | None]
) -> None:
    """Refuse to write a file that the same command reads, or that lies in a folder it reads.

    Args:
        option: what the file was typed behind, for the error.
        path: the file to be written.
        inputs: files and folders; None stands for one that was not given.

    Raises ConfigError: it is one of them.
    """
    written = identity(path)
    for name in (name for name in inputs if name is not None):
        inside = Path(path).exists() and Path(name).resolve() in Path(path).resolve().parents
        if inside or identity(name) & written:
            raise ConfigError(
                f"{option} {path} would overwrite what this command reads, {name}: "
                "name another file"
            )


def _rights(target: Path) -> int | None:
    """Read the permissions of the file that is there; None where there is none.

    Raises OSError: what is there is not a file: a folder, a device, a pipe.
    """
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        raise OSError("it is not a file")
    return stat.S_IMODE(mode)
