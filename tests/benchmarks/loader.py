"""Photos per second that the training loader decodes, crops, resizes and flips.

python -m tests.benchmarks.loader data/train-*.tar --size 224 --workers 2
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import torch

from captioner.photos.transform import Transform, TransformConfig
from captioner.shared.archives import tar_members
from captioner_training.data.images import CaptionedImage, ImageStore
from captioner_training.data.pixels import ImageDataset, load_pixels

BATCH = 64


def main() -> None:
    """Load every photo of tar files once, in random order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tars", nargs="+", type=Path, metavar="TAR", help="tar files of photos")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dataset = ImageDataset(
        photos(options.tars),
        Transform(TransformConfig(mode="squash", size=options.size)),
        flip=True,
        crop=0.1,
    )
    positions = random.Random(0).sample(range(len(dataset)), len(dataset))
    order = [positions[at : at + BATCH] for at in range(0, len(positions), BATCH)]
    before, started = sum(os.times()[:4]), time.perf_counter()
    with closing(load_pixels(dataset, workers=options.workers, batch_sampler=order)) as batches:
        for _ in batches:
            pass
    seconds = time.perf_counter() - started
    cores = sum(os.times()[:4]) - before
    print(
        f"{len(dataset):,} photos, {options.size} px, {options.workers} workers: "
        f"{len(dataset) / seconds:.0f} photos/s, {len(dataset) / cores:.0f} per second and core"
    )


def photos(tars: Sequence[Path]) -> list[CaptionedImage]:
    """List the files of tar files."""
    images = []
    for tar in tars:
        store = ImageStore(tar)
        for _, member in tar_members(tar):
            if member.isfile():
                name = member.name
                image = CaptionedImage(name=name, id=name, store=store, captions=(), words=())
                images.append(image)
    return images


if __name__ == "__main__":
    main()
