"""Measure captioner.generation against the straightforward way, both from a ready grid.

    python tests/benchmarks/decoding.py --threads 2 --images 16 --repeat 7

Both ways run in turn, in this process, with the same weights and the same number of threads, and
the median of their times counts. The grids are of drawn scenes that the decoder has not seen, or of
your own photos (--photos). Exit status 1: a target was missed. Run it on a machine that is idle.
"""

from __future__ import annotations

import argparse
import copy
import platform
import sys
import tarfile
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeVar

import torch
from PIL import Image
from straightforward import caption
from torch import Tensor
from trained import (
    SIDE,
    VOCABULARY,
    WORDS,
    Subject,
    build_subject,
    describe,
    encode,
    scenes,
)

from captioner.decoders.lstm import LSTMDecoder
from captioner.generation.config import GenerationConfig
from captioner.generation.generate import generate
from captioner.vision.image import open_image
from captioner_training.data.scenes import COLORS, RELATIONS, SHAPES

BEAM = 5
UNSEEN = 64  # scenes to compare sentences on
SEED = 1_000_000  # of the first of them; training draws from 0 on
CONFIG = GenerationConfig(
    beam_size=BEAM, no_repeat_ngram=0, minimum_length=WORDS, maximum_length=WORDS
)

Sentences = list[list[int]]
Result = TypeVar("Result")


class Case(NamedTuple):
    """One comparison and what it has to reach."""

    dtype: torch.dtype  # ours; the straightforward way is always float32
    images: int
    ratio: float  # times as fast, at least
    same: float  # share of tokens that are the same, at least


class Measurement(NamedTuple):
    """Medians in seconds, and how far both ways agree."""

    straightforward: float
    ours: float
    same: float  # share of tokens
    identical: int  # sentences, of `sentences`
    sentences: int

    @property
    def ratio(self) -> float:
        """How many times as fast ours is."""
        return self.straightforward / self.ours


def straightforward(decoder: LSTMDecoder, grids: Tensor) -> Sentences:
    """Caption one image after the other."""
    return [caption(decoder, grid, beam=BEAM, words=WORDS).tokens for grid in grids.split(1)]


def ours(decoder: LSTMDecoder, grids: Tensor) -> Sentences:
    """Caption all images at once."""
    return [best.tokens for best, *_ in generate(decoder, grids, CONFIG)]


def measure(
    case: Case, decoder: LSTMDecoder, grids: Tensor, wanted: Sentences, n: int
) -> Measurement:
    """Compare the sentences of all grids with `wanted`, then time the first few, n times."""
    cast = copy.deepcopy(decoder).to(case.dtype)
    parts = grids.to(case.dtype).split(case.images)
    got = [sentence for part in parts for sentence in ours(cast, part)]
    same = torch.tensor(got) == torch.tensor(wanted)
    few, timings = grids[: case.images], []
    straightforward(decoder, few)  # warm-up; ours has had its own
    for _ in range(n):
        _, slow = clock(lambda: straightforward(decoder, few))
        _, fast = clock(lambda: ours(cast, parts[0]))
        timings.append((slow, fast))
    slow, fast = (median(times) for times in zip(*timings, strict=True))
    identical = int(same.all(dim=1).sum())
    return Measurement(slow, fast, float(same.float().mean()), identical, len(wanted))


def clock(function: Callable[[], Result]) -> tuple[Result, float]:
    """Call the function: what it returns, and the seconds it took."""
    started = time.perf_counter()
    result = function()
    return result, time.perf_counter() - started


def report_learning(subject: Subject, sentences: Sentences) -> None:
    """Print how many words are right on unseen scenes: one sentence for all would be easy."""
    kinds = {
        "colours": set(COLORS),
        "shapes": set(SHAPES),
        "relations": {word for relation in RELATIONS for word in relation.split()},
    }
    pairs = [
        pair
        for scene, sentence in zip(scenes(SEED, UNSEEN), sentences, strict=True)
        for pair in zip(describe(scene), subject.vocabulary.decode(sentence), strict=True)
    ]
    shares = [f"{sum(a == b for a, b in pairs) / len(pairs):.1%} of all words"]
    for name, words in kinds.items():
        right = [said == wanted for wanted, said in pairs if wanted in words]
        shares.append(f"{sum(right) / len(right):.1%} of {name}")
    different = len(set(map(tuple, sentences)))
    print(f"learned: right on {UNSEEN} unseen scenes: {', '.join(shares)};")
    print(f"         {different} different sentences", flush=True)


