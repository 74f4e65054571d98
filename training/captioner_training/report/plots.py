"""Plots of a report as SVG, drawn by matplotlib (the extra `report`); None without it."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_MODEL, _OTHER, _GREY = "#b8541f", "#2f8f6a", "#8a8f98"


def reliability_plot(bins: Sequence[Mapping[str, float]]) -> str | None:
    """Plot accuracy against confidence, from the bins of calibration.reliability.

    The area of a dot is its bin's share of the predictions.
    """

    def draw(axes: Any) -> None:
        confidence, right = ([bin_[name] for bin_ in bins] for name in ("confidence", "right"))
        total = sum(bin_["count"] for bin_ in bins) or 1
        axes.plot([0, 1], [0, 1], "--", color=_GREY)
        axes.plot(confidence, right, color=_MODEL)
        sizes = [10 + 300 * bin_["count"] / total for bin_ in bins]
        axes.scatter(confidence, right, sizes, color=_MODEL, alpha=0.8, clip_on=False)
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="predicted probability",
                 ylabel="share that is right")  # fmt: skip

    return _svg(draw)


def curves_plot(
    curves: Mapping[str, Sequence[tuple[float, float]]], *, ends: Sequence[float]
) -> str | None:
    """Plot named values over the steps of a run; dashed lines mark the ends of its stages."""

    def draw(axes: Any) -> None:
        colors = (_MODEL, _OTHER) if len(curves) > 1 else (_MODEL,)
        for (name, points), color in zip(curves.items(), colors, strict=True):
            dots = "." if len(points) <= 60 else ""
            steps, values = zip(*points, strict=True) if points else ((), ())
            axes.plot(steps, values, marker=dots, color=color, label=name)
        for end in ends[:-1]:
            axes.axvline(end, linestyle="--", color=_GREY)
        axes.set(xlabel="steps")
        if len(curves) > 1:
            axes.legend(frameon=False)

    return _svg(draw)


def _svg(draw: Callable[[Any], None]) -> str | None:
    """Return a plot as a data URI."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure  # not pyplot, which keeps figures and opens windows
    except ImportError:
        return None

    # Equal plots have equal bytes.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "captioner", "font.size": 9}):
        figure = Figure(figsize=(4.6, 3.2), layout="tight")
        axes = figure.subplots()
        axes.grid(color="#e4e1d9")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        draw(axes)
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return f"data:image/svg+xml;base64,{b64encode(file.getvalue()).decode()}"
