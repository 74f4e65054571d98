"""Whether a folder is a data set to read, without importing torch; if not, what to run."""

from __future__ import annotations

import shlex
from itertools import islice
from pathlib import Path

from captioner.errors import DataError
from captioner.paths import there_is_no
from captioner.readers import IMAGE_SUFFIXES
from captioner_training.prepare.manifest import MANIFEST, Manifest, is_prepared, is_unfinished
from captioner_training.prepare.places import walk

__all__ = ["check_readable"]

_LOOKED_AT = 10_000  # files; enough to see what a folder holds
_TABLES = {".csv": "csv", ".tsv": "csv", ".jsonl": "jsonl", ".json": "coco-json"}


def check_readable(folder: Path, split: str) -> None:
    """Refuse a folder without that split, as early as that can be known.

    Raises:
        DataError: the folder is not there, not prepared or not finished, or has no such split.

    """
    if is_unfinished(folder):
        raise DataError(f"{folder} is not finished: run the same `captioner prepare` again")
    if is_prepared(folder):
        splits = Manifest.load(folder).splits
        if split not in splits:
            raise DataError(f"{folder} has no split {split!r}; it has {', '.join(splits)}")
    elif not (folder / f"captions_{split}.json").exists():
        raise DataError(_unprepared(folder, split))


def _unprepared(folder: Path, split: str) -> str:
    """Say why `split` of a folder cannot be read, and what to run."""
    if not folder.exists():
        return there_is_no("folder", folder)
    if list(folder.glob("*.index.jsonl")):
        return f"{folder} has no {MANIFEST}: copy it again, or prepare it again"
    if inside := sorted(path.parent for path in folder.glob(f"*/{MANIFEST}")):
        return f"{folder} is not a prepared data set, but has one in it: name {inside[0]}"
    files = list(islice(walk(folder), _LOOKED_AT))
    plain = sorted(path.stem.removeprefix("captions_") for path in folder.glob("captions_*.json"))
    if plain:
        return f"{folder} has no split {split!r}; it has {', '.join(plain)}"
    if any(path.name.lower() in ("captions.txt", "flickr8k.token.txt") for path in files):
        command = f"flickr8k {shlex.quote(str(folder))}"
    else:
        command = _command(folder, files)
    return (
        f"{folder} is not a prepared data set; prepare it first:\n"
        f"  captioner prepare {command} --to DIR\n"
        "and name DIR in place of it ('captioner prepare --help' has all kinds of data)"
    )


def _command(folder: Path, files: list[Path]) -> str:
    place = shlex.quote(str(folder))
    for path in files:
        if kind := _TABLES.get(path.suffix.lower()):
            return f"{kind} {shlex.quote(str(path))} --images {place}"
    if any(path.suffix.lower() in IMAGE_SUFFIXES for path in files):
        return f"folder {place}"
    return "KIND ..."
