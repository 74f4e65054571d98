"""What lies in a folder."""

from __future__ import annotations

import os
from typing import NamedTuple

__all__ = ["Listed", "list_folder"]


class Listed(NamedTuple):
    """What a folder says of an entry, without a look at the entry itself."""

    name: str
    is_folder: bool
    is_link: bool


def list_folder(folder: str) -> tuple[list[Listed], OSError | None]:
    """List a folder, sorted by name; hidden entries left out.

    A link to a folder is not followed: it may lead back up, and its photos are found anyway.
    """
    entries: list[Listed] = []
    try:
        with os.scandir(folder or ".") as scan:
            for entry in scan:
                if not entry.name.startswith("."):
                    is_folder = entry.is_dir(follow_symlinks=False)
                    entries.append(Listed(entry.name, is_folder, entry.is_symlink()))
    except OSError as error:
        return sorted(entries), error
    return sorted(entries), None
