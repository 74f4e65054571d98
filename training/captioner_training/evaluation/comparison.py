"""Two reports side by side, where that is allowed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from captioner.errors import DataError
from captioner_training.evaluation.bootstrap import Table, estimate, mean_table, with_intervals
from captioner_training.evaluation.image_row import ImageRow

__all__ = ["check_comparable", "compare_reports", "read_report"]


def read_report(path: Path) -> dict[str, Any]:
    """Read a report.json that `--report` wrote.

    Raises:
        DataError: it cannot be read, or is none.

    """
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    wanted = ("split", "document_frequencies", "per_image")
    if not isinstance(report, dict) or any(name not in report for name in wanted):
        raise DataError(f"{path} is no report.json that `captioner evaluate --report` wrote")
    found: dict[str, Any] = report
    return found


def check_comparable(report: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Refuse reports whose scores cannot be compared, by what they say of their data.

    Raises:
        DataError: they are of different images or references, of captions that are not all there,
            or count CIDEr with different document frequencies.

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
    mine, theirs = (one["document_frequencies"]["hash"] for one in (report, other))
    if mine != theirs:
        raise DataError(
            f"CIDEr has the document frequencies of {report['document_frequencies']['images']:,} "
            f"images here and of {other['document_frequencies']['images']:,} there: name the "
            "captions of the whole split with --corpus for both"
        )


def compare_reports(
    report: Mapping[str, Any], rows: Sequence[ImageRow], other: Mapping[str, Any]
) -> dict[str, object]:
    """Subtract the scores of another report from those of this one.

    Returns:
        `CIDEr` and `ROUGE-L` (on tokens that need no Java): the mean over images of the
        differences, with `intervals` of a bootstrap over the images, the same in both reports;
        `cross_entropy` of the references, in nats a token, where both have it of the same words
        and tokens; and `with`, what the other report is of.

    Raises:
        DataError: as for check_comparable.

    """
    check_comparable(report, other)
    before = {str(one["id"]): one for one in other["per_image"]}
    tables = {
        name: mean_table([value - before[str(row.id)][name] for row, value in pairs])
        for name, pairs in (
            ("CIDEr", [(row, row.cider) for row in rows]),
            ("ROUGE-L", [(row, row.rouge_l) for row in rows]),
        )
    }
    if _same_words(report, other) and (surprise := _cross_entropy(rows, before)) is not None:
        tables["cross_entropy"] = surprise
    return {
        "with": other.get("checkpoint") or other.get("predictions"),
        **with_intervals(estimate(tables)),
    }


def _same_words(report: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Say whether both knew the same words: a rare one is harder to foresee than <unk> is."""
    known = [one.get("calibration", {}).get("vocabulary_hash") for one in (report, other)]
    return known[0] is not None and known[0] == known[1]


def _cross_entropy(rows: Sequence[ImageRow], before: Mapping[str, Any]) -> Table | None:
    """Compare the surprise by the references, in nats a token; None where they read other tokens.

    So they do where references are read to another length.
    """
    nats, tokens = [], []
    for row in rows:
        theirs = before[str(row.id)]
        if (
            row.cross_entropy is None
            or row.reference_tokens is None
            or row.reference_tokens != theirs.get("reference_tokens")
        ):
            return None
        nats.append(row.reference_tokens * (row.cross_entropy - theirs["cross_entropy"]))
        tokens.append(row.reference_tokens)
    return mean_table(nats, tokens)
