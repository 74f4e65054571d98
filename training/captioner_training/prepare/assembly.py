"""A prepared data set from a source: shards, indexes, and the manifest at the very end.

DIR/.prepare       work in progress: finished shards with a record each, downloads, a lock
DIR/problems.csv   what was left out, or should be looked at, a row each
DIR/manifest.json  written last; without it there is no data set in DIR

Only when every shard is there and nothing is wrong do they move to DIR. A run that was interrupted,
or that found problems, is taken up by the next one from the shards that are finished.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from tqdm import tqdm

from captioner.errors import ConfigError, DataError, OutputError
from captioner.files import replace_file, sync_folder, writing
from captioner.terminal import printable
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
from captioner_training.lock import locked
from captioner_training.prepare.listing import PROBLEMS_FILE
from captioner_training.prepare.selection import SelectedImage, SourceData
from captioner_training.prepare.shards import (
    Plan,
    is_written,
    read_shard_record,
    resize_all,
    write_shard,
)

__all__ = ["Options", "assemble", "claimed", "clear", "find_finished"]

_ORDER = {"train": 0, "val": 1, "test": 2}


@dataclass(frozen=True, kw_only=True)
class Options:
    """How and where a data set is prepared."""

    to: Path
    image: ImageFormat
    shard_images: int = 2000  # about 50 MB: few files, and little to do again when interrupted
    workers: int = 1
    skip_bad: bool = False
    force: bool = False  # replace another prepared data set
    name: str | None = None  # of the data set; None: by its origin
    licence: str | None = None

    def __post_init__(self) -> None:
        least = {
            "--size": self.image.short_side,
            "--shard-images": self.shard_images,
            "--workers": self.workers,
        }
        for name, value in least.items():
            if value < 1:
                raise ConfigError(f"{name} {value}: must be 1 or more")
        if not 1 <= self.image.quality <= 100:
            raise ConfigError(f"--quality {self.image.quality}: must be from 1 to 100")


@contextmanager
def claimed(to: Path) -> Iterator[Path]:
    """Make the folder, keep other runs out of it, and yield DIR/.prepare. Raises OutputError."""
    work = to / WORK
    with writing(to):
        others = {one.name for one in to.iterdir()} - {PROBLEMS_FILE} if to.exists() else set()
        if others and not (is_prepared(to) or work.exists()):
            raise OutputError(f"{to} contains other files: choose an empty or new folder")
    with locked(work / "lock", verb="prepare", what=to):
        yield work


def find_finished(
    options: Options, *, source: dict[str, Any], fingerprint: str | None = None
) -> Manifest | None:
    """Find the whole data set of this very command, by its source or its fingerprint.

    Raises:
        OutputError: the folder holds another one, and --force was not given.
        DataError: its manifest is none of ours, or its files are not as it says.
    """
    if not is_prepared(options.to):
        return None
    if options.force:
        Manifest.read(options.to / MANIFEST)  # what is not ours is not replaced
        return None
    manifest = Manifest.load(options.to)
    same = manifest.fingerprint == fingerprint if fingerprint else manifest.source == source
    if same and manifest.image == options.image:
        return manifest
    images = sum(split.images for split in manifest.splits.values())
    raise OutputError(
        f"{options.to} holds another data set, or another state of this one: {manifest.name}, "
        f"{images:,} images, {json.dumps(manifest.source)}; choose another folder, or --force to "
        "replace it"
    )


def clear(work: Path, *, keep: str | None = None) -> None:
    """Remove DIR/.prepare, which a whole data set does not need; `keep` names what stays in it."""
    with suppress(OSError):
        for path in list(work.iterdir()):
            if path.name != keep:
                path.unlink() if path.is_file() else shutil.rmtree(path, ignore_errors=True)
        work.rmdir()  # unless something is kept


def assemble(data: SourceData, options: Options, work: Path) -> Manifest:
    """Prepare a data set, or finish what an interrupted run began.

    Raises:
        DataError: the data set has problems and --skip-bad was not given, or has no images.
        OutputError: the folder holds another data set, or cannot be written.
    """
    plans = list(_plans(data.images, options))
    name, problems = options.name or data.name, data.problems
    parts = [name, str(problems.counts), *(plan.fingerprint() for plan in plans)]
    fingerprint = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    if finished := find_finished(options, source=data.source, fingerprint=fingerprint):
        return finished
    _write_shards(plans, options, work)
    rows = {image.file_name: image.row for image in data.images}
    for plan in plans:
        for image, problem in read_shard_record(work, plan).corrupt.items():
            problems.add("corrupt image", problem, file=image, row=rows.get(image, ""))
    table = problems.write(options.to)
    for note in problems.notes():
        print(f"note: {printable(note)}", file=sys.stderr)
    if problems and not options.skip_bad:
        raise DataError(
            f"the data set {name} has problems, and nothing was prepared from it:\n"
            f"{problems.report()}\nall of them, each with its row and what to do: {table}\ncorrect "
            "them and run the same command again, or go on without them: --skip-bad"
        )
    if table is not None:
        print(f"note: every photo and row that this is about stands in {table}", file=sys.stderr)
    splits = _write_indexes(plans, work)
    if not splits:
        raise DataError(f"no image of {name} can be used:\n{problems.report()}")
    if "val" not in splits:
        print(
            "note: no photo is in val, and training needs some: --val 0.1 draws it", file=sys.stderr
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


def _plans(images: Sequence[SelectedImage], options: Options) -> Iterator[Plan]:
    splits: dict[str, list[SelectedImage]] = defaultdict(list)
    for image in images:
        splits[image.split].append(image)
    for split in sorted(splits, key=lambda name: (_ORDER.get(name, len(_ORDER)), name)):
        members = splits[split]
        for number, first in enumerate(range(0, len(members), options.shard_images)):
            yield Plan(
                split=split,
                number=number,
                first=first,
                images=members[first : first + options.shard_images],
                image_format=options.image,
            )


def _write_shards(plans: Sequence[Plan], options: Options, work: Path) -> None:
    pending = [plan for plan in plans if not is_written(plan, work=work, to=options.to)]
    images = [image for plan in pending for image in plan.images]
    total = sum(len(plan.images) for plan in plans)
    done = total - len(images)
    if done:
        print(f"{done:,} of {total:,} images were resized by an earlier run", file=sys.stderr)
    if not pending:
        return
    results = resize_all(images, options.image, workers=options.workers)
    bar = tqdm(results, total=total, initial=done, desc="images", unit=" images", disable=None)
    with closing(results), bar:
        each = iter(bar)
        for plan in pending:
            write_shard(plan, islice(each, len(plan.images)), folder=work)


def _write_indexes(plans: Sequence[Plan], work: Path) -> dict[str, Split]:
    """Write the index of each split that has images.

    Records are read one by one: together they are as large as the annotations.
    """
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
    """Clear away another data set's files and move everything into place, the manifest last.

    DIR/.prepare/manifest.json names at any time what lies in DIR and is ours: the files of the
    set that makes way, then those of the new one. So an interruption leaves nothing that the next
    run takes for somebody's own.

    Raises OutputError: the folder cannot be written, or has somebody's own file under a name that
    is needed.
    """
    names = {file.file for file in manifest.files}
    with writing(to):
        ours: set[str] = set()
        for path in (to / MANIFEST, work / MANIFEST):
            if path.exists():
                ours |= {file.file for file in Manifest.read(path).files}
        # An earlier run may have been interrupted after moving some.
        moving = {name for name in names if (work / name).exists()}
        if others := sorted(name for name in moving - ours if (to / name).exists()):
            raise OutputError(
                f"{to / others[0]} is in the way and is of no data set: move it elsewhere, and the "
                "same command goes on from here"
            )
        if is_prepared(to):
            (to / MANIFEST).replace(work / MANIFEST)  # from here on, it does not count
        for name in ours - (names - moving):
            (to / name).unlink(missing_ok=True)
        with replace_file(work / MANIFEST) as file:
            file.write(manifest.to_json())
        for name in sorted(moving):
            (work / name).replace(to / name)
        sync_folder(to)
        (work / MANIFEST).replace(to / MANIFEST)
        sync_folder(to)
