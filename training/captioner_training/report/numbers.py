"""Numbers of an evaluation report with their intervals, and its facts as text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from captioner_training.losses.cider import MIN_IMAGES

Report = Mapping[str, Any]

SCORES = ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L", "CIDEr", "METEOR")


class Part:
    """A part of a report: numbers by name, some with a 95 % interval."""

    def __init__(self, values: Report) -> None:
        self.values = values
        self._intervals = values.get("intervals") or {}

    def __contains__(self, name: str) -> bool:
        value = self.values.get(name)
        return isinstance(value, int | float) and math.isfinite(value)

    def __getitem__(self, name: str) -> float:
        return float(self.values[name])

    def interval(self, name: str) -> tuple[float, float]:
        """Return the ends of a number's interval, or the number twice if it has no interval."""
        low, high = self._intervals.get(name) or (None, None)
        value = self[name]
        return (value if low is None else low), (value if high is None else high)

    def text(self, name: str, digits: int = 1) -> str:
        """Format a number as `26.0 [23.6, 28.4]`; if it is missing, return a dash."""
        if name not in self:
            return "–"
        if None in (self._intervals.get(name) or (None,)):
            return number(self[name], digits)
        low, high = self.interval(name)
        return f"{self[name]:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def number(value: object, digits: int = 1) -> str:
    """Format a number, or a dash for anything else."""
    return f"{value:.{digits}f}" if isinstance(value, int | float) else "–"


def part_of(report: Report, *names: str) -> Part | None:
    """Return the part at a path of names, or None if it is absent or failed."""
    value: Any = report
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    if not isinstance(value, Mapping) or not value or value.keys() == {"error"}:
        return None
    return Part(value)


def missing_parts(report: Report) -> Iterator[tuple[str, str]]:
    """Yield the name and the error of each part that failed, and of parts inside them."""
    for name, value in report.items():
        if not isinstance(value, Mapping) or name == "report":  # that of a compared model
            continue
        if isinstance(error := value.get("error"), Mapping):
            yield name, str(error.get("detail", error))
        else:
            yield from missing_parts(value)


def main_scores(report: Report) -> tuple[Part | None, Part | None]:
    """Return the scores of the model and of people, on COCO's tokens if those were measured."""
    name = "nltk" if part_of(report, "pycocoevalcap") is None else "pycocoevalcap"
    parts = part_of(report, name), part_of(report, name, "human")
    if has_cider(report):
        return parts
    model, people = (
        part and Part({key: value for key, value in part.values.items() if key != "CIDEr"})
        for part in parts
    )
    return model, people


def has_cider(report: Report) -> bool:
    """Whether there are enough images for CIDEr's document frequencies."""
    frequencies = report.get("document_frequencies") or {}
    return int(frequencies.get("images", MIN_IMAGES)) >= MIN_IMAGES


def title(report: Report) -> tuple[str, str]:
    """Return the heading of a report and a sentence below it."""
    name = Path(str(report["data"])).stem or str(report["data"])
    split, checkpoint = report["split"], report.get("checkpoint")
    if checkpoint:
        author = f"{checkpoint['name']} (version {checkpoint['version']})"
    else:
        author = Path(str(report["predictions"])).name
    count = report.get("scored", split["images"])
    return (
        f"Captions of {name}",
        f"{author} on {count:,} photos with {split['references']:,} reference captions.",
    )


def circumstances(report: Report) -> Iterator[tuple[str, str]]:
    """Yield the settings that decide the scores."""
    split, checkpoint = report["split"], report.get("checkpoint")
    yield "data", str(report["data"])
    yield "split", f"{split['images']:,} images, {split['references']:,} references"
    yield "split hash", str(split["hash"])
    for name, whose in (("pycocoevalcap", "COCO"), ("nltk", "without Java")):
        if tokens := report.get(name, {}).get("tokenizer"):
            yield f"tokens ({whose})", str(tokens)
    frequencies = report["document_frequencies"]
    yield (
        "CIDEr document frequencies",
        f"{frequencies['images']:,} images, hash {frequencies['hash']}",
    )
    if not checkpoint:
        yield "captions", str(report["predictions"])
        return
    yield "checkpoint", f"{checkpoint['name']}, version {checkpoint['version']}"
    yield "checkpoint hash", str(checkpoint["hash"])
    yield "beam size", str(report["beam_size"])
    if "consensus" in report:  # older reports have none
        yield "sentence chosen by", "consensus" if report["consensus"] else "likelihood"
    if "style" in report:
        yield "style", str(report["style"])
    yield "dtype", str(report["dtype"])
