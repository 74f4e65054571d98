"""Plots as SVG, drawn by hand: colours come from the page's style, so that they suit its theme."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

__all__ = ["coverage_plot", "dots_plot", "histogram", "reliability_plot"]

_WIDTH, _HEIGHT = 420, 300
_LEFT, _BOTTOM, _TOP, _RIGHT = 46, 40, 14, 14
_LETTER = 8  # the width of one in a name


class _Frame:
    """Axes from (0, 0) at the bottom left, and the lines drawn between them."""

    def __init__(self, title: str, *, x_most: float, y_most: float, x_name: str, y_name: str):
        self._x, self._y = _round_up(x_most), _round_up(y_most)
        self._parts = [
            f'<svg class="plot" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
            f'aria-label="{escape(title)}"><title>{escape(title)}</title>'
        ]
        for step in range(5):
            share = step / 4
            x, y = self.x(share * self._x), self.y(share * self._y)
            self.add(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
            self.label(_LEFT - 6, y + 4, _number(share * self._y), "end")
            self.label(x, _HEIGHT - _BOTTOM + 16, _number(share * self._x), "middle")
        self.label((_LEFT + _WIDTH) / 2, _HEIGHT - 6, x_name, "middle", kind="axis")
        self.label(_LEFT - 38, _TOP - 3, y_name, "start", kind="axis")

    def x(self, value: float) -> float:
        return round(_LEFT + value / self._x * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(self, value: float) -> float:
        return round(_HEIGHT - _BOTTOM - value / self._y * (_HEIGHT - _BOTTOM - _TOP - 6), 1)

    def add(self, part: str) -> None:
        self._parts.append(part)

    def label(self, x: float, y: float, text: str, anchor: str, *, kind: str = "tick") -> None:
        self.add(
            f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def line(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        path = " ".join(f"{self.x(x)},{self.y(y)}" for x, y in points)
        self.add(f'<polyline class="{kind}" points="{path}"/>')

    def bar(self, left: float, right: float, height: float, kind: str, told: str) -> None:
        x, y = self.x(left), self.y(height)
        wide, high = round(self.x(right) - x, 1), round(self.y(0) - y, 1)
        self.add(
            f'<rect class="{kind}" x="{x}" y="{y}" width="{max(wide, 0.5)}" height="{high}">'
            f"<title>{escape(told)}</title></rect>"
        )

    def done(self) -> str:
        return "".join([*self._parts, "</svg>"])


def _round_up(most: float) -> float:
    """Find the end of a scale whose quarters are round numbers."""
    if most <= 0:
        return 1.0
    size = 10.0 ** math.floor(math.log10(most / 4))
    return 4 * size * next(step for step in (1, 2, 2.5, 5, 10) if 4 * size * step >= most * 0.999)


def _number(value: float) -> str:
    return f"{round(value, 9):g}"


def reliability_plot(
    before: Sequence[Mapping[str, float]], after: Sequence[Mapping[str, float]], *, title: str
) -> str:
    """Draw how often what was said with a confidence came true, before and after calibration.

    Arguments are those of reliability_bins; the area of a dot is its share of the predictions.
    """
    frame = _Frame(title, x_most=1, y_most=1, x_name="said with a probability of", y_name="true")
    frame.line([(0, 0), (1, 1)], "ideal")
    for bins, kind in ((after, "after"), (before, "before")):
        total = sum(one["count"] for one in bins) or 1
        frame.line([(one["confidence"], one["right"]) for one in bins], f"curve {kind}")
        for one in bins:
            x, y = frame.x(one["confidence"]), frame.y(one["right"])
            radius = round(2.5 + 9 * (one["count"] / total) ** 0.5, 1)
            told = (
                f"{one['count']:,.0f} said with {100 * one['confidence']:.0f} %, true in "
                f"{100 * one['right']:.0f} %, {kind} calibration"
            )
            frame.add(
                f'<circle class="dot {kind}" cx="{x}" cy="{y}" r="{radius}">'
                f"<title>{told}</title></circle>"
            )
    return frame.done()


def coverage_plot(curve: Sequence[Mapping[str, float]]) -> str:
    """Draw how good the captions are that are left when the least sure are kept back."""
    most = max((one["ideal"] for one in curve), default=1)
    frame = _Frame(
        "Mean CIDEr-D of the best-scored share of the captions",
        x_most=100, y_most=most, x_name="% of the captions, the surest first", y_name="CIDEr-D",
    )  # fmt: skip
    frame.line([(100 * one["coverage"], one["ideal"]) for one in curve], "curve ideal")
    whole = curve[-1]["quality"] if curve else 0
    frame.line([(0, whole), (100, whole)], "chance")
    frame.line([(100 * one["coverage"], one["quality"]) for one in curve], "curve before")
    return frame.done()


def histogram(values: Sequence[float], *, title: str, name: str, bins: int | None = None) -> str:
    """Draw how often values occur: whole numbers one by one, or `bins` of equal width from 0."""
    most = max(values, default=0)
    width = (most / bins) if bins and most else 1.0
    count: dict[int, int] = {}
    for value in values:
        at = min(int(value / width), bins - 1) if bins else round(value)
        count[at] = count.get(at, 0) + 1
    frame = _Frame(
        title, x_most=(most if bins else most + 1), y_most=max(count.values(), default=1),
        x_name=name, y_name="captions",
    )  # fmt: skip
    for at, many in sorted(count.items()):
        left = at * width
        told = f"{many:,} captions: {left:.0f} to {left + width:.0f}" if bins else f"{many:,}: {at}"
        frame.bar(left + 0.06 * width, left + 0.94 * width, many, "bar", told)
    return frame.done()


def dots_plot(
    rows: Sequence[tuple[str, Sequence[tuple[str, float, float, float]]]],
    *,
    title: str,
    most: float,
    least: float = 0.0,
) -> str:
    """Draw values with their intervals, a line for each name.

    Args:
        rows: names, each with (kind, value, low, high); the kind is a class of the page's style.
        title: for those who cannot see it.
        most: the right end of the scale.
        least: its left end.

    """
    height = 34 * len(rows) + 34
    left = 20 + _LETTER * max(len(name) for name, _ in rows)
    step_size = _round_up(most - least) / 4
    least = step_size * math.floor(least / step_size)
    span = step_size * max(1, math.ceil((most - least) / step_size - 1e-9))

    def x(value: float) -> float:
        return round(left + (value - least) / span * _WIDTH * 0.94, 1)

    parts = [
        f'<svg class="plot wide" viewBox="0 0 {left + _WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}"><title>{escape(title)}</title>'
    ]
    for step in range(round(span / step_size) + 1):
        at = least + step * step_size
        parts.append(f'<line class="grid" x1="{x(at)}" x2="{x(at)}" y1="6" y2="{height - 24}"/>')
        told = f"{round(at, 9):g}"
        parts.append(
            f'<text class="tick" x="{x(at)}" y="{height - 8}" text-anchor="middle">{told}</text>'
        )
    for number, (name, dots) in enumerate(rows):
        y = 24 + 34 * number
        parts.append(
            f'<text class="name" x="{left - 12}" y="{y + 4}" text-anchor="end">{escape(name)}'
            "</text>"
        )
        for place, (kind, value, low, high) in enumerate(dots):
            at = y + (place - (len(dots) - 1) / 2) * 9
            parts.append(
                f'<line class="whisker {kind}" x1="{x(low)}" x2="{x(high)}" y1="{at}" y2="{at}"/>'
                f'<circle class="dot {kind}" cx="{x(value)}" cy="{at}" r="4.5">'
                f"<title>{escape(name)}: {value:.3g} [{low:.3g}, {high:.3g}]</title></circle>"
            )
    return "".join([*parts, "</svg>"])
