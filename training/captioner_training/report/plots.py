"""Plots of a report as coordinates in pixels; plot.svg draws them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_WIDTH, _HEIGHT = 420, 300
_BOTTOM, _TOP = _HEIGHT - 40, 20
_LEFT, _RIGHT = 52, _WIDTH - 14
_DOTS = 60  # curves with at most this many points have dots


class Scale:
    """A linear map from values to pixels, with round numbers at its ends."""

    def __init__(self, least: float, most: float, *, start: float, end: float) -> None:
        span = most - least if most > least else 1.0
        size = 10.0 ** math.floor(math.log10(span / 4))
        self.step = size * next(x for x in (1, 2, 2.5, 5, 10) if 4 * size * x >= span * 0.999)
        self.first = self.step * math.floor(least / self.step)
        self.steps = max(1, math.ceil((most - self.first) / self.step - 1e-9))
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        """Return the position of a value."""
        share = (value - self.first) / (self.step * self.steps)
        return round(self.start + share * (self.end - self.start), 1)

    def marks(self) -> list[tuple[float, str]]:
        """Return the pixels and labels of the round numbers."""
        values = [self.first + at * self.step for at in range(self.steps + 1)]
        return [(self(value), f"{round(value, 9):g}") for value in values]


@dataclass(kw_only=True)
class Plot:
    """A plot in pixels. The `kind` of a line or dot is its CSS class."""

    title: str
    x: Scale
    y: Scale
    x_name: str = ""
    y_name: str = ""
    lines: list[tuple[str, str]] = field(default_factory=list)
    bars: list[tuple[float, float, float, float, str]] = field(default_factory=list)
    dots: list[tuple[float, float, float, str, str]] = field(default_factory=list)
    width: int = _WIDTH
    height: int = _HEIGHT

    def line(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        """Draw a line through points."""
        self.lines.append((" ".join(f"{self.x(x)},{self.y(y)}" for x, y in points), kind))

    def dot(self, x: float, y: float, radius: float, *, kind: str, text: str) -> None:
        """Draw a dot with a tooltip."""
        self.dots.append((self.x(x), self.y(y), radius, kind, text))


def _plot(title: str, x: Sequence[float], y: Sequence[float], x_name: str, y_name: str) -> Plot:
    return Plot(
        title=title,
        x=Scale(min(x), max(x), start=_LEFT, end=_RIGHT),
        y=Scale(min(y), max(y), start=_BOTTOM, end=_TOP),
        x_name=x_name,
        y_name=y_name,
    )


def reliability_plot(bins: Sequence[Mapping[str, float]], *, title: str) -> Plot:
    """Plot accuracy against confidence, from the bins of calibration.reliability.

    The area of a dot is its bin's share of the predictions.
    """
    plot = _plot(title, (0, 1), (0, 1), "predicted probability", "share that is right")
    plot.line([(0, 0), (1, 1)], "ideal")
    plot.line([(bin_["confidence"], bin_["right"]) for bin_ in bins], "curve before")
    total = sum(bin_["count"] for bin_ in bins) or 1
    for bin_ in bins:
        text = (
            f"{bin_['count']:,.0f} with a mean probability of {100 * bin_['confidence']:.0f} %, "
            f"{100 * bin_['right']:.0f} % right"
        )
        radius = round(2.5 + 9 * (bin_["count"] / total) ** 0.5, 1)
        plot.dot(bin_["confidence"], bin_["right"], radius, kind="before", text=text)
    return plot


def review_plot(curve: Sequence[Mapping[str, float]]) -> Plot:
    """Plot the share of wrong words seen against the share of captions read (see review_curve)."""
    plot = _plot(
        "Wrong words seen by reading some captions",
        (0, 100),
        (0, 100),
        "% of captions read, least trusted first",
        "% of wrong words",
    )
    plot.line([(0, 0), (100, 100)], "chance")
    for name, kind in (("ideal", "ideal"), ("by_score", "after"), ("found", "before")):
        points = [(100 * point["reviewed"], 100 * point[name]) for point in curve]
        plot.line([(0, 0), *points], f"curve {kind}")
    return plot


def curves_plot(
    curves: Mapping[str, Sequence[tuple[float, float]]], *, title: str, ends: Sequence[float]
) -> Plot:
    """Plot values over the steps of a run; dashed lines mark the ends of its stages."""
    values = [value for points in curves.values() for _, value in points] or [0.0]
    least, most = min(values), max(values)
    least = min(least, max(0, least - 0.1 * (most - least)))  # below 0 only for negative values
    plot = _plot(title, (0, max(ends, default=1)), (least, most), "steps", "")
    for end in ends[:-1]:
        plot.lines.append((f"{plot.x(end)},{_BOTTOM} {plot.x(end)},{_TOP}", "ideal"))
    for kind, points in curves.items():
        plot.line(points, f"curve {kind}")
        for x, y in points if len(points) <= _DOTS else ():
            plot.dot(x, y, 3, kind=kind, text=f"step {x:,.0f}: {y:.4g}")
    return plot


def histogram(values: Sequence[float], *, title: str, name: str, bins: int) -> Plot:
    """Plot how often values occur, in bins of equal width from 0."""
    most = max(values, default=0) or 1
    width = most / bins
    counts = Counter(min(int(value / width), bins - 1) for value in values)
    plot = _plot(title, (0, most), (0, max(counts.values(), default=1)), name, "captions")
    for at, count in sorted(counts.items()):
        left, right = plot.x((at + 0.06) * width), plot.x((at + 0.94) * width)
        top, ground = plot.y(count), plot.y(0)
        text = f"{count:,} captions: {at * width:.0f} to {(at + 1) * width:.0f}"
        size = max(round(right - left, 1), 0.5), round(ground - top, 1)
        plot.bars.append((left, top, *size, text))
    return plot
