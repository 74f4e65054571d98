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
from itertools import islice
from pathlib import Path

from pydantic import TypeAdapter
from tqdm import tqdm

from captioner.errors import DataError
from captioner.files import replace_file
from captioner.terminal import printable
from captioner_training.prepare.gathering import FoundImage, SourceData
from captioner_training.prepare.manifest import IndexRow, Manifest, Shard, Split, StoredFile
from captioner_training.prepare.resize import resize_all
from captioner_training.prepare.shards import Plan, is_written, read_record, write_shard
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
    problems = data.problems
    parts = [data.name, str(problems.counts), *(plan.fingerprint() for plan in plans)]
    fingerprint = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    if finished := find_finished(options, source=data.source, fingerprint=fingerprint):
        return finished
    _write_shards(plans, options, work)
    for plan in plans:
        for problem in read_record(work, plan).corrupt:
            problems.add("corrupt image", problem)
    for note in problems.notes():
        print(f"note: {printable(note)}", file=sys.stderr)
    if problems and not options.skip_bad:
        raise DataError(
            f"the data set {data.name} has problems, and nothing was prepared from it:\n"
            f"{problems.report()}\ncorrect them and run the same command again, or go on without "
            "them: --skip-bad"
        )
    splits = _write_indexes(plans, work)
    if not splits:
        raise DataError(f"no image of {data.name} can be used:\n{problems.report()}")
    if "val" not in splits:
        print("note: no image is in val, and training needs some: see --val", file=sys.stderr)
    manifest = Manifest(
        name=data.name,
        fingerprint=fingerprint,
        splits=splits,
        image=options.image,
        source=data.source,
        licence=data.licence,
        skipped=problems.counts,
    )
    publish(manifest, to=options.to, work=work)
    return manifest


def _plans(images: Sequence[FoundImage], options: Options) -> Iterator[Plan]:
    splits: dict[str, list[FoundImage]] = defaultdict(list)
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
        shards: list[Shard] = []
        with replace_file(work / f"{name}.index.jsonl") as file:
            for plan in (plan for plan in plans if plan.split == name):
                record = read_record(work, plan)
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
