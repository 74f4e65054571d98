"""Write a prepared data set: shards, indexes, and the manifest last.

DIR/.prepare       work in progress: finished shards with a record each, downloads, a lock
DIR/problems.csv   rows and photos that were left out or should be checked
DIR/manifest.json  written last; without it there is no data set in DIR

Shards move from DIR/.prepare to DIR when all are complete and the data has no problems. After an
interruption or a problem, the next run reuses finished shards.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from tqdm import tqdm

from captioner.errors import ConfigError, DataError, OutputError
from captioner.shared.files import replace_file, sync_folder, writing
from captioner.shared.text import printable
from captioner_training.data.manifest import (
    MANIFEST,
    WORK,
    ImageFormat,
    IndexRow,
    Manifest,
    ShardFile,
    Split,
    StoredFile,
    is_prepared,
)
from captioner_training.prepare.files import SourceImage
from captioner_training.prepare.problems import PROBLEMS_FILE
from captioner_training.prepare.shards import (
    Plan,
    is_written,
    read_shard_record,
    resize_all,
    write_shard,
)
from captioner_training.prepare.sources import SourceData
from captioner_training.run_folder import lock_folder

SHARD_IMAGES = 2000
"""Images per tar file."""

_ORDER = {"train": 0, "val": 1, "test": 2}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Output options of `captioner prepare`."""

    to: Path
    image: ImageFormat
    workers: int = 1
    skip_bad: bool = False
    force: bool = False  # replace another prepared data set
    name: str | None = None  # name of the data set; None: the name of its source
    licence: str | None = None

    def __post_init__(self) -> None:
        least = {"--size": self.image.short_side, "--workers": self.workers}
        for name, value in least.items():
            if value < 1:
                raise ConfigError(f"{name} is {value}; it must be at least 1")
        if not 1 <= self.image.quality <= 100:
            raise ConfigError(f"--quality is {self.image.quality}; it must be from 1 to 100")


@contextmanager
def claim_folder(to: Path) -> Iterator[Path]:
    """Create and lock the folder `to`; yield its work folder .prepare, and remove that at the end.

    Raises OutputError: the folder is locked, contains other files, or cannot be written.
    """
    work = to / WORK
    with writing(to):
        names = {path.name for path in to.iterdir()} if to.exists() else set()
        if names - {PROBLEMS_FILE} and not (is_prepared(to) or work.exists()):
            raise OutputError(f"{to} contains other files: choose an empty or new folder")
    with lock_folder(work / "lock", command="prepare", folder=to):
        yield work
        shutil.rmtree(work, ignore_errors=True)


def find_finished(
    options: Options, *, source: dict[str, Any], fingerprint: str | None = None
) -> Manifest | None:
    """Return the manifest if the folder already has this data set, else None.

    Data sets are compared by their fingerprint, or by their source while `fingerprint` is None.

    Raises:
        OutputError: the folder has another data set, and --force was not given.
        DataError: the folder's manifest is invalid, or its files do not match the manifest.
    """
    if not is_prepared(options.to):
        return None
    if options.force:
        Manifest.read(options.to / MANIFEST)  # refuses to replace other manifests
        return None
    manifest = Manifest.load(options.to)
    same = manifest.fingerprint == fingerprint if fingerprint else manifest.source == source
    if same and manifest.image == options.image:
        return manifest
    images = sum(split.images for split in manifest.splits.values())
    raise OutputError(
        f"{options.to} has another data set or version: {manifest.name}, {images:,} images, "
        f"{json.dumps(manifest.source)}; choose another folder, or replace it with --force"
    )


def assemble(data: SourceData, options: Options, work: Path) -> Manifest:
    """Prepare a data set, or resume after an interruption.

    Raises:
        DataError: the data has problems and --skip-bad was not given, or no usable image is left.
        OutputError: the folder has another data set, or cannot be written.
    """
    plans = list(_plans(data.images, options))
    name, problems = options.name or data.name, data.problems
    parts = [name, str(problems.counts), *(plan.fingerprint() for plan in plans)]
    fingerprint = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    if finished := find_finished(options, source=data.source, fingerprint=fingerprint):
        return finished
    _write_shards(plans, options, work)
    rows = {image.file_name: image.row() for image in data.images}
    for plan in plans:
        for image, problem in read_shard_record(work, plan).corrupt.items():
            problems.add("corrupt image", problem, file=image, row=rows.get(image, ""))
    table = problems.write(options.to)
    for note in problems.notes():
        print(f"note: {printable(note)}", file=sys.stderr)
    if problems and not options.skip_bad:
        raise DataError(
            f"the data set {name} has problems, and nothing was prepared:\n{problems.report()}\n"
            f"{table} lists all of them. Correct them and run the same command "
            "again, or leave them out with --skip-bad"
        )
    if table is not None:
        print(
            f"note: {table} lists every photo and row that these notes are about", file=sys.stderr
        )
    splits = _write_indexes(plans, work)
    if not splits:
        raise DataError(f"{name} has no usable image:\n{problems.report()}")
    if "val" not in splits:
        print(
            "note: there is no split val, which training needs: draw a larger share with "
            "--val 0.3, or add photos",
            file=sys.stderr,
        )
    manifest = Manifest(
        name=name,
        fingerprint=fingerprint,
        splits=splits,
        image=options.image,
        source=data.source,
        licence=options.licence or data.licence,
        skipped=problems.counts,
    )
    _publish(manifest, to=options.to, work=work)
    return manifest


