"""A prepared data set from an original one: shards, indexes, and the manifest at the very end.

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
from captioner_training.prepare.manifest import (
    IndexRow,
    Manifest,
    Split,
    StoredFile,
)
from captioner_training.prepare.problems import Problems
from captioner_training.prepare.resize import Stored, resize_all
from captioner_training.prepare.samples import Original, Sample, keep_rank
from captioner_training.prepare.shards import (
    Plan,
    Record,
    is_written,
    read_record,
    replacing,
    write_shard,
)
from captioner_training.prepare.target import Options, find_finished, publish

__all__ = ["assemble"]


def assemble(original: Original, options: Options, work: Path) -> Manifest:
    """Prepare a data set, or finish what an interrupted run began.

    Raises:
        DataError: the data set has problems and --skip-bad was not given, or has no images.
        OutputError: the folder holds another data set, or cannot be written.

    """
    plans = list(_plans(original.samples, options))
    fingerprint = _fingerprint(original, plans, options)
    if finished := find_finished(options, source=original.source, fingerprint=fingerprint):
        return finished
    _write_shards(plans, options, work)
    problems = original.problems
    _add_corrupt(plans, work, problems)
    plans = _resolve_equal_images(plans, original, problems, options, work)
    if problems and not options.skip_bad:
        raise DataError(
            f"the data set {original.name} has problems, and nothing was prepared from it:\n"
            f"{problems.report()}\ncorrect them and run the same command again, or go on without "
            "them: --skip-bad"
        )
    manifest = _manifest(original, plans, fingerprint, options, work)
    if not any(split.images for split in manifest.splits.values()):
        raise DataError(f"the data set {original.name} has no images that can be used")
    publish(manifest, to=options.to, work=work)
    for note in original.notes:
        print(f"note: {note}", file=sys.stderr)
    return manifest


def _plans(samples: Sequence[Sample], options: Options) -> Iterator[Plan]:
    splits: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        splits[sample.split].append(sample)
    for split, members in sorted(splits.items()):
        for first in range(0, len(members), options.shard_images):
            yield Plan(
                split=split,
                number=first // options.shard_images,
                first=first,
                samples=members[first : first + options.shard_images],
            )


def _fingerprint(original: Original, plans: Sequence[Plan], options: Options) -> str:
    parts = [original.name, str(original.problems.counts)]
    parts += [plan.fingerprint(options.image) for plan in plans]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _write_shards(plans: Sequence[Plan], options: Options, work: Path) -> None:
    folders = (work, options.to)
    pending = [
        plan
        for plan in plans
        if not is_written(plan, work=work, folders=folders, image_format=options.image)
    ]
    total = sum(len(plan.samples) for plan in plans)
    done = total - sum(len(plan.samples) for plan in pending)
    if done:
        print(f"{done:,} of {total:,} images were prepared by an earlier run", file=sys.stderr)
    if not pending:
        return
    images = (
        (sample.file_name, sample.location)
        for plan in pending
        for sample in plan.samples
        if sample is not None
    )
    results = resize_all(images, options.image, workers=options.workers)
    bar = tqdm(total=total, initial=done, desc="images", unit=" images", disable=None)
    with closing(results), bar:
        for plan in pending:
            counted = _counted(islice(results, _count(plan)), bar)
            write_shard(plan, counted, folder=work, image_format=options.image)


def _count(plan: Plan) -> int:
    return sum(sample is not None for sample in plan.samples)


def _counted(results: Iterator[Stored], bar: tqdm[Any]) -> Iterator[Stored]:
    for result in results:
        bar.update()
        yield result


def _records(plans: Sequence[Plan], work: Path) -> Iterator[tuple[Plan, Record]]:
    """Read the records one by one: together they are as large as the annotations."""
    for plan in plans:
        record = read_record(work, plan)
        if record is None:
            raise OutputError(f"{work / plan.file}.json has gone: run the same command again")
        yield plan, record


def _add_corrupt(plans: Sequence[Plan], work: Path, problems: Problems) -> None:
    for _, record in _records(plans, work):
        for problem in record.corrupt:
            problems.add("corrupt image", problem)


def _resolve_equal_images(
    plans: list[Plan], original: Original, problems: Problems, options: Options, work: Path
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
        if original.published:
            original.notes.append(f"the same image, kept as published: {example}")
            continue
        problems.add("image in two splits", f"the same image: {example}")
        keeper = min(found, key=lambda split: (keep_rank(split), split))
        for split, names in found.items():
            if split != keeper:
                leave_out[split].update(names)
    if not leave_out or not options.skip_bad:
        return plans
    plans = [_without(plan, leave_out[plan.split]) for plan in plans]
    _write_shards(plans, options, work)
    return plans


def _without(plan: Plan, names: set[str]) -> Plan:
    if not names:
        return plan
    samples = [
        None if sample is None or sample.file_name in names else sample for sample in plan.samples
    ]
    return replace(plan, samples=samples) if None in samples else plan


def _manifest(
    original: Original, plans: Sequence[Plan], fingerprint: str, options: Options, work: Path
) -> Manifest:
    """Write the indexes; return the manifest, which vouches for all of it."""
    by_split: dict[str, list[Plan]] = defaultdict(list)
    for plan in plans:
        by_split[plan.split].append(plan)
    splits = {name: _split(name, members, work) for name, members in by_split.items()}
    return Manifest(
        name=original.name,
        fingerprint=fingerprint,
        splits={name: split for name, split in splits.items() if split.images},
        image=options.image,
        source=original.source,
        licence=original.licence,
        skipped=dict(original.problems.counts),
    )


def _split(name: str, plans: Sequence[Plan], work: Path) -> Split:
    adapter = TypeAdapter(IndexRow)
    digest, size, captions = hashlib.sha256(), 0, 0
    shards = []
    with replacing(work / f"{name}.index.jsonl") as file:
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
