"""The report of an evaluation, put together part by part."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from captioner.errors import CaptionerError
from captioner.terminal import printable
from captioner_training.evaluation.facts import describe_split, hash_split
from captioner_training.evaluation.plain import as_json
from captioner_training.evaluation.predictions import Target

__all__ = ["describe_data", "measure_parts", "print_report"]


def describe_data(
    data: Path,
    split: Sequence[Target],
    *,
    name: str | None,
    corpus: Sequence[Target] | None = None,
    scored: int | None = None,
) -> dict[str, object]:
    """Begin a report: what it is about, and what its scores may be compared with.

    Args:
        data: where the split is.
        split: the images.
        name: of the split; None where `data` is a file of one.
        corpus: the images of the whole split, whose references CIDEr's document frequencies come
            from; None: they are those of `split`.
        scored: how many have a caption; None: all.

    """
    told = ({} if name is None else {"name": name}) | describe_split(split)
    whole = split if corpus is None else corpus
    return {
        "data": str(data),
        "images": len(split),
        "split": told,
        "document_frequencies": {"images": len(whole), "hash": hash_split(whole)},
        "comparable": _comparable(str(told["hash"]), split, corpus, scored),
    }


def _comparable(
    name: str, split: Sequence[Target], corpus: Sequence[Target] | None, scored: int | None
) -> str:
    if scored is not None and scored < len(split):
        return (
            f"Captions are missing for {len(split) - scored:,} of {len(split):,} images: these are "
            "no scores of the split, and nothing may be compared with them."
        )
    if corpus is not None:
        return (
            f"This is a part, {name}, of a split of {len(corpus):,} images, with CIDEr's document "
            "frequencies of the whole: to be compared with scores of the same part, counted alike."
        )
    return (
        f"To be compared with scores on the split {name} alone, the same images and references. "
        "Where these images are a part of a larger split, their CIDEr is none of the whole, whose "
        "document frequencies --corpus would give."
    )


def measure_parts(report: dict[str, object], parts: Mapping[str, Callable[[], object]]) -> int:
    """Add the parts to a report; a part that fails is an error in its place.

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
            print(f"captioner: {name}: {printable(str(error))}", file=sys.stderr)
    return 1 if failed else 0


def print_report(report: Mapping[str, object]) -> None:
    """Print a report for programs."""
    print(json.dumps(as_json(report), indent=2))
