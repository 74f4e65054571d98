"""Writes a report into a folder: report.json, report.md and report.html."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from captioner.files import replace_file
from captioner_training.evaluation.image_row import ImageRow
from captioner_training.evaluation.plain import as_json
from captioner_training.pages.gallery import Gallery
from captioner_training.pages.markdown import write_markdown
from captioner_training.pages.page import draw_page

__all__ = ["write_report"]


def write_report(
    folder: Path, report: Mapping[str, Any], rows: Sequence[ImageRow], gallery: Gallery
) -> None:
    """Write the three files; the JSON has the images one by one, as `per_image`.

    Raises:
        OutputError: a file cannot be written.

    """
    whole = {**report, "per_image": [row.record() for row in rows]}
    texts = {
        "report.json": json.dumps(as_json(whole), indent=1) + "\n",
        "report.md": write_markdown(report, rows),
        "report.html": draw_page(report, rows, gallery),
    }
    for name, text in texts.items():
        with replace_file(folder / name) as file:
            file.write(text.encode(errors="backslashreplace"))  # a name need not be text
