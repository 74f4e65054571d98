"""Measure captioner.generation against the straightforward way, both from a ready grid.

    python -m tests.benchmarks.decoding PHOTOS --threads 2 --images 16 --repeat 7

Both ways run in turn, in this process, with the weights of the bundled checkpoint and the same
number of threads, and the median of their times counts. PHOTOS is a folder or a tar file, of which
the first 64 photos are described in exactly twelve words each. Exit status 1: a target was missed.
Run it on a machine that is idle.
"""

from __future__ import annotations

import argparse
import copy
import sys
from pathlib import Path

import torch
from torch import Tensor

from captioner import Captioner
from captioner.decoders.lstm import LSTMDecoder
from captioner.generation.config import GenerationConfig
from captioner.generation.generate import generate
from tests.benchmarks.measuring import in_turns, photos, reached
from tests.benchmarks.straightforward import search

BEAM, WORDS, PHOTOS = 5, 12, 64
CONFIG = GenerationConfig(
    beam_size=BEAM, no_repeat_ngram=0, minimum_length=WORDS, maximum_length=WORDS
)
# Dtype of ours (the straightforward way is always float32), whether it takes many images at once,
# how many times as fast it is at least, and the share of words that are the same, at least.
CASES = (
    (torch.float32, True, 6.0, 1.0),
    (torch.float32, False, 2.2, 1.0),
    (torch.bfloat16, True, 10.0, 0.99),
    (torch.bfloat16, False, 3.0, 0.99),
)


def straightforward(decoder: LSTMDecoder, grids: Tensor) -> list[list[int]]:
    """Caption one image after the other."""
    return [search(decoder, grid, beam=BEAM, words=WORDS).tokens for grid in grids.split(1)]


def ours(decoder: LSTMDecoder, grids: Tensor) -> list[list[int]]:
    """Caption all images at once."""
    return [best.tokens for best, *_ in generate(decoder, grids, CONFIG)]


def main() -> int:
    """Measure and print; 1 where a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("place", type=Path, metavar="PHOTOS", help="folder or tar file")
    parser.add_argument("--threads", type=int, default=2, help="of torch (default: 2)")
    parser.add_argument("--images", type=int, default=16, help="at once (default: 16)")
    parser.add_argument("--repeat", type=int, default=7, help="timings a case (default: 7)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    captioner = Captioner.from_pretrained(device="cpu", dtype="float32")
    decoder = captioner.model.decoder
    assert isinstance(decoder, LSTMDecoder)
    prepared = [captioner.prepare(photo).pixels for photo in photos(arguments.place, PHOTOS)]
    grids = torch.cat([captioner.encode(pixels[None]).features for pixels in prepared])
    wanted = torch.tensor(straightforward(decoder, grids))
    print(
        f"{arguments.threads} threads, torch {torch.__version__}, grids {tuple(grids.shape)} of "
        f"the bundled checkpoint, beam {BEAM}, {WORDS} words, median of {arguments.repeat}"
    )
    met = []
    for dtype, together, ratio, same in CASES:
        cast, count = copy.deepcopy(decoder).to(dtype), arguments.images if together else 1
        parts = grids.to(dtype).split(count)
        words = torch.tensor([sentence for part in parts for sentence in ours(cast, part)])
        times = in_turns(
            {
                "slow": lambda count=count: straightforward(decoder, grids[:count]),
                "fast": lambda cast=cast, part=parts[0]: ours(cast, part),
            },
            rounds=arguments.repeat,
        )
        name = f"{str(dtype).removeprefix('torch.')}, {count} at once"
        met.append(reached(f"times as fast, {name}", times["slow"] / times["fast"], ratio))
        met.append(
            reached(f"of the words the same, {name}", float((words == wanted).float().mean()), same)
        )
    return int(not all(met))


if __name__ == "__main__":
    sys.exit(main())
