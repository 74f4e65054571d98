"""What COCO in full takes of memory and disk, without having it.

    python tests/benchmarks/footprint.py PREPARED [--decode 20000]

PREPARED is a prepared data set of real photos. From it a data set of COCO's numbers is made up:
123,287 images with five captions each, COCO's file names, and an index whose rows point at the
real photos in turn. Its epochs are then walked as training walks them, with two workers, while
the memory of all processes is watched:

  fine-tuning   photos are read and decoded; --decode N stops after N of them (0: all)
  frozen        cached grids of the bundled encoder and of ResNet-101 are read, all of them, from
                sparse files of the true size

Memory is told apart into what the processes need (anonymous and shared, each page counted once)
and what they have mapped of files, which the system takes back when it needs room.

The disk is extrapolated: bytes a pixel of the real photos, encoded at the quality that `captioner
prepare` uses, by the mean size of COCO's photos. Photos that were JPEGs of lower quality before
encode smaller than fresh ones; by how much is measured on assets/samples and made up for.
"""

from __future__ import annotations

import argparse
import io
import itertools
import os
import random
import resource
import shutil
import tempfile
import threading
import time
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import torch
from PIL import Image
from pydantic import TypeAdapter

from captioner.vision.transform import Transform, TransformConfig
from captioner.vocabulary import Vocabulary
from captioner_training.data.dataset import ImageDataset, encode_captions, starts_of
from captioner_training.data.grids import CachedGrids, GridDataset
from captioner_training.data.images import CaptionedImage
from captioner_training.data.loader import make_loader
from captioner_training.data.reading import read_dataset
from captioner_training.data.sampler import BucketSampler
from captioner_training.prepare.manifest import IndexRow, Manifest, StoredFile
from tests.process_tree import family

SPLITS = {"train": 113_287, "val": 5_000, "test": 5_000}  # Karpathy's
IMAGES = sum(SPLITS.values())
# COCO's photos are 640 pixels on the long side; over the 123,287 of 2014 and 2017, the mean of
# width and height is 578 x 484 (the zip files' 20.2 GB are 163 kB a photo).
MEAN_WIDTH, MEAN_HEIGHT = 578, 484
GRIDS = {"bundled encoder, 7 x 7 x 1,280": 49 * 1280, "ResNet-101, 8 x 8 x 2,048": 64 * 2048}
SAMPLES = Path(__file__).resolve().parents[2] / "assets" / "samples"


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


class Watch:
    """Samples the memory of a process (this one) and its children; keeps the highest."""

    def __init__(self, pid: int | None = None) -> None:
        self.pid = pid or os.getpid()
        self.needed = self.mapped = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(0.5):
            needed = mapped = 0
            for pid in family(self.pid):
                sums = _smaps(pid)
                needed += sums.get("Pss_Anon", 0) + sums.get("Pss_Shmem", 0)
                mapped += sums.get("Pss_File", 0)
            self.needed, self.mapped = max(self.needed, needed), max(self.mapped, mapped)

    def __str__(self) -> str:
        return f"{self.needed / 1e6:.2f} GB needed, {self.mapped / 1e6:.2f} GB of files mapped"


def _smaps(pid: int) -> dict[str, int]:
    """Read the sums in kB; a process that has ended has none."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return {}
    return {line.split(":")[0]: int(line.split()[1]) for line in lines}


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
    with Watch() as watch:
        for batch in loader:
            seen += len(batch.tokens)
            if limit and seen >= limit:
                break
    seconds = time.perf_counter() - started
    return f"{watch}; {seen:,} images at {seen / seconds:,.0f} a second"


def bytes_a_photo(real: Path, quality: int) -> tuple[float, float]:
    """Extrapolate the stored bytes of one of COCO's photos: as measured, and made up for."""
    images = read_dataset(real, split="train")
    size = pixels = 0
    for image in random.Random(1).sample(images, min(1000, len(images))):
        photo = Image.open(io.BytesIO(image.store.read(image.name))).convert("RGB")
        size += _encoded(photo, quality)
        pixels += photo.width * photo.height
    wanted = MEAN_WIDTH * MEAN_HEIGHT * (256 / min(MEAN_WIDTH, MEAN_HEIGHT)) ** 2
    fresh = again = 0
    for path in SAMPLES.glob("*.jpg"):
        photo = Image.open(path).convert("RGB")
        scale = 256 / min(photo.size)
        photo = photo.resize((round(photo.width * scale), round(photo.height * scale)))
        fresh += _encoded(photo, quality)
        lower = io.BytesIO()
        photo.save(lower, "JPEG", quality=75)
        again += _encoded(Image.open(lower).convert("RGB"), quality)
    measured = size / pixels * wanted
    return measured, measured * fresh / again


def _encoded(photo: Image.Image, quality: int) -> int:
    data = io.BytesIO()
    photo.save(data, "JPEG", quality=quality)
    return data.tell()


def report_disk(real: Path, made_up: Path) -> None:
    manifest = Manifest.load(real)
    train = manifest.splits["train"]
    stored = sum(row.size for row in manifest.rows(real, "train"))
    around = (sum(shard.bytes for shard in train.shards) - stored) / train.images
    index = sum(split.index.bytes for split in Manifest.load(made_up).splits.values())
    measured, photo = bytes_a_photo(real, manifest.image.quality)
    images = IMAGES * (photo + around) + index
    print(
        f"disk, {IMAGES:,} images of short side 256, JPEG quality {manifest.image.quality}: "
        f"{photo / 1e3:.1f} kB a photo ({measured / 1e3:.1f} measured on photos that were JPEGs "
        f"of quality 75), {around / 1e3:.1f} kB around it, index {index / 1e6:.0f} MB: "
        f"{images / 1e9:.2f} GB"
    )
    for name, features in GRIDS.items():
        for count, which in (SPLITS["train"], "train alone, as training does"), (IMAGES, "all"):
            grids = 2 * features * count
            total = (images + grids) / 1e9
            print(f"  and cached grids of {name}, {which}: {grids / 1e9:.1f}, {total:.1f} GB")


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
