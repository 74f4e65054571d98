"""Draw the self-attention between words in a transformer decoder, for each head.

It needs a checkpoint with a transformer decoder, which `captioner train` makes with
`--decoder.kind transformer --decoder.score scaled_dot --decoder.heads 4`. A row is a word of
the caption, and its columns are the words before it. A word cannot attend to later words.

    python examples/word_attention.py CHECKPOINT PHOTO --out FOLDER       # some seconds
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from captioner import Captioner
from captioner.model.transformer import TransformerDecoder

try:
    from matplotlib.figure import Figure
except ImportError:
    raise SystemExit("this example draws: pip install matplotlib") from None


@torch.inference_mode()
def look_back(captioner: Captioner, photo: str) -> tuple[list[str], torch.Tensor]:
    """Caption a photo; return its T words, and maps (heads, T, T) of the last decoder layer.

    Row t is for word t. Column 1 is the start token, column 2 the first word, and so on.
    """
    words = [word.text for word in captioner.caption(photo).words]
    tokens = [captioner.vocabulary.start(), *captioner.vocabulary.encode(words)][:-1]
    pixels = captioner.prepare(photo).pixels
    grid = captioner.encode(pixels[np.newaxis])
    decoder = captioner.model.decoder
    if not isinstance(decoder, TransformerDecoder):
        raise SystemExit(f"{captioner.name} has no self-attention: use a transformer's checkpoint")
    maps = decoder.word_attention(grid.features, torch.tensor([[tokens]], device=captioner.device))
    return words, maps[0, 0].float().cpu()


def draw(said: list[str], maps: torch.Tensor, path: Path) -> None:
    """Draw each head's map (T, T)."""
    before = ["<start>", *said[:-1]]
    figure = Figure(figsize=(3.4 * len(maps), 4.4), layout="constrained")
    axes = figure.subplots(1, len(maps), squeeze=False)[0]
    for number, (axis, weights) in enumerate(zip(axes, maps, strict=True), start=1):
        axis.imshow(weights.numpy(), cmap="magma", vmin=0, vmax=1)
        axis.set_xticks(range(len(before)), before, rotation=90)
        axis.set_yticks(range(len(said)), said if number == 1 else [""] * len(said))
        axis.set_title(f"head {number} of {len(maps)}")
    axes[0].set_ylabel("said now")
    figure.supxlabel("looked at")
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("photo")
    parser.add_argument("--out", type=Path, default=Path(), help="folder of the figure")
    arguments = parser.parse_args()
    captioner = Captioner.from_pretrained(arguments.checkpoint)
    words, maps = look_back(captioner, arguments.photo)
    print(" ".join(words))
    draw(words, maps, arguments.out / "word_attention.png")
