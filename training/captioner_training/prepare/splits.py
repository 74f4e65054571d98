"""Recognize splits in names of columns, files and folders, or draw them.

Case does not matter. A year may follow, as in COCO's `val2014`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from captioner.errors import ConfigError
from captioner.shared.paths import absolute

SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "restval": "train",  # Karpathy: COCO's validation images outside val and test
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}
"""Standard names of splits, by the names in data sets."""

_WITH_YEAR = re.compile(r"([a-z]+)[-_ ]?(?:19|20)\d\d")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")


def split_named(name: str) -> str | None:
    """Return the standard name of a split, or None for another word.

    >>> split_named("Validation"), split_named("train2017"), split_named("photos")
    ('val', 'train', None)
    """
    word = name.strip().lower()
    year = _WITH_YEAR.fullmatch(word)
    return SPLIT_NAMES.get(year[1] if year else word)


def split_in_folders(path: str) -> str | None:
    """Return the split named by a file's folders; if several are named, the outermost.

    The folders of an absolute path may mean anything.

    >>> split_in_folders("data/Train/test/1.jpg"), split_in_folders("/Train/1.jpg")
    ('train', None)
    """
    folders = [] if path.startswith("/") else path.split("/")[:-1]
    return next(filter(None, map(split_named, folders)), None)


def split_in_stem(stem: str) -> str | None:
    """Return the only split among the words of a file name, as in captions_train2014.json."""
    splits = {SPLIT_NAMES.get(word.lower()) for word in _WORD.findall(stem)} - {None}
    return splits.pop() if len(splits) == 1 else None


def common_folder(paths: Sequence[Path]) -> Path:
    """Return the folder that contains all files. Links are not followed."""
    return Path(os.path.commonpath([absolute(path.parent) for path in paths]))


def split_of_file(path: Path, top: Path) -> str | None:
    """Return the split that a table or archive is named after.

    Its own name comes first, then its folders below `top`. If its name is a number, as in
    train/0000.parquet, the folder serves as its name.
    """
    if split := split_in_stem(path.stem):
        return split
    parent = absolute(path.parent)
    folders = os.path.relpath(parent, top)
    if folders == "." and path.stem.isdecimal():
        folders = parent.name
    return split_in_folders(f"{Path(folders).as_posix()}/{path.name}")


def keep_rank(split: str) -> tuple[int, str]:
    """Return the sort key of a split. A photo that is in several splits is kept in the first one.

    Test comes first and train last, so that the splits for scoring stay complete.
    """
    return {"test": 0, "val": 1}.get(split, 2), split


@dataclass(frozen=True, kw_only=True)
class Fractions:
    """The shares of photos for training that become val and test instead."""

    val: float = 0.1
    test: float = 0.0

    def __post_init__(self) -> None:
        if not (self.val >= 0 and self.test >= 0 and self.val + self.test < 1):
            raise ConfigError(
                f"--val is {self.val}, --test is {self.test}; they must be fractions from 0 to 1 "
                "with a sum below 1"
            )

    def __str__(self) -> str:
        """Return the shares of train, val and test in percent: "80/10/10"."""
        shares = (1 - self.val - self.test, self.val, self.test)
        return "/".join(f"{100 * share:.3g}" for share in shares)

    def draw(self, content: bytes) -> str:
        """Draw the split of a photo by a hash of its content, independent of all other photos."""
        chance = int.from_bytes(hashlib.sha256(content).digest()[:8], "big") / 2**64
        return "val" if chance < self.val else "test" if chance < self.val + self.test else "train"
