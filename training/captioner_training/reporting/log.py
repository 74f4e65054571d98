"""The log of a run: one JSON record a line, cut back to where a resumed run goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from captioner.errors import OutputError

__all__ = ["RunLog"]


class RunLog:
    """Appends records to a file.

    What depends on the clock stands under `timing`: all else is the same in every run of the same
    recipe on the same machine, interrupted or not.

    Args:
        path: the file.
        keep: bytes of it that are kept, 0 to begin anew.

    Raises:
        OutputError: it cannot be written.

    """

    def __init__(self, path: Path, *, keep: int = 0) -> None:
        self.path = path
        try:
            self._file = path.open("r+b" if keep and path.exists() else "w+b")
            # Who has taken the log away, or put an older one back, has the rest of it from here on.
            keep = self._file.read(keep).rfind(b"\n") + 1
            self._file.truncate(keep)
            self._file.seek(keep)
        except OSError as error:
            raise OutputError(f"{path} cannot be written: {error.strerror}") from error

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a record, at once visible to readers.

        Raises:
            OutputError: it cannot be written.

        """
        try:
            self._file.write(json.dumps(record, allow_nan=False).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise OutputError(f"{self.path} cannot be written: {error.strerror}") from error

    def force(self) -> int:
        """Force all records to disk and return how long the file is.

        Raises:
            OutputError: it cannot be written.

        """
        try:
            os.fsync(self._file.fileno())
            return self._file.tell()
        except OSError as error:
            raise OutputError(f"{self.path} cannot be written: {error.strerror}") from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()
