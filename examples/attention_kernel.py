"""Attention as kernel regression: fit a curve to noisy points in three ways.

The points are y = 2 sin(x) + x^0.8 plus noise. The prediction at a new x is a weighted mean of the
known y. The weights are one of:

- uniform: attention without a score, which predicts a flat line;
- larger for near points: with the score -(x - x_i)^2 w / 2, the softmax of the scores is a Gaussian
  kernel of width sigma = 1 / sqrt(w), and the mean is the regression of Nadaraya and Watson (1964);
- the same with a learned w: each known point is predicted from the other points, and log w is
  optimised until the error does not change.

With a fixed width, the error does not vanish, however many points are known. A learned width gets
smaller with more points. In theory, sigma falls as N^(-1/5) and the error as N^(-4/5), away from
the ends. The medians here, from 25 to 1,600 points, fall as N^(-0.38) and N^(-0.84).

    python examples/attention_kernel.py --out FOLDER       # some seconds
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

from captioner.model.attention import average, masked_softmax

try:
    from matplotlib.figure import Figure
except ImportError:
    raise SystemExit("this example draws: pip install matplotlib") from None

POINTS = 200  # for the curves and maps; the plots of the error have 25 to 1,600
NOISE = 0.5


def truth(x: Tensor) -> Tensor:
    """Return the curve without noise."""
    return 2 * x.sin() + x**0.8


def draw_points(count: int) -> tuple[Tensor, Tensor]:
    """Draw known points at random: x (L,), sorted, and y (L,)."""
    places = (5 * torch.rand(count)).sort().values
    return places, truth(places) + NOISE * torch.randn(count)


class Kernel(nn.Module):
    """Attention whose score is a negative squared distance; queries and keys are x, values y."""

    def __init__(self, w: float) -> None:
        super().__init__()
        self.log_w = nn.Parameter(torch.tensor(w).log())  # -inf for w = 0: uniform weights

    @property
    def sigma(self) -> float:
        """The width of the Gaussian, in units of x."""
        return (-self.log_w / 2).exp().item()

    def forward(
        self, x: Tensor, places: Tensor, heights: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Predict y (K,) at x (K,) from L known points; also return the weights (K, L)."""
        scores = -((x[:, None] - places) ** 2) * self.log_w.exp() / 2
        weights = masked_softmax(scores, mask)
        guess = average(weights[None, :, None], heights[None, :, None])
        return guess.flatten(), weights


def fit(places: Tensor, heights: Tensor) -> Kernel:
    """Learn w by predicting each known point from the other points."""
    kernel = Kernel(1.0)
    others = ~torch.eye(len(places), dtype=torch.bool)
    optimizer = torch.optim.LBFGS(
        kernel.parameters(), max_iter=100, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        guess, _ = kernel(places, places, heights, others)
        error = (guess - heights).square().mean()
        optimizer.zero_grad()
        error.backward()
        return error

    optimizer.step(loss)
    return kernel


@torch.no_grad()
def error(kernel: Kernel, places: Tensor, heights: Tensor) -> float:
    """Return the mean squared error against the curve without noise."""
    x = torch.linspace(0, 5, 400)
    return (kernel(x, places, heights)[0] - truth(x)).square().mean().item()


def converge(seeds: int = 5) -> dict[int, tuple[float, float, float]]:
    """Return medians by the number of points: error with w = 1, error with learned w, sigma."""
    medians = {}
    for count in (25, 50, 100, 200, 400, 800, 1600):
        rows = []
        for seed in range(seeds):
            torch.manual_seed(seed)
            places, heights = draw_points(count)
            learned = fit(places, heights)
            fixed = error(Kernel(1.0), places, heights)
            rows.append((fixed, error(learned, places, heights), learned.sigma))
        medians[count] = tuple(torch.tensor(rows).median(0).values.tolist())
    return medians


def draw(
    kernels: dict[str, Kernel],
    places: Tensor,
    heights: Tensor,
    medians: dict[int, tuple[float, float, float]],
    path: Path,
) -> None:
    """Draw the three curves, their attention, and the fall of error and sigma with N."""
    x = torch.linspace(0, 5, 100)
    known, line = places.numpy(), x.numpy()
    figure = Figure(figsize=(14, 6), layout="constrained")
    axes = figure.subplots(2, 4)
    for (title, kernel), (above, below) in zip(kernels.items(), axes.T[:3], strict=True):
        with torch.no_grad():
            guess, weights = (each.numpy() for each in kernel(x, places, heights))
        above.plot(known, heights.numpy(), "o", color="steelblue", markersize=2, label="known")
        above.plot(line, truth(x).numpy(), "k--", linewidth=1, label="truth")
        above.plot(line, guess, color="firebrick", label="guess")
        above.set_title(title)
        below.pcolormesh(known, line, weights, cmap="magma", vmin=0, vmax=0.06, shading="nearest")
        below.set_xlabel("known points")
    axes[0, 0].legend(frameon=False)
    axes[1, 0].set_ylabel("x asked for (brighter: looks more)")
    counts = list(medians)
    fixed, learned, sigma = zip(*medians.values(), strict=True)
    above, below = axes[:, 3]
    above.loglog(counts, fixed, "o-", color="silver", label="w = 1")
    above.loglog(counts, learned, "o-", color="firebrick", label="learned")
    slope = [learned[3] * (count / POINTS) ** -0.8 for count in counts]
    above.loglog(counts, slope, "k--", linewidth=1, label="$N^{-4/5}$")
    above.set_title("error, by known points")
    above.legend(frameon=False)
    below.loglog(counts, sigma, "o-", color="firebrick", label="learned sigma")
    slope = [sigma[3] * (count / POINTS) ** -0.2 for count in counts]
    below.loglog(counts, slope, "k--", linewidth=1, label="$N^{-1/5}$")
    below.set_xlabel("known points")
    below.legend(frameon=False)
    figure.savefig(path, dpi=100)


def run(out: Path) -> dict[str, float]:
    """Fit and draw the three curves; return their mean squared errors."""
    torch.manual_seed(1)
    places, heights = draw_points(POINTS)
    learned = fit(places, heights)
    kernels = {
        "mean": Kernel(0.0),
        "Gaussian kernel, sigma = 1": Kernel(1.0),
        f"learned, sigma = {learned.sigma:.2f}": learned,
    }
    results = {"sigma": learned.sigma}
    for name, kernel in zip(("mean", "gaussian", "learned"), kernels.values(), strict=True):
        results[name] = error(kernel, places, heights)
    medians = converge()
    for count, (fixed, adapted, sigma) in medians.items():
        results |= {f"w = 1, {count}": fixed, f"learned, {count}": adapted}
        results[f"sigma, {count}"] = sigma
    draw(kernels, places, heights, medians, out / "attention_kernel.png")
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(), help="folder of the figure")
    for key, value in run(parser.parse_args().out).items():
        print(f"{key}: {value:.4f}")
