"""Attention as a kernel: a curve through noisy points, three ways.

The points are y = 2 sin(x) + x^0.8 with noise. To guess y at a new x, average the y that are known:

- all alike: attention without a score, a flat line;
- the near ones more: with the score -(x - x_i)^2 w / 2, the softmax of the scores is a Gaussian
  kernel, and the average is the regression of Nadaraya and Watson (1964);
- with a w that is learned: each known point is guessed from the others, and w follows the slope of
  the error. The field of attention gets sharper than at w = 1, and the curve follows the points.

    python examples/attention_kernel.py --out FOLDER       # a second
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from captioner.attention.attention import average
from captioner.attention.masks import masked_softmax


def truth(x: Tensor) -> Tensor:
    """Give the curve that the points lie about."""
    return 2 * x.sin() + x**0.8


class Kernel(nn.Module):
    """Attention whose score is a distance. Query and keys are places, the values heights."""

    def __init__(self, width: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(width))

    def forward(
        self, x: Tensor, places: Tensor, heights: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Guess the heights at x (K,) from L known points: (K,), and the weights (K, L)."""
        scores = -((x[:, None] - places) ** 2) * self.w / 2
        weights = masked_softmax(scores, mask)
        guess = average(weights[None, :, None], heights[None, :, None])
        return guess.flatten(), weights


def learn_width(kernel: Kernel, places: Tensor, heights: Tensor, *, steps: int = 300) -> None:
    """Guess each known point from the others, and improve w."""
    others = ~torch.eye(len(places), dtype=torch.bool)
    optimizer = torch.optim.Adam(kernel.parameters(), lr=0.1)
    for _ in range(steps):
        guess, _ = kernel(places, places, heights, others)
        error = (guess - heights).square().mean()
        optimizer.zero_grad()
        error.backward()
        optimizer.step()


def run(out: Path) -> dict[str, float]:
    """Fit the three, draw them, and say how far each is from the curve (mean squared error)."""
    torch.manual_seed(1)
    places = (torch.rand(50) * 5).sort().values
    heights = truth(places) + 0.5 * torch.randn(50)
    x = torch.linspace(0, 5, 100)

    learned = Kernel(1.0)
    learn_width(learned, places, heights)
    kernels = {  # without a width, all scores are 0
        "mean": Kernel(0.0),
        "Gaussian kernel, w = 1": Kernel(1.0),
        f"learned, w = {learned.w.item():.1f}": learned,
    }
    figure = Figure(figsize=(11, 6), layout="constrained")
    axes = figure.subplots(2, 3, sharex=True)
    results = {"width": learned.w.item()}
    with torch.no_grad():
        for name, kernel, (above, below) in zip(
            ("mean", "gaussian", "learned"), kernels.values(), axes.T, strict=True
        ):
            guess, weights = kernel(x, places, heights)
            results[name] = (guess - truth(x)).square().mean().item()
            results[f"largest weight, {name}"] = weights.amax(1).mean().item()
            known, line = places.numpy(), x.numpy()
            above.plot(line, truth(x).numpy(), "k--", linewidth=1, label="truth")
            above.plot(line, guess.numpy(), color="firebrick", label="guess")
            above.plot(known, heights.numpy(), "o", color="steelblue", markersize=3, label="known")
            below.pcolormesh(
                known, line, weights.numpy(), cmap="magma", vmin=0, vmax=0.15, shading="nearest"
            )
            below.set_xlabel("known points")
    for title, axis in zip(kernels, axes[0], strict=True):
        axis.set_title(title)
    axes[0, 0].legend(frameon=False)
    axes[1, 0].set_ylabel("x asked for (brighter: looks more)")
    figure.savefig(out / "attention_kernel.png", dpi=100)
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(), help="where the figure goes")
    for key, value in run(parser.parse_args().out).items():
        print(f"{key}: {value:.3f}")
