"""Which images are trained on and which are scored, where the data set does not say."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from captioner.errors import ConfigError, DataError

__all__ = ["SPLIT_NAMES", "Fractions", "keep_rank", "split_name"]

# What others call the three splits.
_SPLITS = {
    "training": "train",
    "restval": "train",  # Karpathy's: COCO's validation images that are neither his val nor test
    "validation": "val",
    "valid": "val",
    "dev": "val",
    "testing": "test",
}
SPLIT_NAMES = frozenset({"train", "val", "test", *_SPLITS})


def split_name(name: str, *, file_name: str) -> str:
    """Call a split as we do. Raises DataError where `name` cannot be part of a file's."""
    ours = name.strip().lower()
    ours = _SPLITS.get(ours, ours)
    if not re.fullmatch(r"[a-z0-9_]+", ours):
        raise DataError(f"{file_name} is in split {name!r}: name splits like train, val, test")
    return ours


def keep_rank(split: str) -> tuple[int, str]:
    """Order splits by who keeps an image that stands in two: what is scored before train."""
    return {"test": 0, "val": 1}.get(split, 2), split


@dataclass(frozen=True, kw_only=True)
class Fractions:
    """The shares of a data set without splits that become val and test."""

    val: float = 0.1
    test: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.val < 1 and 0 <= self.test < 1 and self.val + self.test < 1):
            raise ConfigError(
                f"--val {self.val} --test {self.test}: give fractions from 0 to 1, less than 1 "
                "together"
            )

    def draw(self, keys: Sequence[int | str]) -> list[str]:
        """Draw the split of each image by a hash of its id, so that others may come and go.

        Chance may leave next to nothing for val where images are few. Then the images whose
        hashes come next are taken too: half of what the fraction promises, and two of ten images
        or more, are certain.
        """
        chances = [_chance(key) for key in keys]
        tests = sum(chance < self.test for chance in chances)
        vals = sum(chance < self.test + self.val for chance in chances) - tests
        tests = max(tests, _least(self.test, len(keys)))
        scored = tests + max(vals, _least(self.val, len(keys)))
        splits = ["train"] * len(keys)
        order = sorted(range(len(keys)), key=chances.__getitem__)
        for rank, index in enumerate(order[:-1][:scored]):  # something is left to train on
            splits[index] = "test" if rank < tests else "val"
        return splits


def _least(fraction: float, count: int) -> int:
    if fraction == 0:
        return 0
    return max(math.ceil(fraction * count / 2), 2 if count >= 10 else 1)


def _chance(key: int | str) -> float:
    digest = hashlib.sha256(str(key).encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
