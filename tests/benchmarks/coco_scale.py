"""What COCO takes of memory, disk and time, from `captioner prepare` to fine-tuning, without COCO.

    python -m tests.benchmarks.coco_scale [--photos 12800] [--whole] [--scratch DIR]

A data set of COCO's numbers is made up: 113,287 photos to train on and 5,000 to validate on, each
with five captions of 8 to 14 words. The photos are 64 drawings in turn, of 341 x 256, as large as
`prepare` leaves those of COCO, and no two files are equal. Then, each a process as people start it,
on what the machine has:

  prepare       all of them; COCO's own photos are larger, and take longer to decode
  frozen        `coco-fast`'s first stage for an epoch of N photos (--photos), after their encoding
  fine-tuning   200 steps of its second stage

Both trainings read the whole index and all captions before they take their part. Of each command:
the highest memory of all its processes together (PSS: a page that they share counts once; needed,
and of files, which the system takes back; a GPU's own is not in it), and how long its device waited
for data, as its log says. What is said of all photos is what a part took, times their number: it is
called extrapolated. The default took two idle cores 22 minutes.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import random
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable
from itertools import accumulate, islice
from pathlib import Path

from PIL import Image

if __name__ == "__main__":  # also as a file
    sys.path[0] = str(Path(__file__).parents[2])

from tests.benchmarks.measuring import Watch, seconds

SPLITS = {"train": 113_287, "val": 5_000}  # Karpathy's
FROZEN = "doubly_stochastic: 0.1, attention_entropy: 0.1"  # coco-fast's stages
FINE_TUNING = "fine_tune_from: 0, flip: true, crop: 0.15, scheduled_sampling: 0.1"
STEPS = 200  # of fine-tuning
VALIDATED = 50  # photos of a run that takes --max-steps
WORDS = [f"word{number}" for number in range(9_486)]  # as many as COCO has five times


def draw(chance: random.Random, size: tuple[int, int] = (341, 256)) -> bytes:
    """Draw clouds of all sizes, which make a JPEG as large as a photo of COCO: 32 kB."""
    photo = Image.new("RGB", size)
    for cells, strength in ((4, 0.5), (16, 0.4), (64, 0.35), (256, 0.1)):
        noise = Image.frombytes("RGB", (cells, cells), chance.randbytes(3 * cells**2))
        photo = Image.blend(photo, noise.resize(photo.size, Image.Resampling.BICUBIC), strength)
    file = io.BytesIO()
    photo.save(file, "JPEG", quality=90)
    return file.getvalue()


def make_up(folder: Path) -> None:
    """Write photos and captions of both splits, as COCO has them."""
    chance = random.Random(0)
    photos = [draw(chance) for _ in range(64)]
    weights = list(accumulate(1 / (10 + rank) for rank in range(len(WORDS))))  # as words are common
    numbers = itertools.count(1)
    for split, count in SPLITS.items():
        images, captions = [], []
        with zipfile.ZipFile(folder / f"{split}.zip", "w") as archive:
            for number in islice(numbers, count):
                name = f"COCO_{split}2014_{number:012}.jpg"
                # What follows the end of a JPEG is not looked at: no two files are equal.
                archive.writestr(name, photos[number % len(photos)] + b"%08d" % number)
                images.append({"id": number, "file_name": name})
                for _ in range(5):
                    words = chance.choices(WORDS, cum_weights=weights, k=chance.randint(8, 14))
                    captions.append({"image_id": number, "caption": " ".join(words)})
        (folder / f"{split}.json").write_text(
            json.dumps({"images": images, "annotations": captions})
        )


def run(name: str, *arguments: object) -> float:
    """Run `captioner`, say what memory it took, and give its seconds."""
    command = [sys.executable, "-m", "captioner", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    with Watch(process.pid, every=1.0) as watch:
        took = seconds(process.wait)
    if process.returncode:
        raise SystemExit(f"{name}: status {process.returncode}")
    print(f"\n{name}: {took:.0f} s, {watch}, both {watch.all / 1e9:.2f} GB at most", flush=True)
    return took


def train(name: str, folder: Path, stage: str, *, batch: int, steps: int) -> None:
    """Train for a part of an epoch, or all of it; say what each part of the command took."""
    out, started = folder / name, time.time()
    took = run(
        name, "train", "coco-fast", "--data.root", folder / "coco", "--out", out, "--stages",
        f"[{{epochs: 1, batch_size: {batch}, {stage}}}]", "--max-steps", steps,
        "--keep_files", "true",
    )  # fmt: skip
    records = map(json.loads, (out / "log.jsonl").read_text().splitlines())
    timing = next(one["timing"] for one in records if one["event"] == "epoch")
    epoch, grids = timing["seconds"], [*out.glob("cache/*")]
    begun = (out / "recipe.json").stat().st_mtime
    encoding = max((one.stat().st_mtime for one in grids), default=begun) - begun
    print(
        f"  {begun - started:.0f} s before the first photo, {encoding:.0f} s of encoding, "
        f"{epoch:.0f} s of {steps:,} steps, {took - (begun - started) - encoding - epoch:.0f} s "
        f"of all else\n  in these steps {timing['images_per_second']:.1f} photos a second\n"
        f"  disk: grids {gigabytes(grids):.3f} GB, all else "
        f"{gigabytes([out]) - gigabytes(grids):.2f} GB"
    )
    part = min(batch * steps, SPLITS["train"])
    share = SPLITS["train"] / part
    encoded = SPLITS["train"] / (part + min(VALIDATED, SPLITS["val"]))
    print(
        f"  of {SPLITS['train']:,} photos "
        f"({'measured' if share == 1 else f'extrapolated from {part:,}'}): "
        f"encoding {encoded * encoding / 60:.1f} min, an epoch {share * epoch / 60:.1f} min, grids "
        f"{encoded * gigabytes(grids):.1f} GB",
        flush=True,
    )


def gigabytes(paths: Iterable[Path]) -> float:
    """Add up the sizes of files, and of those in folders."""
    files = [one for path in paths for one in (path, *path.rglob("*"))]
    return sum(one.stat().st_size for one in files if one.is_file()) / 1e9


def main() -> int:
    """Make it up, and run all of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--photos", type=int, default=12_800, help="of the frozen epoch")
    parser.add_argument("--whole", action="store_true", help="a frozen epoch of all photos")
    parser.add_argument("--scratch", type=Path, help="a folder with room: 10 GB, --whole 25 GB")
    arguments = parser.parse_args()
    photos = SPLITS["train"] if arguments.whole else arguments.photos
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as name:
        folder = Path(name)
        make_up(folder)
        sources = [*folder.iterdir()]
        print(f"{sum(SPLITS.values()):,} photos, {gigabytes(sources):.2f} GB of zip and json files")
        run(
            "prepare", "prepare", "coco-json", *(f"{one}={folder / one}.json" for one in SPLITS),
            "--images", *folder.glob("*.zip"), "--to", folder / "coco",
        )  # fmt: skip
        print(f"  disk: {gigabytes([folder / 'coco']):.2f} GB, all of it measured")
        for source in sources:
            source.unlink()
        train("frozen", folder, FROZEN, batch=128, steps=-(-photos // 128))
        train("fine-tuning", folder, FINE_TUNING, batch=64, steps=STEPS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
