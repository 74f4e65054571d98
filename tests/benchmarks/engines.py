"""Measure which engine captions faster: torch, or onnxruntime with the exported graphs.

    python -m tests.benchmarks.engines PHOTOS --threads 2 --repeat 9

All ways have the bundled checkpoint, the same squares, beam 5 and the same number of threads, and
run in turns in this process; the median of their times counts. PHOTOS is a folder or a tar file.
torch captions the photos as one batch; onnxruntime one after the other, as `captioner caption`
does with it. Exit status 1: on one photo onnxruntime in float32 is not 1.3 times as fast as torch's
best, and is not worth being used in its place. Run it on a machine that is idle.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from captioner import Captioner
from captioner.export.engine import ExportedCaptioner
from captioner.export.folder import write_folder
from captioner.export.quantization import quantize
from captioner.paths import bundled_checkpoint
from tests.benchmarks.measuring import in_turns, photos, reached

RATIO = 1.3
COUNTS = (1, 16)
Way = Callable[[], object]


def with_torch(dtype: str, place: Path, count: int) -> Way:
    """Caption photos as one batch."""
    captioner = Captioner.from_pretrained(device="cpu", dtype=dtype, in_process=True)
    images = [captioner.prepare(photo) for photo in photos(place, count)]
    return lambda: captioner.caption_prepared(images)


def with_onnxruntime(folder: Path, place: Path, count: int, threads: int) -> Way:
    """Caption photos one after the other."""
    captioner = ExportedCaptioner(folder, bundled_checkpoint(), threads=threads, in_process=True)
    images = [captioner.prepare(photo) for photo in photos(place, count)]
    return lambda: captioner.caption_prepared(images)


def main() -> int:
    """Measure and print; 1 where onnxruntime is not worth it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("place", type=Path, metavar="PHOTOS", help="folder or tar file")
    parser.add_argument("--threads", type=int, default=2, help="of each engine (default: 2)")
    parser.add_argument("--repeat", type=int, default=9, help="rounds (default: 9)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as scratch:
        exact, small = Path(scratch, "exact"), Path(scratch, "small")
        exact.mkdir()
        write_folder(bundled_checkpoint(), exact)
        quantize(Path(shutil.copytree(exact, small)))
        met = [_measure(exact, small, arguments, count) for count in COUNTS]
    return int(not met[0])


def _measure(exact: Path, small: Path, arguments: argparse.Namespace, count: int) -> bool:
    place, threads = arguments.place, arguments.threads
    ways = {
        "torch float32": with_torch("float32", place, count),
        "torch bfloat16": with_torch("bfloat16", place, count),
        "onnxruntime float32": with_onnxruntime(exact, place, count, threads),
        "onnxruntime int8": with_onnxruntime(small, place, count, threads),
    }
    times = in_turns(ways, rounds=arguments.repeat)
    print(f"{count} photos, {threads} threads, beam 5, median of {arguments.repeat}, ms a photo:")
    for name, each in times.items():
        print(f"{1000 * each / count:8.1f} {name}")
    best = min(times["torch float32"], times["torch bfloat16"])
    smaller = times["onnxruntime float32"] / times["onnxruntime int8"]
    print(f"{smaller:8.2f} times as fast, int8 beside float32 of onnxruntime")
    name = f"times as fast, onnxruntime float32 beside torch's best, {count} photos"
    return reached(name, best / times["onnxruntime float32"], RATIO)


if __name__ == "__main__":
    sys.exit(main())
