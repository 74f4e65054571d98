"""Measure batch captioning: against the model alone, and against one photo at a time.

    python -m tests.benchmarks.batch ../shared/data --photos 600 --rounds 3

DATA is searched for tar files of photos. In each round, in this one process and the same dtype:
  in memory        encoding and beam search of the same photos, decoded and squared beforehand, in
                   batches of 32: all cores on a batch, and a core a batch; the faster counts
  batch            all of `captioner batch`: reading the tar files in place, worker processes,
                   captioning, the journal on disk
  straightforward  one photo at a time: PIL decodes it whole and resizes it; the checkpoint's model
                   as torch has it, in its usual memory format; beam search as the usual tutorial
                   writes it (straightforward.search), until every beam has ended
  12 megapixels    `captioner batch` on photos enlarged to 4000 x 3000, with a sensor's grain
Medians over the rounds count. Exit status 1: a target was missed. Let the machine be idle; each
round says how much of it other processes took.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image

from captioner import Captioner
from captioner.captioner import PreparedImage
from captioner.checkpoint import load_checkpoint
from captioner.generation.generate import generate
from captioner.inference.device import best_dtype, cores
from captioner.model.model import CaptionModel
from captioner.photos.open import open_image
from captioner.shared.paths import bundled_checkpoint
from captioner.vocabulary import join
from captioner_serving.batch import BatchConfig, caption_batch
from captioner_serving.batch.inputs.photos import Photo
from captioner_serving.batch.inputs.sources import Inputs
from tests.benchmarks.measuring import reached, seconds
from tests.benchmarks.straightforward import search

BATCH = 32
TARGETS = {
    "of in memory": 0.9,
    "times straightforward": 5.0,
    "photos/s": 60.0,
    "12-megapixel photos/s": 25.0,
}


def parts(photos: list[PreparedImage]) -> list[list[PreparedImage]]:
    """Batches."""
    return [photos[start : start + BATCH] for start in range(0, len(photos), BATCH)]


def in_memory(captioner: Captioner, photos: list[PreparedImage], *, streams: int) -> float:
    """Photos a second of the model alone, so many batches at once."""

    @torch.inference_mode()
    def work(part: list[PreparedImage]) -> None:
        grid = captioner.encode(np.stack([photo.pixels for photo in part]))
        vocabulary = captioner.vocabulary
        generate(
            captioner.model.decoder, grid.features, captioner.generation, vocabulary=vocabulary
        )

    threads = max(1, cores() // streams)
    with ThreadPoolExecutor(
        streams, initializer=torch.set_num_threads, initargs=(threads,)
    ) as pool:
        return len(photos) / seconds(lambda: list(pool.map(work, parts(photos))))


def batch(captioner: Captioner, inputs: Inputs, count: int) -> float:
    """Photos a second of the whole way, from the call to the last record on disk."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "captions.jsonl")
        run = caption_batch(inputs, output=output, captioner=captioner, config=BatchConfig())
        took = seconds(lambda: list(islice(run, count)))
        lines = len(output.read_text().splitlines())
    if lines != count or Path(f"{output}.errors.jsonl").exists():
        raise SystemExit(f"{lines} records for {count} photos")
    return count / took


def straightforward(captioner: Captioner, model: CaptionModel, photos: list[Photo]) -> float:
    """Photos a second one at a time, on all cores."""
    torch.set_num_threads(cores())
    side = captioner.transform.config.size

    @torch.inference_mode()
    def work() -> None:
        for photo in photos:
            with Image.open(BytesIO(photo.read())) as image:
                square = image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR)
            pixels = torch.from_numpy(np.asarray(square).copy()).permute(2, 0, 1).unsqueeze(0)
            grid = model.encode(captioner.transform.normalize(pixels).to(captioner.dtype))
            settings = captioner.generation
            found = search(
                model.decoder,
                grid.features,
                start=captioner.vocabulary.start(settings.style),
                beam=settings.beam_size,
                words=settings.maximum_length,
                until_end=True,
            )
            join(captioner.vocabulary.decode(found.tokens))

    return len(photos) / seconds(work)