def read_photos(path: Path, count: int) -> list[Image.Image]:
    """Open the first photos of a folder, or of a tar file, in the order of their names."""
    suffixes = {".jpg", ".jpeg", ".png", ".webp"}
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.suffix.lower() in suffixes)
        return [open_image(file) for file in files[:count]]
    with tarfile.open(path) as tar:
        names = sorted(n for n in tar.getnames() if Path(n).suffix.lower() in suffixes)[:count]
        files = [tar.extractfile(name) for name in names]
        return [open_image(BytesIO(file.read())) for file in files if file is not None]


def processor() -> str:
    """Name the CPU and what it can."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    facts = {key.strip(): value.strip() for key, value in facts.items()}
    flags = facts.get("flags", "").split()
    bf16 = [flag for flag in ("amx_bf16", "avx512_bf16") if flag in flags] or ["no bf16"]
    return f"{facts.get('model name', platform.machine())} ({', '.join(bf16)})"


def print_table(rows: list[tuple[Case, Measurement]]) -> None:
    """Print a row a case."""
    head = ("ours, images", "straightforward", "ours", "ratio", "target", "tokens", "identical")
    widths = (20, 16, 10, 8, 8, 9, 12)
    print("".join(f"{cell:>{width}}" for cell, width in zip(head, widths, strict=True)))
    for case, result in rows:
        cells = (
            f"{str(case.dtype).removeprefix('torch.')}, {case.images}",
            f"{result.straightforward:.3f} s",
            f"{result.ours:.3f} s",
            f"{result.ratio:.2f}x",
            f"{case.ratio:g}x",
            f"{result.same:.2%}",
            f"{result.identical} of {result.sentences}",
        )
        met = result.ratio >= case.ratio and result.same >= case.same
        line = "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        print(f"{line}  {'met' if met else 'MISSED'}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2, help="of torch (default: 2)")
    parser.add_argument("--images", type=int, default=16, help="at once (default: 16)")
    parser.add_argument("--repeat", type=int, default=7, help="timings a case (default: 7)")
    parser.add_argument("--photos", type=Path, help="folder or tar file to take the grids from")
    parser.add_argument("--scenes", type=int, default=512, help="to learn from (default: 512)")
    parser.add_argument("--steps", type=int, default=400, help="of training (default: 400)")
    return parser.parse_args()


def main() -> int:
    """Train, measure, print; 1 where a target was missed."""
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    print(f"training a decoder on {arguments.scenes} drawn scenes, minutes ...", flush=True)
    subject, seconds = clock(
        lambda: build_subject(scenes_seen=arguments.scenes, steps=arguments.steps)
    )
    images = [scene.image for scene in scenes(SEED, UNSEEN)]
    grids = encode(subject.encoder, subject.transform, images)
    print(f"trained {arguments.steps} steps; with encoding {seconds:.0f} s")
    wanted = straightforward(subject.decoder, grids)
    report_learning(subject, wanted)
    source = "unseen drawn scenes"
    if arguments.photos:
        source, images = "photos", read_photos(arguments.photos, UNSEEN)
        grids = encode(subject.encoder, subject.transform, images)
        wanted = straightforward(subject.decoder, grids)
    print(
        f"\n{processor()}, {arguments.threads} threads, torch {torch.__version__}; baseline float32"
        f"\nbeam {BEAM}, {WORDS} steps and <end>, vocabulary {VOCABULARY}, all dimensions 512, "
        f"median of {arguments.repeat}"
        f"\nResNet-101 grids {tuple(grids.shape[1:])} of {len(grids)} {source}, {SIDE}x{SIDE} "
        f"pixels ({subject.origin})\n",
        flush=True,
    )
    cases = (
        Case(torch.float32, arguments.images, 6.0, 1.0),
        Case(torch.float32, 1, 2.2, 1.0),
        Case(torch.bfloat16, arguments.images, 10.0, 0.99),
        Case(torch.bfloat16, 1, 3.0, 0.99),
    )
    rows = [(c, measure(c, subject.decoder, grids, wanted, arguments.repeat)) for c in cases]
    print_table(rows)
    return int(any(row.ratio < case.ratio or row.same < case.same for case, row in rows))


if __name__ == "__main__":
    sys.exit(main())
