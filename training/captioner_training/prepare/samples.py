"""From what a data set lists to the images that go into the prepared one."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from captioner.errors import ConfigError, DataError
from captioner_training.prepare.places import ImageFiles, Location
from captioner_training.prepare.problems import Problems

__all__ = ["SPLIT_NAMES", "Entry", "Fractions", "Original", "Sample", "gather", "keep_rank"]

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
_RANKS = {"test": 0, "val": 1}


class Entry(NamedTuple):
    """An image as the data set lists it."""

    id: int | str
    file_name: str
    captions: tuple[str, ...]
    split: str | None = None  # None: chosen by Fractions
    licence: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """An image that was found, with its captions and split."""

    id: int | str
    file_name: str
    location: Location
    captions: tuple[str, ...]
    split: str
    licence: str | None

    def identity(self) -> tuple[object, ...]:
        """All that decides what is stored of it; not the folder, which may have another name."""
        return self.id, self.file_name, self.captions, self.licence, *self.location[1:]


@dataclass(frozen=True, kw_only=True)
class Original:
    """A data set as it was found."""

    name: str
    samples: list[Sample]
    problems: Problems
    source: dict[str, Any]  # kind and options, for the manifest
    licence: str | None = None
    # A published split stays as published: scores on it must stay comparable. Images of equal
    # content in two of its splits are told, not treated as a problem.
    published: bool = False
    notes: list[str] = field(default_factory=list)


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

    def choose(self, key: int | str) -> str:
        """Choose the split of an image by its id alone: others may come and go."""
        digest = hashlib.sha256(str(key).encode("utf-8", "surrogateescape")).digest()
        chance = int.from_bytes(digest[:8], "big") / 2**64
        if chance < self.test:
            return "test"
        return "val" if chance < self.test + self.val else "train"


def keep_rank(split: str) -> int:
    """Order splits by who keeps an image that stands in two: what is scored before train."""
    return _RANKS.get(split, 2)


def gather(
    entries: Iterable[Entry], files: ImageFiles, problems: Problems, *, fractions: Fractions
) -> list[Sample]:
    """Check what a data set lists; keep what can be used, in its order.

    Raises:
        DataError: a split has a name that cannot be a file's.

    """
    samples: list[Sample] = []
    ids: set[tuple[str, int | str]] = set()
    for entry in entries:
        split = _split_name(entry, fractions)
        if (split, entry.id) in ids:
            problems.add("duplicate id", f"{entry.id} in {split}")
            continue
        ids.add((split, entry.id))
        captions = tuple(" ".join(_text(caption).split()) for caption in entry.captions)
        if empty := captions.count(""):
            problems.add("empty caption", entry.file_name, count=empty)
            captions = tuple(filter(None, captions))
        elif not captions:
            problems.add("image without caption", entry.file_name)
        location = files.find(entry.file_name)
        if location is None:
            problems.add("missing image", entry.file_name)
        elif captions:
            samples.append(
                Sample(
                    id=entry.id,
                    file_name=_text(entry.file_name),
                    location=location,
                    captions=captions,
                    split=split,
                    licence=entry.licence,
                )
            )
    return _one_split_each(samples, problems)


def _text(text: str) -> str:
    """Replace what is not valid in UTF-8, as file names may be."""
    return text.encode("utf-8", "replace").decode()


def _split_name(entry: Entry, fractions: Fractions) -> str:
    if entry.split is None:
        return fractions.choose(entry.id)
    name = entry.split.strip().lower()
    name = _SPLITS.get(name, name)
    if not re.fullmatch(r"[a-z0-9_]+", name):
        raise DataError(
            f"{entry.file_name} is in split {entry.split!r}: name splits like train, val, test"
        )
    return name


def _one_split_each(samples: list[Sample], problems: Problems) -> list[Sample]:
    splits: dict[tuple[str, int, str | None], set[str]] = defaultdict(set)
    for sample in samples:
        splits[_place(sample)].add(sample.split)
    shared = {place: found for place, found in splits.items() if len(found) > 1}
    if not shared:
        return samples
    kept = []
    for sample in samples:
        found = shared.get(_place(sample), {sample.split})
        if sample.split == min(found, key=lambda split: (keep_rank(split), split)):
            kept.append(sample)
            if len(found) > 1:
                where = ", ".join(sorted(found))
                problems.add("image in two splits", f"{sample.file_name} in {where}")
    return kept


def _place(sample: Sample) -> tuple[str, int, str | None]:
    return sample.location.path, sample.location.offset, sample.location.member
