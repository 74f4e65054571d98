"""The report of an evaluation, put together part by part."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from captioner.errors import CaptionerError
from captioner_training.evaluation.facts import describe_split
from captioner_training.evaluation.predictions import Target

__all__ = ["describe_data", "print_report"]


def describe_data(data: Path, split: Sequence[Target]) -> dict[str, object]:
    """Begin a report: what it is about."""
    return {"data": str(data), "images": len(split), "split": describe_split(split)}


def print_report(report: dict[str, object], parts: Mapping[str, Callable[[], object]]) -> int:
    """Add the parts and print the report; a part that fails is an error in its place.

    Returns:
        1 if a part failed, else 0.

    """
    failed = False
    for name, part in parts.items():
        try:
            report[name] = part()
        except CaptionerError as error:
            failed = True
            report[name] = {"error": error.record()}
            print(f"captioner: {name}: {error}", file=sys.stderr)
    print(json.dumps(report, indent=2))
    return 1 if failed else 0
