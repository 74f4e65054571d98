"""Measure the memory of batch captioning, and how fast it goes on.

    python -m tests.benchmarks.batch_memory ../shared/data --part inputs|million

inputs    peak PSS of the process tree for 1,000 photos and for 20,000, all different (photos of the
          tar files in DATA, and mirrored ones where they do not suffice)
million   peak PSS on a list of 1,000,000 paths that are done but for 1,000, less that of the first
          1,000 photos alone

Every number is of the command as people run it. Memory does not depend on what else the machine
does; the seconds do.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from PIL import Image, ImageOps

from captioner_serving.batch.files import RunFiles
from captioner_serving.batch.inputs.photos import Photo
from captioner_serving.batch.inputs.sources import Inputs
from captioner_serving.batch.journal import RECORDS, Journal
from tests.benchmarks.measuring import Watch, seconds

WORD = {"word": "something", "probability": 0.1234, "gate": 0.5678}
RECORD = {  # as long as a usual one
    "caption": "a man in a red shirt is standing on the beach",
    "score": -1.2345,
    "words": [WORD] * 10,
    "alternatives": [],
    "model": {"name": "bundled", "version": "1"},
}


def peak(arguments: Sequence[object]) -> tuple[int, float]:
    """Run `captioner batch`: the peak of its memory in bytes, and the seconds it took."""
    command = [sys.executable, "-m", "captioner", "batch", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    with Watch(process.pid) as watch:
        took = seconds(process.wait)
    if process.returncode:
        raise SystemExit(f"status {process.returncode}")
    return watch.all, took


def mirrored(photos: Iterator[Photo], path: Path, count: int) -> None:
    """Write mirrored photos into a tar file: as real, and different."""
    with tarfile.open(path, "w") as tar:
        for number, photo in enumerate(islice(photos, count)):
            with Image.open(io.BytesIO(photo.read())) as image:
                buffer = io.BytesIO()
                ImageOps.mirror(image.convert("RGB")).save(buffer, "JPEG", quality=90)
            member = tarfile.TarInfo(f"{number:06}.jpg")
            member.size = buffer.tell()
            tar.addfile(member, io.BytesIO(buffer.getvalue()))


def measure_inputs(tars: list[str], folder: Path, most: int) -> bool:
    """Compare few photos with many."""
    photos = Inputs(sources=tuple(tars))
    there = sum(1 for _ in photos.photos())
    extra = folder / "mirrored.tar"
    mirrored(photos.photos(), extra, max(0, most - there))
    every = [photo.name for photo in Inputs(sources=(*tars, str(extra))).photos()]
    few = folder / "few.tar"
    copy(islice(photos.photos(), 1000), few)
    small, _ = peak([few, "--output", folder / "few.jsonl"])
    print(f"1,000 photos: {small / 1e6:.0f} MB", flush=True)
    large, took = peak([*tars, extra, "--output", folder / "many.jsonl"])
    print(f"{len(every):,} photos: {large / 1e6:.0f} MB, {took:.0f} s")
    print(f"{large / small - 1:+.1%}, target within 5 %")
    return large <= 1.05 * small


def copy(photos: Iterator[Photo], path: Path) -> None:
    """Write photos into a tar file."""
    with tarfile.open(path, "w") as tar:
        for photo in photos:
            data = photo.read()
            member = tarfile.TarInfo(photo.name.rsplit("/", 1)[1])
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def pretend(output: Path, names: Iterator[str]) -> None:
    """Write what a run with this output would have left behind for these photos."""
    started = output.with_name("started.jsonl")
    subprocess.run(
        [sys.executable, "-m", "captioner", "batch", os.devnull, "--output", started, "--quiet"]
    )
    settings = json.loads(Path(f"{started}.run.json").read_text())["settings"]
    with Journal(RunFiles(output), settings) as journal:
        while part := list(islice(names, 10_000)):
            for name in part:
                journal.add({"image": name, **RECORD}, RECORDS)
            journal.commit()


def measure_million(tars: list[str], folder: Path, count: int) -> bool:
    """Compare the memory with and without a million paths before the photos."""
    few = folder / "few.tar"
    copy(islice(Inputs(sources=tuple(tars)).photos(), 1000), few)
    small, _ = peak([few, "--output", folder / "few.jsonl"])
    print(f"1,000 photos alone: {small / 1e6:.0f} MB", flush=True)
    listed = folder / "list"
    names = (f"/archive/2024/{number // 1000:04}/IMG_{number:07}.jpg" for number in range(count))
    with listed.open("w") as file:
        for name in names:
            file.write(name + "\n")
    output = folder / "million.jsonl"
    done = (photo.name for photo in Inputs(lists=(str(listed),)).photos())
    pretend(output, done)
    large, took = peak(["--list", listed, few, "--output", output])
    print(
        f"and {count:,} paths: {large / 1e6:.0f} MB in {took:.0f} s, "
        f"{(large - small) / 1e6:.0f} MB more; target 1,000 MB"
    )
    return large - small < 1e9


def main() -> int:
    """Measure a part and print; 1 where a target was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, help="a folder with tar files of photos")
    parser.add_argument("--part", choices=("inputs", "million"), default="inputs")
    parser.add_argument("--count", type=int, help="default: 20,000 or 1,000,000")
    arguments = parser.parse_args()
    tars = sorted(map(str, arguments.data.rglob("*.tar")))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if arguments.part == "inputs":
            met = measure_inputs(tars, folder, arguments.count or 20_000)
        else:
            met = measure_million(tars, folder, arguments.count or 1_000_000)
    print("met" if met else "MISSED")
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())