def enlarge(photos: list[Photo], folder: Path) -> int:
    """Write photos as 12-megapixel JPEGs; returns their mean size in bytes."""
    noise = np.random.default_rng(0)
    grain = noise.normal(0, 5, (3000, 4000, 1)).astype(np.float32)
    for number, photo in enumerate(photos):
        with Image.open(BytesIO(photo.read())) as image:
            large = image.convert("RGB").resize((4000, 3000), Image.Resampling.BICUBIC)
        pixels = np.asarray(large, dtype=np.float32) + np.roll(grain, number * 97, axis=1)
        clipped = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
        clipped.save(folder / f"{number:04}.jpg", quality=90)
    sizes = [path.stat().st_size for path in folder.iterdir()]
    return sum(sizes) // len(sizes)


def others() -> float:
    """Seconds of CPU that other processes have taken since the machine started."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    busy = sum(map(int, fields)) - int(fields[3]) - int(fields[4])
    own = os.times()
    return busy / os.sysconf("SC_CLK_TCK") - sum(own[:4])


def spread(tars: list[Path], count: int) -> Iterator[Photo]:
    """The first photos of each tar file, so that all kinds are there."""
    for tar in tars:
        yield from islice(Inputs(sources=(str(tar),)).photos(), count // len(tars))


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, help="a folder with tar files of photos")
    parser.add_argument("--photos", type=int, default=600, help="a round (default: 600)")
    parser.add_argument("--large", type=int, default=96, help="12-megapixel photos (default: 96)")
    parser.add_argument("--single", type=int, default=96, help="one at a time (default: 96)")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--dtype", default="auto", help="auto, float32 or bfloat16")
    return parser.parse_args()


class PhotoList(Inputs):
    """Inputs that are photos already: the same for all ways."""

    def check(self) -> None:
        """Find nothing missing: no place is named."""

    def photos(self, *_: Any, **__: Any) -> Iterator[Photo]:
        """Give them; none is left out."""
        return iter(LISTED)


LISTED: list[Photo] = []


def main() -> int:
    """Measure and print; 1 where a target was missed."""
    arguments = parse_arguments()
    tars = sorted(arguments.data.rglob("*.tar"))
    LISTED.extend(spread(tars, arguments.photos))
    captioner = Captioner.from_pretrained(dtype=arguments.dtype)
    _, reason = best_dtype(captioner.device)
    plain = load_checkpoint(bundled_checkpoint()).model.to(captioner.dtype).eval()
    prepared = [captioner.prepare(photo.read()) for photo in LISTED]
    sizes = {open_image(photo.read()).size for photo in LISTED}
    with tempfile.TemporaryDirectory() as folder:
        mean = enlarge(LISTED[: arguments.large], Path(folder))
        print(
            f"{cores()} cores, torch {torch.__version__}, "
            f"{str(captioner.dtype).removeprefix('torch.')} ({reason}), "
            f"beam {captioner.generation.beam_size}, batches of {BATCH}\n"
            f"{len(LISTED)} photos of {len(tars)} tar files, {min(sizes)} to {max(sizes)} pixels; "
            f"{arguments.large} of 4000 x 3000, {mean / 1e6:.1f} MB each",
            flush=True,
        )
        rows = []
        for _ in range(arguments.rounds):
            started, busy = time.perf_counter(), others()
            together = in_memory(captioner, prepared, streams=1)
            apart = in_memory(captioner, prepared, streams=cores())
            whole = batch(captioner, PhotoList(sources=("listed",)), len(LISTED))
            single = straightforward(captioner, plain, LISTED[: arguments.single])
            large = batch(captioner, Inputs(sources=(folder,)), arguments.large)
            best = max(together, apart)
            rows.append((together, apart, whole, single, large, whole / best, whole / single))
            share = (others() - busy) / (time.perf_counter() - started) / cores()
            line = "  ".join(f"{value:.2f}" for value in rows[-1])
            print(f"{line}  (others took {share:.0%} of the machine)", flush=True)
    together, apart, whole, single, large, share, times = map(median, zip(*rows, strict=True))
    print(f"in memory, all cores on a batch   {together:7.1f} photos/s")
    print(f"in memory, a core a batch         {apart:7.1f}")
    print(f"batch                             {whole:7.1f}")
    print(f"straightforward, one at a time    {single:7.1f}")
    print(f"batch, 12 megapixels              {large:7.1f}")
    values = (share, times, whole, large)
    met = [reached(name, value, TARGETS[name]) for name, value in zip(TARGETS, values, strict=True)]
    return int(not all(met))


if __name__ == "__main__":
    sys.exit(main())
