"""Recognize splits in names of columns, files and folders, or draw them.

Case does not matter. A year may follow, as in COCO's `val2014`.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from captioner.errors import ConfigError

__all__ = [
    "SPLIT_NAMES",
    "Fractions",
    "keep_rank",
    "split_in_folders",
    "split_named",
    "splits_of_files",
]

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
_HUGGING_FACE_PART = re.compile(r".*-\d+-of-\d+")
_NUMBERED = (".parquet", ".tar")  # suffixes of files whose name may be just a number
_FOR_TEST = 200  # least number of images from which test is drawn by default


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

    >>> split_in_folders("data/Train/test/1.jpg")
    'train'
    """
    return next(filter(None, map(split_named, path.split("/")[:-1])), None)


def _split_in_stem(stem: str) -> str | None:
    """Return the only split among the words of a file name, as in Flickr_8k.trainImages.txt."""
    splits = {SPLIT_NAMES.get(word.lower()) for word in _WORD.findall(stem)} - {None}
    return splits.pop() if len(splits) == 1 else None


def splits_of_files(paths: Sequence[Path]) -> list[tuple[str, str] | None]:
    """Return the split of each table or archive of a data set, with its origin.

    The split in a file's name is used if files beside it are named after other splits. Otherwise
    the folders below the common folder of all files are searched.
    """
    named = [_split_in_stem(path.stem) for path in paths]
    beside = {
        _split_in_stem(sibling.stem)
        for path in paths
        for sibling in path.parent.glob(f"*{path.suffix}")
        if sibling.suffix == path.suffix
    }
    parents = [path.parent.resolve() for path in paths]
    top = PurePath(os.path.commonpath(parents)) if parents else PurePath()
    if not any(path.suffix not in _NUMBERED or path.stem.strip("0123456789") for path in paths):
        top = top.parent  # train/0000.parquet: the folder serves as the name
    splits: list[tuple[str, str] | None] = []
    for path, parent, split in zip(paths, parents, named, strict=True):
        below = PurePath(parent).relative_to(top) / path.name
        if split and (beside - {split, None} or _HUGGING_FACE_PART.fullmatch(path.stem)):
            splits.append((split, "file names"))
        elif folder := split_in_folders(below.as_posix()):
            splits.append((folder, "folders"))
        else:
            splits.append(None)
    return splits


def keep_rank(split: str) -> tuple[int, str]:
    """Return the sort key of a split. A photo that is in several splits is kept in the first one.

    Test comes first and train last, so that the splits for scoring stay complete.
    """
    return {"test": 0, "val": 1}.get(split, 2), split


@dataclass(frozen=True, kw_only=True)
class Fractions:
    """The shares of a data set without splits that become val and test.

    test: None means 0.1 for 200 images or more, else 0.
    """

    val: float = 0.1
    test: float | None = None

    def __post_init__(self) -> None:
        test = self.test or 0
        if not (0 <= self.val < 1 and 0 <= test < 1 and self.val + test < 1):
            raise ConfigError(
                f"--val is {self.val}, --test is {self.test}; they must be fractions from 0 to 1 "
                "with a sum below 1"
            )

    def test_of(self, count: int) -> float:
        """Return the fraction of a data set of `count` images that becomes the test split."""
        if self.test is None:
            return min(0.1, (1 - self.val) / 2) if count >= _FOR_TEST else 0.0
        return self.test

    def describe(self, count: int) -> str:
        """Return the shares of train, val and test in percent: "80/10/10"."""
        test = self.test_of(count)
        shares = (1 - self.val - test, self.val, test)
        return "/".join(f"{100 * share:.3g}" for share in shares)

    def draw(self, keys: Sequence[int | str]) -> list[str]:
        """Draw the split of each image by a hash of its key.

        An image keeps its split when other images are added or removed. Small data sets are an
        exception, because val and test get at least half of their share, and at least one image, or
        two if there are ten or more.
        """
        test = self.test_of(len(keys))
        chances = [_chance(key) for key in keys]
        vals = sum(chance < self.val for chance in chances)
        tests = sum(chance < self.val + test for chance in chances) - vals
        vals = max(vals, _least(self.val, len(keys)))
        scored = vals + max(tests, _least(test, len(keys)))
        splits = ["train"] * len(keys)
        order = sorted(range(len(keys)), key=chances.__getitem__)
        for rank, index in enumerate(order[:-1][:scored]):  # keeps one for train
            splits[index] = "val" if rank < vals else "test"
        return splits


def _least(fraction: float, count: int) -> int:
    return max(math.ceil(fraction * count / 2), 2 if count >= 10 else 1) if fraction else 0


def _chance(key: int | str) -> float:
    digest = hashlib.sha256(str(key).encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
