"""Numbers of a report, as a reader wants them: with their intervals, or with what went wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["SCORES", "Part", "main_scores", "part_of", "problem_of", "told_value"]

SCORES = ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L", "CIDEr", "METEOR")


class Part:
    """A part of a report: scores by name, each with an interval where there is one."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self._intervals = values.get("intervals") or {}

    def __contains__(self, name: str) -> bool:
        value = self.values.get(name)
        return isinstance(value, int | float) and math.isfinite(value)

    def __getitem__(self, name: str) -> float:
        return float(self.values[name])

    def interval(self, name: str) -> tuple[float, float]:
        """Give the ends of the interval; the value itself where there is none."""
        low, high = self._intervals.get(name) or (None, None)
        value = self[name]
        return (value if low is None else low), (value if high is None else high)

    def told(self, name: str, digits: int = 1) -> str:
        """Write `26.0 [23.6, 28.4]`, or a dash."""
        if name not in self:
            return "–"
        if self._intervals.get(name) is None:
            return told_value(self[name], digits)
        low, high = self.interval(name)
        return f"{self[name]:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def told_value(value: object, digits: int = 1) -> str:
    """Write a number, or a dash where there is none."""
    return f"{value:.{digits}f}" if isinstance(value, int | float) else "–"


def part_of(report: Mapping[str, Any], *names: str) -> Part | None:
    """Find a part by the names that lead to it; None where it is not there, or failed."""
    value: Any = report
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    if not isinstance(value, Mapping) or not value or ("error" in value and len(value) == 1):
        return None
    return Part(value)


def problem_of(report: Mapping[str, Any], name: str) -> str | None:
    """Say what went wrong with a part; None where nothing did."""
    value = report.get(name)
    error = value.get("error") if isinstance(value, Mapping) else None
    return str(error.get("detail", error)) if isinstance(error, Mapping) else None


def main_scores(report: Mapping[str, Any]) -> tuple[Part | None, Part | None]:
    """Find the scores of the model and of people: COCO's where they were asked for."""
    name = "nltk" if part_of(report, "pycocoevalcap") is None else "pycocoevalcap"
    return part_of(report, name), part_of(report, name, "human")
