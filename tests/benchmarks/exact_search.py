"""Count what the exact end of a beam search costs, and how many captions it changes.

    python -m tests.benchmarks.exact_search PHOTOS --photos 160

PHOTOS is a folder or a tar file; the first photos by name are captioned by the bundled checkpoint.
At each length penalty it prints the rows that the decoder's steps had, one for each image that was
still searched for, with and without `exact`, and how many captions differ. Counts need no idle
machine.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from captioner import Captioner
from captioner.decoders.state import State, StepDecoder, StepOutput
from captioner.generation.config import GenerationConfig
from captioner.generation.generate import generate
from tests.benchmarks.measuring import photos

PENALTIES = (0.5, 1.0)


class Counted:
    """A decoder that counts the rows of its steps: images, each with all its hypotheses."""

    def __init__(self, decoder: StepDecoder) -> None:
        self.decoder, self.rows = decoder, 0

    def start(self, features: Tensor) -> State:
        """Begin as the decoder does."""
        return self.decoder.start(features)

    def step(self, tokens: Tensor, state: State) -> StepOutput:
        """Go on as the decoder does."""
        self.rows += len(tokens)
        return self.decoder.step(tokens, state)


def search(
    captioner: Captioner, grids: list[Tensor], config: GenerationConfig
) -> tuple[int, list[list[int]]]:
    """Caption batches of grids: the rows of all steps, and the best caption of each image."""
    decoder = Counted(captioner.model.decoder)
    found = [
        best.tokens
        for features in grids
        for best, *_ in generate(decoder, features, config, vocabulary=captioner.vocabulary)
    ]
    return decoder.rows, found


def main() -> None:
    """Search both ways at each penalty, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("place", type=Path, metavar="PHOTOS", help="folder or tar file")
    parser.add_argument("--photos", type=int, default=160, help="how many (default: 160)")
    parser.add_argument("--images", type=int, default=16, help="at once (default: 16)")
    parser.add_argument("--dtype", default="bfloat16", help="default: bfloat16")
    parser.add_argument("--threads", type=int, default=2, help="of torch (default: 2)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    captioner = Captioner.from_pretrained(device="cpu", dtype=arguments.dtype)
    prepared = map(captioner.prepare, photos(arguments.place, arguments.photos))
    pixels = np.stack([photo.pixels for photo in prepared])
    starts = range(0, len(pixels), arguments.images)
    grids = [captioner.encode(pixels[at : at + arguments.images]).features for at in starts]
    print(f"{len(pixels)} photos, {arguments.images} at once, {arguments.dtype}, 1 caption each")
    for penalty in PENALTIES:
        ways = [GenerationConfig(length_penalty=penalty, exact=exact) for exact in (False, True)]
        (few, early), (many, exact) = (search(captioner, grids, way) for way in ways)
        differ = sum(one != other for one, other in zip(early, exact, strict=True))
        print(
            f"length penalty {penalty}: {few:,} -> {many:,} rows of decoder steps with exact "
            f"({many / few - 1:+.1%}); {differ} of {len(exact)} captions differ"
        )


if __name__ == "__main__":
    main()