def _plans(images: Sequence[SourceImage], options: Options) -> Iterator[Plan]:
    splits: dict[str, list[SourceImage]] = defaultdict(list)
    for image in images:
        splits[image.split].append(image)
    for split in sorted(splits, key=lambda name: (_ORDER.get(name, len(_ORDER)), name)):
        members = splits[split]
        for number, first in enumerate(range(0, len(members), SHARD_IMAGES)):
            part = members[first : first + SHARD_IMAGES]
            yield Plan(
                split=split, number=number, first=first, images=part, image_format=options.image
            )


def _write_shards(plans: Sequence[Plan], options: Options, work: Path) -> None:
    pending = [plan for plan in plans if not is_written(plan, work=work, to=options.to)]
    images = [image for plan in pending for image in plan.images]
    total = sum(len(plan.images) for plan in plans)
    done = total - len(images)
    if done:
        print(f"reusing {done:,} of {total:,} images of an earlier run", file=sys.stderr)
    if not pending:
        return
    results = resize_all(images, options.image, workers=options.workers)
    bar = tqdm(results, total=total, initial=done, desc="images", unit=" images", disable=None)
    with closing(results), bar:
        resized = iter(bar)
        for plan in pending:
            write_shard(plan, islice(resized, len(plan.images)), folder=work)


def _write_indexes(plans: Sequence[Plan], work: Path) -> dict[str, Split]:
    """Write the index of each split that has images, one shard at a time to save memory."""
    adapter = TypeAdapter(IndexRow)
    splits = {}
    for name in dict.fromkeys(plan.split for plan in plans):
        digest, size, captions = hashlib.sha256(), 0, 0
        shards: list[ShardFile] = []
        with replace_file(work / f"{name}.index.jsonl") as file:
            for plan in (plan for plan in plans if plan.split == name):
                record = read_shard_record(work, plan)
                shards.append(record.shard)
                for row in record.rows:
                    line = adapter.dump_json(row) + b"\n"
                    digest.update(line)
                    size += file.write(line)
                    captions += len(row.captions)
        if images := sum(shard.images for shard in shards):
            index = StoredFile(file=f"{name}.index.jsonl", bytes=size, sha256=digest.hexdigest())
            splits[name] = Split(
                images=images, captions=captions, index=index, shards=tuple(shards)
            )
    return splits


def _publish(manifest: Manifest, *, to: Path, work: Path) -> None:
    """Remove the files of an earlier data set and move the new ones into place, manifest last.

    Meanwhile DIR/.prepare/manifest.json lists the files in DIR that belong to the old or the new
    data set. If the move is interrupted, the next run can therefore replace them.

    Raises OutputError: the folder cannot be written, or has another file of the same name.
    """
    names = {file.file for file in manifest.files}
    with writing(to):
        ours: set[str] = set()
        for path in (to / MANIFEST, work / MANIFEST):
            if path.exists():
                ours |= {file.file for file in Manifest.read(path).files}
        moving = {name for name in names if (work / name).exists()}  # the rest was moved before
        if existing := sorted(name for name in moving - ours if (to / name).exists()):
            raise OutputError(
                f"{to / existing[0]} exists and belongs to no data set: move it away and run the "
                "same command again"
            )
        if is_prepared(to):
            (to / MANIFEST).replace(work / MANIFEST)  # the old data set is no longer valid
        for name in ours - (names - moving):
            (to / name).unlink(missing_ok=True)
        with replace_file(work / MANIFEST) as file:
            file.write(manifest.to_json())
        for name in sorted(moving):
            (work / name).replace(to / name)
        sync_folder(to)
        (work / MANIFEST).replace(to / MANIFEST)
        sync_folder(to)
