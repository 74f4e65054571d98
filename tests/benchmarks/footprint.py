"""What COCO in full takes of memory and disk, without having it.

    python -m tests.benchmarks.footprint PREPARED [--decode 20000]

PREPARED is a prepared data set of real photos. From it a data set of COCO's numbers is made up:
123,287 images with five captions each, COCO's file names, and an index whose rows point at the
real photos in turn. Its epochs are then walked as training walks them, with two workers, while
the memory of all processes is watched:

  fine-tuning   photos are read and decoded; --decode N stops after N of them (0: all)
  frozen        cached grids of the bundled encoder and of ResNet-101 are read, all of them, from
                sparse files of the true size

Memory is told apart into what the processes need (anonymous and shared, each page counted once)
and what they have mapped of files, which the system takes back when it needs room.

The disk is extrapolated from the mean size of PREPARED's photos.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import resource
import shutil
import tempfile
import time
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import torch
from pydantic import TypeAdapter

from captioner.vision.transform import Transform, TransformConfig
from captioner.vocabulary import Vocabulary
from captioner_training.data.batches import BucketSampler
from captioner_training.data.dataset import ImageDataset, encode_captions, starts_of
from captioner_training.data.grids import CachedGrids, GridDataset
from captioner_training.data.images import CaptionedImage
from captioner_training.data.loader import make_loader
from captioner_training.data.reading import read_dataset
from captioner_training.prepare.manifest import IndexRow, Manifest, StoredFile
from tests.benchmarks.measuring import Watch

SPLITS = {"train": 113_287, "val": 5_000, "test": 5_000}  # Karpathy's
IMAGES = sum(SPLITS.values())
GRIDS = {"bundled encoder, 7 x 7 x 1,280": 49 * 1280, "ResNet-101, 8 x 8 x 2,048": 64 * 2048}


def make_up(real: Path, folder: Path) -> None:
    """Write a data set of COCO's numbers whose photos are those of `real`."""
    manifest = Manifest.load(real)
    rows = list(manifest.rows(real, "train"))
    captions = [caption for row in rows for caption in row.captions]
    for shard in manifest.splits["train"].shards:
        (folder / shard.file).symlink_to((real / shard.file).resolve())
    chance = random.Random(0)
    adapter = TypeAdapter(IndexRow)
    splits = {}
    numbers = itertools.count()
    for split, count in SPLITS.items():
        digest, size = sha256(), 0
        with (folder / f"{split}.index.jsonl").open("wb") as file:
            for position, number in zip(range(count), numbers, strict=False):
                row = replace(
                    rows[number % len(rows)],
                    key=f"{split}-{position:07d}",
                    id=number * 4 + 9,  # up to 581,929 in COCO
                    file_name=f"COCO_train2014_{number * 4 + 9:012d}.jpg",
                    captions=tuple(chance.choices(captions, k=5)),
                )
                line = adapter.dump_json(row) + b"\n"
                file.write(line)
                digest.update(line)
                size += len(line)
        index = StoredFile(file=f"{split}.index.jsonl", bytes=size, sha256=digest.hexdigest())
        splits[split] = replace(
            manifest.splits["train"], images=count, captions=5 * count, index=index
        )
    (folder / "manifest.json").write_bytes(replace(manifest, splits=splits).to_json())


def walk(
    dataset: ImageDataset | GridDataset, images: list[CaptionedImage], vocabulary: Vocabulary,
    *, batch_size: int, limit: int,
) -> str:  # fmt: skip
    """Walk an epoch as training does, and say what memory it took."""
    captions = encode_captions(images, vocabulary)
    shapes = [(len(each), max(map(len, each))) for each in captions]
    loader = make_loader(
        dataset,
        BucketSampler(shapes, batch_size=batch_size, seed=0),
        captions,
        starts=starts_of(images, vocabulary),
        maximum_length=22,
        workers=2,
        device=torch.device("cpu"),
    )
    seen = 0
    started = time.perf_counter()
    with Watch(os.getpid()) as watch:
        for batch in loader:
            seen += len(batch.tokens)
            if limit and seen >= limit:
                break
    seconds = time.perf_counter() - started
    return f"{watch}; {seen:,} images at {seen / seconds:,.0f} a second"


def report_disk(real: Path, made_up: Path) -> None:
    """Tell what COCO would take on a disk if its photos were as large as those of `real`."""
    train = Manifest.load(real).splits["train"]
    photo = sum(shard.bytes for shard in train.shards) / train.images
    index = sum(split.index.bytes for split in Manifest.load(made_up).splits.values())
    images = IMAGES * photo + index
    print(f"disk: {photo / 1e3:.1f} kB a photo, index {index / 1e6:.0f} MB: {images / 1e9:.2f} GB")
    for name, features in GRIDS.items():
        grids = 2 * features * SPLITS["train"]
        print(f"  and grids of {name}, train alone: {(images + grids) / 1e9:.1f} GB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prepared", type=Path)
    parser.add_argument("--decode", type=int, default=20_000, help="photos; 0: all")
    parser.add_argument("--scratch", type=Path, help="a folder for the made-up data set")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=arguments.scratch))
    try:
        make_up(arguments.prepared, folder)
        report_disk(arguments.prepared, folder)
        print(f"imports: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB peak")
        started = time.perf_counter()
        train = read_dataset(folder, split="train")
        validation = read_dataset(folder, split="val")
        vocabulary = Vocabulary.build(words for image in train for words in image.words)
        print(
            f"index of {len(train):,} + {len(validation):,} images, "
            f"{sum(len(image.captions) for image in train):,} captions, {len(vocabulary):,} words: "
            f"{time.perf_counter() - started:.0f} s, peak of the process "
            f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB"
        )
        transform = Transform(TransformConfig(mode="squash", size=224))
        photos = ImageDataset(train, transform)
        print("fine-tuning, two workers:", end=" ", flush=True)
        print(walk(photos, train, vocabulary, batch_size=32, limit=arguments.decode))
        for name, features in GRIDS.items():
            path = folder / "grids.f16"
            with path.open("wb") as file:
                file.truncate(2 * features * len(train))
            grids = GridDataset(CachedGrids([path], (len(train), features // 64, 64)))
            print(f"frozen, {name}, two workers:", end=" ", flush=True)
            print(walk(grids, train, vocabulary, batch_size=64, limit=0))
            path.unlink()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
