"""What attention for every word costs: a Hugging Face model here, and in transformers alone.

    python -m tests.benchmarks.huggingface            # tiny and usual sizes, one photo and sixteen
    python -m tests.benchmarks.huggingface --tiny

Models of each class with random weights, float32. Both ways begin with a photo in memory and
end with text, beam 3 and 12 tokens. Here log-probabilities and attention of words come with it.
The target is at most 1.1 times transformers' own time. Needs 3 GB of memory, and an idle machine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from captioner import Captioner
from tests.benchmarks.measuring import in_turns, reached
from tests.captioner.hugging_face import save_base, save_tiny

TARGET = 1.1
BEAM, TOKENS = 3, 12
_KINDS = ("blip", "vit-gpt2", "git")


def load(folder: Path) -> tuple[Any, Any, Any]:
    """Load a model, its image processor and its tokenizer as transformers' documentation does."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    model = getattr(transformers, config.architectures[0]).from_pretrained(folder)
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    return model.eval(), processor, transformers.AutoTokenizer.from_pretrained(folder)


def compare(name: str, folder: Path, *, count: int, rounds: int) -> bool:
    """Compare both ways of captioning so many photos."""
    captioner = Captioner.from_pretrained(f"hf:{folder}", device="cpu", dtype="float32")
    config = captioner.generation.changed(
        beam_size=BEAM, minimum_length=TOKENS, maximum_length=TOKENS
    )
    model, processor, tokenizer = load(folder)
    chance = np.random.default_rng(0)
    photos = [
        Image.fromarray(chance.integers(0, 256, (480, 640, 3), dtype=np.uint8))
        for _ in range(count)
    ]

    @torch.inference_mode()
    def alone() -> object:
        pixels = processor(photos, return_tensors="pt")["pixel_values"]
        tokens = model.generate(
            pixel_values=pixels, num_beams=BEAM, min_new_tokens=TOKENS, max_new_tokens=TOKENS
        )
        return tokenizer.batch_decode(tokens, skip_special_tokens=True)

    ways = {"here": lambda: captioner.caption(photos, config), "alone": alone}
    times = in_turns(ways, rounds=rounds)
    seconds = ", ".join(f"{way} {1000 * time:.0f} ms" for way, time in times.items())
    number = "one photo" if count == 1 else f"{count} photos"
    ratio = times["here"] / times["alone"]
    return reached(f"times transformers: {name}, {number} ({seconds})", ratio, TARGET, at_most=True)


def main() -> int:
    """Run every comparison; 1 if one misses the target."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true", help="tiny models alone")
    parser.add_argument("--rounds", type=int, default=9, metavar="N")
    arguments = parser.parse_args()
    print(f"{torch.get_num_threads()} threads, float32, beam {BEAM}, {TOKENS} tokens", flush=True)
    sizes = {"tiny": save_tiny} | ({} if arguments.tiny else {"base": save_base})
    met = []
    for size, save in sizes.items():
        for kind in _KINDS:
            with tempfile.TemporaryDirectory() as place:
                folder = save(kind, Path(place) / kind)
                met += [
                    compare(f"{size} {kind}", folder, count=count, rounds=arguments.rounds)
                    for count in (1, 16)
                ]
    return int(not all(met))


if __name__ == "__main__":
    sys.exit(main())
