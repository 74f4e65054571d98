"""Write files safely, and recognise the same file under different paths.

`replace_file` writes a temporary file beside the target, flushes it to the disk and renames it. A
reader sees either the old or the new file, never a part.
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

IS_WINDOWS = os.name == "nt"

HEADER_KEY = "captioner"
"""The key of a checkpoint's header in the metadata of its safetensors file."""


@contextmanager
def replace_file(path: str | os.PathLike[str], *, part: str | None = None) -> Iterator[BinaryIO]:
    """Open a temporary binary file that replaces `path` when the block ends without an error.

    >>> with replace_file("captions.json") as file:         # doctest: +SKIP
    ...     file.write(data)

    The new file has the permissions of the old one. A symbolic link is kept, and its target
    is replaced. After an error `path` is unchanged. A killed process may leave a hidden
    `.captioner-*.part`. After the block the file survives a power cut. `file.name` is the temporary
    path.

    Args:
        path: the path of the file.
        part: the name of the temporary file, from `new_part`, so that the caller can find it after
            a crash; not for concurrent writers. None: a unique name.

    Raises OutputError: an OSError occurred when the file was opened, or in the block.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(part or new_part())
    with writing(path):
        try:
            mode = None
            with suppress(FileNotFoundError):
                mode = target.stat().st_mode
            if mode is not None and not stat.S_ISREG(mode):  # a folder, a device or a pipe
                raise OSError("it is not a file")
            if part is not None:
                temporary.unlink(missing_ok=True)
            # Not with tempfile, which makes files private to the user.
            with temporary.open("xb") as file:
                if mode is not None:
                    temporary.chmod(stat.S_IMODE(mode))
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
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn an OSError in the block into an OutputError that names the path and the reason."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}") from error


def new_part() -> str:
    """Return a unique name for a temporary file."""
    return f".captioner-{secrets.token_hex(8)}.part"


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Flush a folder to the disk, so that new files in it survive a power cut.

    Raises OSError: the disk failed.
    """
    if IS_WINDOWS:  # it cannot open folders
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def identity(path: str | os.PathLike[str]) -> set[object]:
    """Return keys of the file that a path leads to.

    Two paths lead to the same file if they have a key in common.
    """
    real = os.path.realpath(path)
    # File names ignore case on these systems.
    keys: set[object] = {real.casefold() if sys.platform in ("darwin", "win32") else real}
    with suppress(OSError, ValueError):
        status = Path(real).stat()
        keys.add((status.st_dev, status.st_ino))
    return keys


def is_inside(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> bool:
    """Whether a path is a folder or below it, with links resolved."""
    real = os.path.realpath(folder)
    try:
        return os.path.commonpath((os.path.realpath(path), real)) == real
    except ValueError:  # another drive
        return False


def digest(text: str | bytes) -> bytes:
    """Return the first 16 bytes of the SHA-256 digest."""
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return hashlib.sha256(data).digest()[:16]


def file_digest(path: Path, algorithm: str = "sha256") -> str:
    """Return the hexadecimal digest of a file. Raises OSError: the file cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def refuse_input(
    option: str, path: str | os.PathLike[str], inputs: Iterable[str | os.PathLike[str] | None]
) -> None:
    """Raise ConfigError if an output would overwrite an input, or a file in an input folder.

    Args:
        option: the option that names the output file, for the error.
        path: the output file.
        inputs: files and folders; None is ignored.
    """
    written = identity(path)
    for name in (name for name in inputs if name is not None):
        if identity(name) & written or (Path(path).exists() and is_inside(path, name)):
            raise ConfigError(
                f"{option} {path} would overwrite an input of this command, {name}: "
                "name another file"
            )
