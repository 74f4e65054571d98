"""The plots of a page: where everything stands, in pixels; plot.svg draws it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = [
    "Plot",
    "Row",
    "curves_plot",
    "dots_plot",
    "histogram",
    "reliability_plot",
    "review_plot",
]

Row = tuple[str, Sequence[tuple[str, float, float, float]]]
"""A name, and the dots of its line, each (kind, value, low, high)."""

_WIDTH, _HEIGHT = 420, 300
_LINE = 34  # pixels, from one line of dots to the next
_DOTS = 60  # points of a curve that are marked one by one
_LETTER = 8  # the width of one in a name


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Puts values on a line of pixels from `start` to `end`.

    The line has `steps` round numbers beside the first one.
    """

    first: float
    step: float
    steps: int
    start: float
    end: float

    @classmethod
    def over(cls, least: float, most: float, *, start: float, end: float) -> Scale:
        """Make a scale that has all values between two."""
        span = most - least if most > least else 1.0
        size = 10.0 ** math.floor(math.log10(span / 4))
        step = size * next(one for one in (1, 2, 2.5, 5, 10) if 4 * size * one >= span * 0.999)
        first = step * math.floor(least / step)
        steps = max(1, math.ceil((most - first) / step - 1e-9))
        return cls(first=first, step=step, steps=steps, start=start, end=end)

    def __call__(self, value: float) -> float:
        """Give the pixel of a value."""
        share = (value - self.first) / (self.step * self.steps)
        return round(self.start + share * (self.end - self.start), 1)

    def marks(self) -> list[tuple[float, str]]:
        """Give the pixels of the round numbers, with their labels."""
        values = [self.first + at * self.step for at in range(self.steps + 1)]
        return [(self(value), f"{round(value, 9):g}") for value in values]


