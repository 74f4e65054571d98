"""A prepared data set from a source: shards, indexes, and the manifest at the very end.

Finished shards wait in DIR/.prepare with a record each. Only when every shard is there and nothing
is wrong do they move to DIR. A run that was interrupted, or that found problems, is taken up by
the next one from the shards that are finished.
"""

from __future__ import annotations

import hashlib
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from tqdm import tqdm

from captioner.errors import DataError, OutputError
from captioner.files import replace_file
from captioner.terminal import printable
from captioner_training.prepare.images import FoundImage, SourceData
from captioner_training.prepare.manifest import (
    IndexRow,
    Manifest,
    Split,
    StoredFile,
)
from captioner_training.prepare.problems import Problems
from captioner_training.prepare.resize import ResizedImage, resize_all
from captioner_training.prepare.shards import (
    Plan,
    Record,
    is_written,
    read_record,
    write_shard,
)
from captioner_training.prepare.splits import keep_rank
from captioner_training.prepare.target import Options, find_finished, publish

__all__ = ["assemble"]

_ORDER = {"train": 0, "val": 1, "test": 2}


def assemble(data: SourceData, options: Options, work: Path) -> Manifest:
    """Prepare a data set, or finish what an interrupted run began.

    Raises:
        DataError: the data set has problems and --skip-bad was not given, or has no images.
        OutputError: the folder holds another data set, or cannot be written.

    """
    plans = list(_plans(data.images, options))
    fingerprint = _fingerprint(data, plans, options)
    if finished := find_finished(options, source=data.source, fingerprint=fingerprint):
        return finished
    _write_shards(plans, options, work)
    problems = data.problems
    _add_corrupt(plans, work, problems)
    plans = _resolve_equal_images(plans, data, problems, options, work)
    _tell_notes(problems)
    if problems and not options.skip_bad:
        raise DataError(
            f"the data set {data.name} has problems, and nothing was prepared from it:\n"
            f"{problems.report()}\ncorrect them and run the same command again, or go on without "
            "them: --skip-bad"
        )
    manifest = _manifest(data, plans, fingerprint, options, work)
    if not any(split.images for split in manifest.splits.values()):
        raise DataError(f"no image of {data.name} can be used:\n{problems.report()}")
    if "val" not in manifest.splits:
        print("note: no image is in val, and training needs some: see --val", file=sys.stderr)
    publish(manifest, to=options.to, work=work)
    return manifest


def _tell_notes(problems: Problems) -> None:
    for note in problems.notes():
        print(f"note: {printable(note)}", file=sys.stderr)


def _plans(images: Sequence[FoundImage], options: Options) -> Iterator[Plan]:
    splits: dict[str, list[FoundImage]] = defaultdict(list)
    for image in images:
        splits[image.split].append(image)
    for split in sorted(splits, key=lambda name: (_ORDER.get(name, len(_ORDER)), name)):
        members = splits[split]
        for first in range(0, len(members), options.shard_images):
            yield Plan(
                split=split,
                number=first // options.shard_images,
                first=first,
                images=members[first : first + options.shard_images],
            )


def _fingerprint(data: SourceData, plans: Sequence[Plan], options: Options) -> str:
    parts = [data.name, str(data.problems.counts)]
    parts += [plan.fingerprint(options.image) for plan in plans]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _write_shards(plans: Sequence[Plan], options: Options, work: Path) -> None:
    folders = (work, options.to)
    pending = [
        plan
        for plan in plans
        if not is_written(plan, work=work, folders=folders, image_format=options.image)
    ]
    total = sum(len(plan.images) for plan in plans)
    done = total - sum(len(plan.images) for plan in pending)
    if done:
        print(f"{done:,} of {total:,} images were resized by an earlier run", file=sys.stderr)
    if not pending:
        return
    images = (
        (image.file_name, image.location)
        for plan in pending
        for image in plan.images
        if image is not None
    )
    results = resize_all(images, options.image, workers=options.workers)
    bar = tqdm(total=total, initial=done, desc="images", unit=" images", disable=None)
    with closing(results), bar:
        for plan in pending:
            counted = _counted(islice(results, _count(plan)), bar)
            write_shard(plan, counted, folder=work, image_format=options.image)


