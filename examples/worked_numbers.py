"""Attention by hand: softmax(Q K^T / sqrt(d)) V, number by number.

In plain torch; only the position codes come from captioner. Four parts:

1. One head: three queries and three keys. Scores, softmax over each row, weighted mean.
2. Two heads on the same numbers: each has half of the columns, and other weights.
3. Masks: the same 4 x 4 scores with a full, a local and a causal mask.
4. Positions: codes of bits, codes of sines, and the cosine between the codes of two positions. The
   longest wavelength is 10,000 times 2 pi, as in Vaswani et al. Some lecture notes have 1,000. That
   makes the codes less similar (mean cosine .52 instead of .64), but not orthogonal.

    python examples/worked_numbers.py --out FOLDER         # a second
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from torch import Tensor

from captioner.model.positions import binary, sine

try:
    from matplotlib.figure import Figure
except ImportError:
    raise SystemExit("this example draws: pip install matplotlib") from None

# Three words, d = 4 numbers each.
QUERIES = torch.tensor([[1.0, 1, 0, 0], [0, 0, 1, 1], [1, 0, 0, 1]])
KEYS = torch.tensor([[2.0, 2, 0, 0], [0, 0, 2, 2], [0, 0, 0, 0]])
VALUES = torch.tensor([[1.0, 0, 0, 10], [0, 1, 0, 20], [0, 0, 1, 30]])
# Four words. Since e^0 = 1 and e^(ln 2) = 2, the weights are simple fractions.
SCORES = math.log(2) * torch.tensor([[0.0, 1, 0, 0], [1, 0, 1, 0], [0, 0, 1, 1], [1, 0, 0, 1]])


def attend(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Attend: queries (T, d), keys (L, d), values (L, v) -> scores, weights (T, L), means (T, v).

    Row t, column l of Q K^T is the dot product of query t and key l. The softmax is over a row, so
    the weights of a query sum to 1.
    """
    scores = queries @ keys.T / math.sqrt(queries.shape[-1])
    weights = scores.exp() / scores.exp().sum(dim=-1, keepdim=True)
    return scores, weights, weights @ values


def attend_by_heads(queries: Tensor, keys: Tensor, values: Tensor, *, heads: int) -> list[Tensor]:
    """Split the columns into heads and return the weights (T, L) of each head.

    A head has d / H columns, so its scores are divided by sqrt(d / H).
    """
    parts = (each.chunk(heads, dim=-1) for each in (queries, keys, values))
    return [attend(*part)[1] for part in zip(*parts, strict=True)]


