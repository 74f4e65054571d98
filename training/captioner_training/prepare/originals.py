"""Each kind of data set, read and checked: what `captioner prepare KIND` begins with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from captioner.errors import ConfigError
from captioner_training.prepare.layouts import coco_entries, read_flickr8k, read_folder, read_json
from captioner_training.prepare.places import ImageFiles
from captioner_training.prepare.problems import Problems
from captioner_training.prepare.samples import Entry, Fractions, Original, gather
from captioner_training.prepare.tables import Columns, read_csv, read_jsonl

__all__ = ["coco_json_original", "flickr8k_original", "folder_original", "table_original"]


def folder_original(folder: Path, *, fractions: Fractions | None) -> Original:
    """Photos with captions beside them. Raises DataError."""
    problems = Problems()
    entries = read_folder(folder, problems)
    source = {"kind": "folder", "path": str(folder.resolve())}
    return _original(folder.resolve().name, entries, [folder], problems, source, fractions)


def table_original(
    path: Path,
    *,
    kind: str,
    columns: Columns,
    delimiter: str | None,
    images: Sequence[str | Path],
    fractions: Fractions | None,
) -> Original:
    """A CSV or JSON-lines file. Raises DataError and ConfigError."""
    problems = Problems()
    if kind == "csv":
        entries = read_csv(path, columns, problems, delimiter=delimiter)
    else:
        entries = read_jsonl(path, columns, problems)
    source = {"kind": kind, "path": str(path.resolve()), "images": list(map(str, images))}
    return _original(path.stem, entries, images or [path.parent], problems, source, fractions)


def coco_json_original(
    files: Sequence[str], *, images: Sequence[str | Path], fractions: Fractions | None
) -> Original:
    """Files [SPLIT=]FILE in COCO's captions format. Raises DataError and ConfigError."""
    problems = Problems()
    entries: list[Entry] = []
    paths = []
    for argument in files:
        split, equals, name = argument.partition("=")
        if not equals:
            split, name = "", argument
        paths.append(Path(name).expanduser())
        content = read_json(paths[-1])
        entries += coco_entries(content, problems, name=str(paths[-1]), split=split or None)
    source = {"kind": "coco-json", "files": list(files), "images": list(map(str, images))}
    name = paths[0].resolve().parent.name
    return _original(name, entries, images or [paths[0].parent], problems, source, fractions)


def flickr8k_original(folder: Path, *, fractions: Fractions | None) -> Original:
    """Flickr8k as it is handed out. Raises DataError."""
    notes: list[str] = []
    entries, places = read_flickr8k(folder, notes)
    source = {"kind": "flickr8k", "path": str(folder.resolve())}
    published = any(entry.split for entry in entries)
    original = _original("flickr8k", entries, places, Problems(), source, fractions)
    return Original(
        name=original.name,
        samples=original.samples,
        problems=original.problems,
        source=original.source,
        licence="Flickr8k: research use; the photos belong to their authors on Flickr",
        published=published,
        notes=notes,
    )


def _original(
    name: str,
    entries: Sequence[Entry],
    places: Sequence[str | Path],
    problems: Problems,
    source: dict[str, Any],
    fractions: Fractions | None,
) -> Original:
    """Find the images and check everything; `fractions` None: not asked for."""
    if fractions and entries and all(entry.split for entry in entries):
        raise ConfigError(f"{name} has splits of its own: --val and --test are for data without")
    chosen = fractions or Fractions()
    if any(entry.split is None for entry in entries):
        source = {**source, "val": chosen.val, "test": chosen.test}
    samples = gather(entries, ImageFiles(places), problems, fractions=chosen)
    return Original(name=name, samples=samples, problems=problems, source=source)