def _count(plan: Plan) -> int:
    return sum(image is not None for image in plan.images)


def _counted(results: Iterator[ResizedImage], bar: tqdm[Any]) -> Iterator[ResizedImage]:
    for result in results:
        bar.update()
        yield result


def _records(plans: Sequence[Plan], work: Path) -> Iterator[tuple[Plan, Record]]:
    """Read the records one by one: together they are as large as the annotations."""
    for plan in plans:
        record = read_record(work, plan)
        if record is None:
            raise OutputError(f"{work / plan.file}.json is missing: run the same command again")
        yield plan, record


def _add_corrupt(plans: Sequence[Plan], work: Path, problems: Problems) -> None:
    for _, record in _records(plans, work):
        for problem in record.corrupt:
            problems.add("corrupt image", problem)


def _resolve_equal_images(
    plans: list[Plan], data: SourceData, problems: Problems, options: Options, work: Path
) -> list[Plan]:
    """Find images of equal bytes in two splits; with --skip-bad, write those shards anew."""
    places: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for plan, record in _records(plans, work):
        for digest, row in zip(record.hashes, record.rows, strict=True):
            places[digest][plan.split].append(row.file_name)
    shared = {digest: found for digest, found in places.items() if len(found) > 1}
    leave_out: dict[str, set[str]] = defaultdict(set)
    for found in shared.values():
        example = ", ".join(f"{names[0]} in {split}" for split, names in sorted(found.items()))
        if data.published:
            problems.note("the same image in two splits, kept as published", example)
            continue
        problems.add("image in two splits", f"the same image: {example}")
        keeper = min(found, key=keep_rank)
        for split, names in found.items():
            if split != keeper:
                leave_out[split].update(names)
    if not leave_out or not options.skip_bad:
        return plans
    kept = [_without(plan, leave_out[plan.split]) for plan in plans]
    changed = [plan for plan, before in zip(kept, plans, strict=True) if plan is not before]
    _write_shards(changed, options, work)
    return kept


def _without(plan: Plan, names: set[str]) -> Plan:
    if not names:
        return plan
    left = [None if image is None or image.file_name in names else image for image in plan.images]
    return replace(plan, images=left) if None in left else plan


def _manifest(
    data: SourceData, plans: Sequence[Plan], fingerprint: str, options: Options, work: Path
) -> Manifest:
    """Write the indexes; return the manifest, which vouches for all of it."""
    by_split: dict[str, list[Plan]] = defaultdict(list)
    for plan in plans:
        by_split[plan.split].append(plan)
    splits = {name: _split(name, members, work) for name, members in by_split.items()}
    return Manifest(
        name=data.name,
        fingerprint=fingerprint,
        splits={name: split for name, split in splits.items() if split.images},
        image=options.image,
        source=data.source,
        licence=data.licence,
        skipped=dict(data.problems.counts),
    )


def _split(name: str, plans: Sequence[Plan], work: Path) -> Split:
    adapter = TypeAdapter(IndexRow)
    digest, size, captions = hashlib.sha256(), 0, 0
    shards = []
    with replace_file(work / f"{name}.index.jsonl") as file:
        for _, record in _records(plans, work):
            shards.append(record.shard)
            for row in record.rows:
                line = adapter.dump_json(row) + b"\n"
                file.write(line)
                digest.update(line)
                size += len(line)
                captions += len(row.captions)
    return Split(
        images=sum(shard.images for shard in shards),
        captions=captions,
        index=StoredFile(file=f"{name}.index.jsonl", bytes=size, sha256=digest.hexdigest()),
        shards=tuple(shards),
    )
