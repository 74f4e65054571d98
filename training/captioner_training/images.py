"""Where the images of a data set lie: in a folder, or inside tar files that stay packed."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

from captioner.errors import DataError

__all__ = ["ImageStore"]


class ImageStore:
    """Reads images by name from folders and tar files.

    Only an index of names and positions is in memory, so the store travels cheaply to the worker
    processes of a loader.

    Args:
        pattern: a folder, a tar file, or a glob of either ("train-*.tar").

    Raises:
        DataError: nothing matches, or a tar file is damaged.

    """

    def __init__(self, pattern: str | os.PathLike[str]) -> None:
        self.pattern = Path(pattern)
        paths = sorted(self.pattern.parent.glob(self.pattern.name))
        if not paths:
            raise DataError(f"no folder or tar file matches {self.pattern}")
        self._folders = [path for path in paths if path.is_dir()]
        self._members: dict[str, tuple[Path, int, int]] = {}
        for path in paths:
            if not path.is_dir():
                self._index(path)

    def _index(self, path: Path) -> None:
        try:
            with tarfile.open(path, "r:") as tar:
                for member in tar:
                    if member.isfile():
                        self._members[member.name] = (path, member.offset_data, member.size)
        except (tarfile.TarError, OSError) as error:
            raise DataError(f"{path} is no readable uncompressed tar file: {error}") from error

    def __contains__(self, name: str) -> bool:
        return name in self._members or any((folder / name).is_file() for folder in self._folders)

    def read(self, name: str) -> bytes:
        """Read one image file.

        Raises:
            DataError: there is no such image, or it cannot be read.

        """
        try:
            if name in self._members:
                path, offset, size = self._members[name]
                with path.open("rb") as file:
                    file.seek(offset)
                    return file.read(size)
            for folder in self._folders:
                if (folder / name).is_file():
                    return (folder / name).read_bytes()
        except OSError as error:
            raise DataError(f"{name} in {self.pattern} cannot be read: {error}") from error
        raise DataError(f"{self.pattern} has no image {name}")
