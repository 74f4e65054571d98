"""Where a report and predictions are to be written, looked at before torch is imported."""

from __future__ import annotations

import os
from pathlib import Path

from captioner.errors import OutputError

__all__ = ["check_file", "check_report_folder", "report_files"]


def report_files(folder: Path) -> list[Path]:
    """Name the files that a report consists of."""
    return [folder / f"report.{suffix}" for suffix in ("json", "md", "html")]


def check_report_folder(folder: Path) -> None:
    """Make the folder, and refuse one that cannot be written, before any work.

    Raises:
        OutputError: it cannot be made or written, or is a file.

    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"--report {folder} cannot be made: {error.strerror}") from error
    if not os.access(folder, os.W_OK):
        raise OutputError(f"--report {folder} cannot be written: choose another folder")


def check_file(predictions: Path) -> None:
    """Refuse a file of predictions that cannot be written.

    Raises:
        OutputError: its folder is not there or cannot be written, or it is a folder.

    """
    folder = predictions.parent
    if not folder.is_dir():
        raise OutputError(f"{predictions} cannot be written: there is no folder {folder}")
    if predictions.is_dir() or not os.access(folder, os.W_OK):
        raise OutputError(f"{predictions} cannot be written: choose another --predictions")