@dataclass(kw_only=True)
class Plot:
    """What is drawn, in pixels; the kind of a mark is its class in the page's style."""

    title: str
    x: Scale
    y: Scale | None = None
    x_name: str = ""
    y_name: str = ""
    names: list[tuple[float, str]] = field(default_factory=list)  # of lines, in place of a scale
    lines: list[tuple[str, str]] = field(default_factory=list)
    bars: list[tuple[float, float, float, float, str]] = field(default_factory=list)
    dots: list[tuple[float, float, float, str, str]] = field(default_factory=list)
    width: int = _WIDTH
    height: int = _HEIGHT

    @classmethod
    def up_to(cls, x: float, y: float, *, title: str, x_name: str, y_name: str) -> Plot:
        """Make an empty plot from (0, 0) at the bottom left to (x, y)."""
        return cls(
            title=title,
            x=Scale.over(0, x, start=46, end=_WIDTH - 14),
            y=Scale.over(0, y, start=_HEIGHT - 40, end=20),
            x_name=x_name,
            y_name=y_name,
        )

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Find the pixels of a point."""
        return self.x(x), y if self.y is None else self.y(y)

    def line(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        """Draw a line through points."""
        places = (self.place(*point) for point in points)
        self.lines.append((" ".join(f"{x},{y}" for x, y in places), kind))

    def dot(self, x: float, y: float, radius: float, *, kind: str, text: str) -> None:
        """Draw a dot that says `text` when it is pointed at."""
        self.dots.append((*self.place(x, y), radius, kind, text))


def reliability_plot(bins: Sequence[Mapping[str, float]], *, title: str) -> Plot:
    """Draw how often what was said with a confidence came true.

    Takes the bins of calibration.reliability; the area of a dot is its share.
    """
    plot = Plot.up_to(1, 1, title=title, x_name="said with a probability of", y_name="true")
    plot.line([(0, 0), (1, 1)], "ideal")
    plot.line([(one["confidence"], one["right"]) for one in bins], "curve before")
    total = sum(one["count"] for one in bins) or 1
    for one in bins:
        text = (
            f"{one['count']:,.0f} said with {100 * one['confidence']:.0f} %, true in "
            f"{100 * one['right']:.0f} %"
        )
        radius = round(2.5 + 9 * (one["count"] / total) ** 0.5, 1)
        plot.dot(one["confidence"], one["right"], radius, kind="before", text=text)
    return plot


def review_plot(curve: Sequence[Mapping[str, float]]) -> Plot:
    """Draw how many wrong words are found in the captions where most are expected."""
    plot = Plot.up_to(
        100,
        100,
        title="Wrong words in the captions where most are expected",
        x_name="% of the captions, those with the most first",
        y_name="% of the wrong words",
    )
    plot.line([(0, 0), (100, 100)], "chance")
    for name, kind in (("ideal", "ideal"), ("by_score", "after"), ("found", "before")):
        points = [(100 * one["reviewed"], 100 * one[name]) for one in curve]
        plot.line([(0, 0), *points], f"curve {kind}")
    return plot


def curves_plot(
    curves: Mapping[str, Sequence[tuple[float, float]]], *, title: str, ends: Sequence[float]
) -> Plot:
    """Draw values over the steps of a run, a curve a kind; its stages end at dashed lines."""
    values = [value for points in curves.values() for _, value in points] or [0.0]
    least, most = min(values), max(values)
    least = min(least, max(0, least - 0.1 * (most - least)))  # from 0 on, but for negative losses
    plot = Plot(
        title=title,
        x=Scale.over(0, max(ends, default=1), start=52, end=_WIDTH - 14),
        y=Scale.over(least, most, start=_HEIGHT - 40, end=20),
        x_name="steps",
    )
    for end in ends[:-1]:
        plot.lines.append((f"{plot.x(end)},{_HEIGHT - 40} {plot.x(end)},20", "ideal"))
    for kind, points in curves.items():
        plot.line(points, f"curve {kind}")
        for x, y in points if len(points) <= _DOTS else ():
            plot.dot(x, y, 3, kind=kind, text=f"step {x:,.0f}: {y:.4g}")
    return plot


def histogram(values: Sequence[float], *, title: str, name: str, bins: int | None = None) -> Plot:
    """Draw how often values occur: whole numbers one by one, or `bins` of equal width from 0."""
    most = max(values, default=0)
    width = most / bins if bins and most else 1.0
    places = (min(int(value / width), bins - 1) if bins else round(value) for value in values)
    counts = Counter(places)
    highest = max(counts.values(), default=1)
    across = most if bins else most + 1
    plot = Plot.up_to(across, highest, title=title, x_name=name, y_name="captions")
    for at, count in sorted(counts.items()):
        left, right = at * width, (at + 1) * width
        x, y = plot.place(left + 0.06 * width, count)
        end, ground = plot.place(right - 0.06 * width, 0)
        text = f"{count:,} captions: {left:.0f} to {right:.0f}" if bins else f"{count:,}: {at}"
        plot.bars.append((x, y, max(round(end - x, 1), 0.5), round(ground - y, 1), text))
    return plot


def dots_plot(rows: Sequence[Row], *, title: str, most: float, least: float = 0.0) -> Plot:
    """Draw values with their intervals, a line for each name, between two ends of a scale."""
    left = 20 + _LETTER * max(len(name) for name, _ in rows)
    plot = Plot(
        title=title,
        x=Scale.over(least, most, start=left, end=left + 0.94 * _WIDTH),
        names=[(24 + _LINE * at, name) for at, (name, _) in enumerate(rows)],
        width=left + _WIDTH,
        height=_LINE * len(rows) + 34,
    )
    for (y, name), (_, dots) in zip(plot.names, rows, strict=True):
        for at, (kind, value, low, high) in enumerate(dots):
            height = y + (at - (len(dots) - 1) / 2) * 9
            plot.line([(low, height), (high, height)], f"whisker {kind}")
            text = f"{name}: {value:.3g} [{low:.3g}, {high:.3g}]"
            plot.dot(value, height, 4.5, kind=kind, text=text)
    return plot
