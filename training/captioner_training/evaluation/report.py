"""The report of an evaluation as data: its split, parts, rows per image, and comparisons."""

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
from captioner_training.report.numbers import missing_parts

_NOT_COMPARED = ("per_image", "comparisons", "comparison")  # the last one is from 0.1


@dataclass(frozen=True, kw_only=True)
class ImageRow:
    """The row of one image in a report. None: not measured.

    cider, rouge_l: in percent.
    score: mean log-probability of the caption.
    familiarity, trust: from 0 to 1.
    invented: COCO categories that the caption names and no reference names.
    cross_entropy: cross-entropy of the references in nats per token.
    reference_tokens: number of tokens of the references.
    others: the image's caption and its CIDEr in each report that this one is compared with.
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
        """Return the row in the form of report.json."""
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
    """Return the first part of a report: the split, and which scores are comparable.

    Args:
        data: the folder or file of the split.
        split: the images.
        name: name of the split; None if `data` is a file.
        corpus: the whole split, for CIDEr's document frequencies; None: `split`.
        scored: the number of images with a caption; None: all.
    """
    digest, whole = hash_split(split), split if corpus is None else corpus
    references = sum(len(target.references) for target in split)
    if scored is not None and scored < len(split):
        comparable = (
            f"Captions are missing for {len(split) - scored:,} of {len(split):,} images; do not "
            "compare these scores with others."
        )
    elif corpus is not None:
        comparable = (
            f"This is a part ({digest}) of a split of {len(corpus):,} images, whose document "
            "frequencies CIDEr uses. Compare only with scores of the same part and frequencies."
        )
    else:
        comparable = (
            f"Compare only with scores on the same images and references (split {digest}). If the "
            "images are part of a larger split, use --corpus."
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
    """Return a hash of the ids and references of a split, independent of their order."""
    lines = sorted(json.dumps([str(image.id), sorted(image.references)]) for image in images)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def measure_parts(
    report: dict[str, object], parts: Mapping[str, Callable[[], object]], *, model: str = ""
) -> bool:
    """Compute parts and add their results or errors to a report. Return whether one failed.

    `model` is named in the printed errors, if it is not the model of the main report.
    """
    failed = False
    for name, part in parts.items():
        try:
            report[name] = part()
        except CaptionerError as error:
            report[name] = {"error": error.record()}
        for failure, reason in missing_parts({name: report[name]}):
            failed = True
            place = f"{model}: {failure}" if model else failure
            print(f"captioner: {place}: {printable(reason)}", file=sys.stderr)
    return failed


def as_json(value: Any) -> Any:
    """Replace NaN and infinity, which JSON does not have, by None."""
    if isinstance(value, Mapping):
        return {key: as_json(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(element) for element in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_report(path: Path) -> dict[str, Any]:
    """Read the report.json of an evaluation.

    Raises DataError: the file cannot be read or has other content.
    """
    report = read_json(path, name=str(path))
    keys = {"split", "document_frequencies", "per_image"}
    if isinstance(report, dict) and keys <= report.keys():
        return report
    raise DataError(f"{path} is not a report.json of `captioner evaluate --report`")


def check_comparable(report: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Refuse reports whose scores cannot be compared.

    Raises DataError: captions are missing, or images, references or document frequencies differ.
    """
    split, other_split = report["split"], other["split"]
    for read in (report, other):
        if read.get("scored", read["split"]["images"]) < read["split"]["images"]:
            raise DataError(
                "the reports cannot be compared: captions of some images are missing; evaluate "
                "them on all images"
            )
    if split["hash"] != other_split["hash"]:
        raise DataError(
            f"the reports are of different splits, {split['hash']} and {other_split['hash']}: "
            "evaluate both on the same images and references"
        )
    ours, theirs = report["document_frequencies"], other["document_frequencies"]
    if ours["hash"] != theirs["hash"]:
        raise DataError(
            f"the reports use CIDEr document frequencies of {ours['images']:,} and of "
            f"{theirs['images']:,} images: evaluate both again, with the "
            "captions of the whole split as --corpus"
        )


def compare_reports(
    report: Mapping[str, Any], rows: Sequence[ImageRow], other: Mapping[str, Any]
) -> dict[str, object]:
    """Compare the scores of a report with those of another, image by image.

    Returns:
        `CIDEr`, `ROUGE-L`: mean difference over images.
        `cross_entropy`: difference in nats per token, if both reports measured it on the same
            vocabulary and tokens.
        `intervals`: the 95 % intervals of these differences.
        `with`: checkpoint or predictions file of the other report.
        `report`: the other report, without its rows and comparisons.

    Raises DataError: see check_comparable.
    """
    check_comparable(report, other)
    others = {str(row["id"]): row for row in other["per_image"]}
    pairs = [(row, others[str(row.id)]) for row in rows]
    tables = {
        "CIDEr": mean_table([row.cider - before["CIDEr"] for row, before in pairs]),
        "ROUGE-L": mean_table([row.rouge_l - before["ROUGE-L"] for row, before in pairs]),
    }
    if (cross_entropy := _compare_cross_entropy(report, pairs, other)) is not None:
        tables["cross_entropy"] = cross_entropy
    parts = {name: part for name, part in other.items() if name not in _NOT_COMPARED}
    source = other.get("checkpoint") or other.get("predictions")
    return {"with": source, **summary(tables), "report": parts}


def beside(rows: Sequence[ImageRow], other: Mapping[str, Any]) -> list[ImageRow]:
    """Add the captions of a comparable report to the rows."""
    others = {str(row["id"]): row for row in other["per_image"]}
    pairs = ((row, others[str(row.id)]) for row in rows)
    return [
        replace(row, others=(*row.others, (other["caption"], other["CIDEr"])))
        for row, other in pairs
    ]


def _compare_cross_entropy(
    report: Mapping[str, Any],
    pairs: Sequence[tuple[ImageRow, Mapping[str, Any]]],
    other: Mapping[str, Any],
) -> Table | None:
    """Return the table of differences in nats per token, or None if they are not comparable.

    They are comparable if both models truncate references at the same length and have the same
    vocabulary: a rare word costs more nats than <unk>.
    """
    ours, theirs = (part.get("calibration", {}).get("vocabulary_hash") for part in (report, other))
    if ours is None or ours != theirs:
        return None
    nats, tokens = [], []
    for row, before in pairs:
        count = row.reference_tokens
        if row.cross_entropy is None or count is None or count != before.get("reference_tokens"):
            return None
        nats.append(count * (row.cross_entropy - before["cross_entropy"]))
        tokens.append(count)
    return mean_table(nats, tokens)
