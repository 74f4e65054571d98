"""Read a data set of any kind: list its images, find their files, and select them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from captioner.errors import DataError
from captioner.shared.paths import expanded
from captioner_training.prepare.columns import Columns
from captioner_training.prepare.files import ImageFiles
from captioner_training.prepare.folders import list_folder
from captioner_training.prepare.problems import Problems, valid_text
from captioner_training.prepare.selection import SourceData, select
from captioner_training.prepare.splits import Fractions, absolute, common_folder
from captioner_training.prepare.tables import list_tables


def read_source(
    kind: str,
    paths: Sequence[str],
    *,
    images: Sequence[str] = (),
    columns: Columns | None = None,
    fractions: Fractions | None = None,
) -> SourceData:
    """Read a data set, find its images and check everything.

    Args:
        kind: a kind of `captioner prepare` except coco.
        paths: a folder, or files, each as [SPLIT=]FILE.
        images: places of the images; empty: the folders of the files.
        columns: the columns of tables.
        fractions: the shares of val and test to draw; None: see select.

    Raises:
        ConfigError: columns are missing.
        DataError: a file or the images cannot be read.
    """
    problems, files = Problems(), list(map(_split_argument, paths))
    if kind == "folder":
        listed, folders = list_folder(paths, problems)
    else:
        listed, folders = list_tables(files, columns or Columns(), problems)
    if not listed and not problems:
        raise DataError(f"{', '.join(paths)}: no photos found")
    selected, splits = select(listed, ImageFiles(images or folders), problems, fractions=fractions)
    origin = common_folder([path for _, path in files]) if len(files) > 1 else absolute(files[0][1])
    source: dict[str, Any] = {"kind": kind, "path": valid_text(str(origin))}
    if len(paths) > 1:
        source = {"kind": kind, "files": [*map(valid_text, paths)]}
    if images:
        source["images"] = [*map(valid_text, images)]
    return SourceData(
        name=valid_text(origin.name if origin.is_dir() else origin.stem),
        images=selected,
        problems=problems,
        source={**source, "splits": splits},
    )


def _split_argument(argument: str) -> tuple[str, Path]:
    """Parse [SPLIT=]FILE. File names may contain an equals sign."""
    split, equals, name = argument.partition("=")
    if equals and split and "/" not in split and not expanded(argument).exists():
        return split, expanded(name)
    return "", expanded(argument)
