"""JSON that is nested deeper than Python can read is refused as any other that is none."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from captioner.errors import DataError
from captioner.vision.transform import Transform, TransformConfig
from captioner_training.evaluation.boxes import read_boxes
from captioner_training.evaluation.predictions import read_predictions
from captioner_training.evaluation.report import read_report
from captioner_training.prepare.coco import _karpathy_splits
from captioner_training.prepare.listing import Problems
from captioner_training.prepare.tables import Columns, read_table
from captioner_training.prepare.texts import read_json

DEEP = "[" * 100_000


def archive(path: Path) -> dict[int, str]:
    packed = path.with_suffix(".zip")
    with zipfile.ZipFile(packed, "w") as file:
        file.write(path, "dataset_coco.json")
    return _karpathy_splits(packed)


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda path: read_json(path, Problems()), "is not JSON"),
        (lambda path: read_boxes(path, Transform(TransformConfig())), "is not JSON"),
        (read_report, "cannot be read"),
        (lambda path: read_predictions(path, []), "neither a JSON list"),
        (lambda path: read_table(path, "jsonl", Columns(), Problems()), "has no JSON objects"),
        (archive, "dataset_coco.json in .* cannot be read"),
    ],
)
def test_files_are_refused(tmp_path: Path, read: Callable[[Path], Any], message: str) -> None:
    path = tmp_path / "deep.json"
    path.write_text(DEEP)
    with pytest.raises(DataError, match=message):
        read(path)


def test_a_cell_of_a_table_is_a_caption(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(f"image,caption\n1.jpg,{DEEP}\n")
    assert read_table(path, "csv", Columns(), Problems())[0].captions == (DEEP,)