def mask_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Take the softmax of each row over the keys that the mask allows, (T, L).

    Masked keys get a score of minus infinity, whose exponential is 0. A row without any key would
    be 0 / 0; its weights are zero.
    """
    shares = scores.masked_fill(~mask, -math.inf).exp()
    return shares / shares.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(shares.dtype).tiny)


def masks(words: int) -> dict[str, Tensor]:
    """Return three masks (T, T) by name; true if a query (row) may use a key (column)."""
    place = torch.arange(words)
    apart = place - place[:, None]  # position of the key minus position of the query
    return {
        "full": torch.ones(words, words, dtype=torch.bool),
        "local": apart.abs() <= 1,
        "causal": apart <= 0,
    }


def cosines(codes: Tensor) -> Tensor:
    """Return the cosines (n, n) between the codes (n, dim) of n positions."""
    unit = codes / codes.norm(dim=-1, keepdim=True)
    return unit @ unit.T


def draw(path: Path) -> None:
    """Draw heads, masks and positions in one figure."""
    figure = Figure(figsize=(17, 7), layout="constrained")
    axes = figure.subplots(2, 5)
    _, weights, _ = attend(QUERIES, KEYS, VALUES)
    first, second = attend_by_heads(QUERIES, KEYS, VALUES, heads=2)
    maps = {"one head": weights, "head 1 of 2": first, "head 2 of 2": second}
    for axis, (title, shown) in zip(axes[0], maps.items(), strict=False):
        _table(axis, shown, title)
    codes = sine(torch.arange(64), 128)
    axes[0, 3].imshow(codes.numpy(), cmap="RdBu", aspect="auto", interpolation="nearest")
    axes[0, 3].set_title("sine code, 64 places x 128 numbers")
    axes[0, 4].imshow(binary(torch.arange(8), 3).numpy(), cmap="Greys", aspect="auto")
    axes[0, 4].set(title="bits of 8 places: black is 1", ylabel="place", xticks=range(3))
    axes[0, 4].set_xticklabels(["1", "2", "4"])
    for axis, (title, mask) in zip(axes[1], masks(4).items(), strict=False):
        _table(axis, mask_softmax(SCORES, mask), f"{title} mask")
    image = axes[1, 3].imshow(cosines(codes).numpy(), cmap="magma", vmin=0, vmax=1)
    axes[1, 3].set_title("cosine of the codes of two places")
    figure.colorbar(image, ax=axes[1, 3], shrink=0.8)
    axes[1, 4].plot(cosines(codes)[0].numpy())
    axes[1, 4].set(title="... and of place 0 and another", ylim=(0, 1.05), xlabel="distance")
    figure.savefig(path, dpi=100)


def _table(axis: object, weights: Tensor, title: str) -> None:
    axis.imshow(weights.numpy(), cmap="magma", vmin=0, vmax=1)
    for row, line in enumerate(weights.tolist()):
        for column, weight in enumerate(line):
            shade = "black" if weight > 0.6 else "white"
            axis.text(column, row, f"{weight:.2f}", ha="center", va="center", color=shade)
    axis.set_xticks(range(weights.shape[1]), [f"key {i + 1}" for i in range(weights.shape[1])])
    axis.set_yticks(range(weights.shape[0]), [f"query {i + 1}" for i in range(weights.shape[0])])
    axis.set_title(title)


def tell() -> None:
    """Print every step."""
    torch.set_printoptions(precision=3, sci_mode=False)
    scores, weights, contexts = attend(QUERIES, KEYS, VALUES)
    print("1. One head, d = 4, sqrt(d) = 2")
    print(f"Q K^T =\n{QUERIES @ KEYS.T}\nscores = Q K^T / 2 =\n{scores}")
    print("row 1: e^2, e^0, e^0 = 7.389, 1, 1; sum 9.389; weights .787, .107, .107")
    print(f"weights =\n{weights}\ncontexts = weights V =\n{contexts}\n")
    print("2. Two heads: columns 1-2 and 3-4, sqrt(d / 2) = 1.414")
    for number, head in enumerate(attend_by_heads(QUERIES, KEYS, VALUES, heads=2), 1):
        print(f"weights of head {number} =\n{head}")
    print("Query 1 is zero in head 2, and query 2 in head 1, so the weights there are uniform.\n")
    print("3. Masks for four words: scores are 0 or ln 2, their exponentials 1 or 2")
    for name, mask in masks(4).items():
        print(f"{name}:\n{mask_softmax(SCORES, mask)}")
    print("\n4. Places")
    print(f"bits of 0 to 7, the lowest first:\n{binary(torch.arange(8), 3).int()}")
    alike = cosines(sine(torch.arange(64), 128))
    apart = alike[~torch.eye(64, dtype=torch.bool)]
    print(f"cosine of the sine codes of two of 64 places (d = 128): {apart.mean():.2f} on average,")
    print(
        f"{alike[0, 1]:.2f} for neighbours, never below {apart.min():.2f}: they are not orthogonal,"
    )
    print("because the slow waves are nearly the same everywhere. The cosine depends only on the")
    near, far = alike[3, 8], alike[40, 45]
    print(f"distance: {near:.4f} from 3 to 8, {far:.4f} from 40 to 45.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(), help="folder of the figure")
    out = parser.parse_args().out
    tell()
    draw(out / "worked_numbers.png")
