"""The report of an evaluation: what it is about, its parts, its images, and another beside it."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from captioner.errors import CaptionerError, DataError
from captioner.tables import read_json
from captioner.terminal import printable
from captioner_training.evaluation.bootstrap import Table, mean_table, summary
from captioner_training.evaluation.predictions import Target

__all__ = [
    "ImageRow",
    "as_json",
    "beside",
    "check_comparable",
    "compare_reports",
    "describe_data",
    "hash_split",
    "measure_parts",
    "read_report",
]

_OF_ITS_OWN = ("per_image", "comparisons", "comparison")  # the last of version 0.1


@dataclass(frozen=True, kw_only=True)
class ImageRow:
    """What a report says of one image.

    cider, rouge_l: in percent; score: mean log-probability, None for captions made elsewhere;
    familiarity, trust: in 0..1, None where they are not known; invented: categories that the
    caption names and no reference does; cross_entropy: of the references, in nats a token, and how
    many tokens they have, None where nobody asked; others: the caption and its cider in each of the
    reports that this one is compared with.
    """

    id: int | str
    name: str
    caption: str
    references: tuple[str, ...]
    cider: float
    rouge_l: float
    score: float | None = None
    familiarity: float | None = None
    trust: float | None = None
    invented: tuple[str, ...] = ()
    cross_entropy: float | None = None
    reference_tokens: int | None = None
    others: tuple[tuple[str, float], ...] = ()

    def record(self) -> dict[str, Any]:
        """Give the row as JSON has it."""
        values = {key: value for key, value in asdict(self).items() if value is not None}
        others = [{"caption": caption, "CIDEr": cider} for caption, cider in values.pop("others")]
        values |= {"others": others} if others else {}
        values["CIDEr"], values["ROUGE-L"] = values.pop("cider"), values.pop("rouge_l")
        return values


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
    digest, whole = hash_split(split), split if corpus is None else corpus
    references = sum(len(one.references) for one in split)
    if scored is not None and scored < len(split):
        comparable = (
            f"Captions are missing for {len(split) - scored:,} of {len(split):,} images; do not "
            "compare these scores with others."
        )
    elif corpus is not None:
        comparable = (
            f"This is a part ({digest}) of a split of {len(corpus):,} images, with CIDEr's "
            "document frequencies of the whole. Compare only with scores of the same part and "
            "frequencies."
        )
    else:
        comparable = (
            f"Compare only with scores on the split {digest}: the same images and references. If "
            "they are part of a larger split, --corpus gives CIDEr the document frequencies of the "
            "whole."
        )
    return {
        "data": str(data),
        "images": len(split),
        "split": {
            **({} if name is None else {"name": name}),
            "images": len(split),
            "references": references,
            "hash": digest,
        },
        "document_frequencies": {"images": len(whole), "hash": hash_split(whole)},
        "comparable": comparable,
    }


def hash_split(images: Sequence[Target]) -> str:
    """Digest the ids and references of a split, whatever its order: equal hash, equal split."""
    lines = sorted(json.dumps([str(one.id), sorted(one.references)]) for one in images)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def measure_parts(report: dict[str, object], parts: Mapping[str, Callable[[], object]]) -> bool:
    """Add the parts to a report; one that fails is an error there. Returns whether one did."""
    failed = False
    for name, part in parts.items():
        try:
            report[name] = part()
        except CaptionerError as error:
            failed = True
            report[name] = {"error": error.record()}
            print(f"captioner: {name}: {printable(str(error))}", file=sys.stderr)
    return failed


def as_json(value: Any) -> Any:
    """Give a report as JSON has it, which knows neither nan nor infinity: they become null."""
    if isinstance(value, Mapping):
        return {key: as_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_report(path: Path) -> dict[str, Any]:
    """Read a report.json that `--report` wrote.

    Raises DataError: it cannot be read, or is none.
    """
    report = read_json(path, name=str(path))
    keys = {"split", "document_frequencies", "per_image"}
    if isinstance(report, dict) and keys <= report.keys():
        return report
    raise DataError(f"{path} is no report.json that `captioner evaluate --report` wrote")


def check_comparable(report: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Refuse reports whose scores cannot be compared, by what they say of their data.

    Raises DataError: they are of different images or references, of captions that are not all
    there, or count CIDEr with different document frequencies.
    """
    for one in (report, other):
        if one.get("scored", one["split"]["images"]) < one["split"]["images"]:
            raise DataError(
                "a report in which captions are missing cannot be compared: it is no score of the "
                "split"
            )
    if report["split"]["hash"] != other["split"]["hash"]:
        raise DataError(
            f"the reports are of different splits, {report['split']['hash']} and "
            f"{other['split']['hash']}: only scores of the same images and references can be "
            "compared"
        )
    mine, theirs = (one["document_frequencies"] for one in (report, other))
    if mine["hash"] != theirs["hash"]:
        raise DataError(
            f"CIDEr has the document frequencies of {mine['images']:,} images here and of "
            f"{theirs['images']:,} there: name the captions of the whole split with --corpus for "
            "both"
        )


def compare_reports(
    report: Mapping[str, Any], rows: Sequence[ImageRow], other: Mapping[str, Any]
) -> dict[str, object]:
    """Subtract the scores of another report from those of this one.

    Returns:
        `CIDEr` and `ROUGE-L` (on tokens that need no Java): the mean over images of the
        differences, with `intervals` of a bootstrap over the images, the same in both reports;
        `cross_entropy` of the references, in nats a token, where both have it of the same words
        and tokens; `with`, what the other report is of; and `report`, its parts.

    Raises DataError: as for check_comparable.
    """
    check_comparable(report, other)
    others = {str(one["id"]): one for one in other["per_image"]}
    pairs = [(row, others[str(row.id)]) for row in rows]
    tables = {
        "CIDEr": mean_table([row.cider - before["CIDEr"] for row, before in pairs]),
        "ROUGE-L": mean_table([row.rouge_l - before["ROUGE-L"] for row, before in pairs]),
    }
    if (surprise := _surprise(report, pairs, other)) is not None:
        tables["cross_entropy"] = surprise
    parts = {name: part for name, part in other.items() if name not in _OF_ITS_OWN}
    source = other.get("checkpoint") or other.get("predictions")
    return {"with": source, **summary(tables), "report": parts}


def beside(rows: Sequence[ImageRow], other: Mapping[str, Any]) -> list[ImageRow]:
    """Put the captions of a report that can be compared beside those of this one."""
    others = {str(row["id"]): row for row in other["per_image"]}
    pairs = ((row, others[str(row.id)]) for row in rows)
    return [
        replace(row, others=(*row.others, (other["caption"], other["CIDEr"])))
        for row, other in pairs
    ]


def _surprise(
    report: Mapping[str, Any],
    pairs: Sequence[tuple[ImageRow, Mapping[str, Any]]],
    other: Mapping[str, Any],
) -> Table | None:
    """Compare the surprise by the references, in nats a token; None where it cannot be.

    So it is where the models know different words, for a rare one is harder to foresee than <unk>
    is; and where they read references to different lengths.
    """
    mine, theirs = (one.get("calibration", {}).get("vocabulary_hash") for one in (report, other))
    if mine is None or mine != theirs:
        return None
    nats, tokens = [], []
    for row, before in pairs:
        count = row.reference_tokens
        if row.cross_entropy is None or count is None or count != before.get("reference_tokens"):
            return None
        nats.append(count * (row.cross_entropy - before["cross_entropy"]))
        tokens.append(count)
    return mean_table(nats, tokens)
