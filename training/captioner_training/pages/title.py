"""What a report is about: its title, what a reader must not do with it, how it was made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["made_how", "notes", "title"]

Report = Mapping[str, Any]


def title(report: Report) -> tuple[str, str]:
    """Say what was captioned, by whom: a heading, and a sentence."""
    name = Path(str(report["data"])).stem or str(report["data"])
    split = report["split"]
    checkpoint = report.get("checkpoint")
    if checkpoint:
        by = f"{checkpoint['name']} (version {checkpoint['version']})"
    else:
        by = Path(str(report["predictions"])).name
    many = report.get("scored", split["images"])
    return (
        f"Captions of {name}",
        f"{by} on {many:,} photos, for which people wrote {split['references']:,} captions.",
    )


def notes(report: Report) -> Iterator[str]:
    """Say what these scores may not be compared with, and what is wrong with the predictions."""
    yield str(report["comparable"])
    yield from (str(problem) for problem in report.get("problems", ()))


def made_how(report: Report) -> Iterator[tuple[str, str]]:
    """List what decides the scores."""
    split, checkpoint = report["split"], report.get("checkpoint")
    yield "data", str(report["data"])
    yield "split", f"{split['images']:,} images, {split['references']:,} references"
    yield "hash of the split", str(split["hash"])
    for name, part in (("pycocoevalcap", "COCO's"), ("nltk", "without Java")):
        tokens = report.get(name, {}).get("tokenizer")
        if tokens:
            yield f"tokens, {part}", str(tokens)
    frequencies = report["document_frequencies"]
    yield (
        "CIDEr's document frequencies",
        f"of {frequencies['images']:,} images, hash {frequencies['hash']}",
    )
    if checkpoint:
        yield "checkpoint", f"{checkpoint['name']}, version {checkpoint['version']}"
        yield "hash of the checkpoint", str(checkpoint["hash"])
        yield "beam size", str(report["beam_size"])
        if "style" in report:
            yield "style of the captions", str(report["style"])
        yield "arithmetic", str(report["dtype"])
    else:
        yield "captions", str(report["predictions"])
