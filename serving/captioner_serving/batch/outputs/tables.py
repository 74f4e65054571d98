"""Records as CSV, Parquet and COCO results, each written when a run has ended.

Each is written to a file of its own first, which takes the output's name when it is whole.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from captioner.errors import ConfigError, MissingExtraError, OutputError
from captioner.terminal import json_line
from captioner_serving.batch.cells import COLUMNS, FORMULAS, cell_of

__all__ = ["check_output", "write_records"]

Record = dict[str, Any]

_ROWS = 10_000  # of Parquet written together


def check_output(output: str) -> None:
    """Refuse before the work what cannot be written after it.

    Raises:
        ConfigError: no such format.
        MissingExtraError: Parquet, without its extra.
        OutputError: there is no such folder.

    """
    path = Path(output)
    if path.suffix not in _WRITERS:
        formats = ", ".join(_WRITERS)
        raise ConfigError(f"output {output!r} is none of {formats}, nor - for standard output")
    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise MissingExtraError(f"writing {output}", "parquet")
    if path.is_dir() or not path.absolute().parent.is_dir():
        kind = "is a folder" if path.is_dir() else f"has no folder {path.absolute().parent}"
        raise OutputError(f"{output} cannot be written: it {kind}")


def write_records(
    file: BinaryIO, suffix: str, records: Iterator[Record], *, keep_formulas: bool = False
) -> None:
    """Write records in the format of a suffix that check_output has seen.

    Args:
        file: has a name; the bytes are in the file of that name afterwards.
        suffix: .jsonl, .csv, .parquet or .json.
        records: of captioned photos.
        keep_formulas: leave CSV cells as they are: formulas, and what would steer a terminal.

    Raises:
        OutputError: two photos have one COCO id.
        OSError: the disk is full, or the like.

    """
    if suffix == ".csv":
        _write_csv(Path(file.name), records, keep_formulas=keep_formulas)
    else:
        _WRITERS[suffix](Path(file.name), records)


def _row(record: Record) -> Record:
    return {
        "image": record["image"],
        "caption": record["caption"],
        "score": record["score"],
        "alternatives": [other["caption"] for other in record["alternatives"]],
        "model": f"{record['model']['name']} {record['model']['version']}",
        "familiarity": record.get("familiarity"),
    }


def _write_csv(path: Path, records: Iterator[Record], *, keep_formulas: bool = False) -> None:
    """A row a photo; alternatives in a cell, one a line. Odd bytes of a name stay as they are.

    What a spreadsheet would run as a formula gets an apostrophe in front, and control characters of
    a name are written out; see captioner_serving.batch.cells.
    """
    columns = [*COLUMNS, "familiarity", *([FORMULAS] if keep_formulas else [])]
    with path.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        for record in records:
            row = _row(record)
            row["alternatives"] = "\n".join(row["alternatives"])
            if keep_formulas:
                row[FORMULAS] = "kept"
            else:
                row = {key: cell_of(v) if isinstance(v, str) else v for key, v in row.items()}
            writer.writerow(row)


def _write_parquet(path: Path, records: Iterator[Record]) -> None:
    """Arrow's text is UTF-8: bytes of a name that are not stand as a backslash, x, two digits."""
    import pyarrow
    from pyarrow import parquet

    schema = pyarrow.schema(
        [
            ("image", pyarrow.string()),
            ("caption", pyarrow.string()),
            ("score", pyarrow.float32()),
            ("alternatives", pyarrow.list_(pyarrow.string())),
            ("model", pyarrow.string()),
            ("familiarity", pyarrow.float32()),
        ]
    )
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        rows = map(_row, records)
        while part := list(islice(rows, _ROWS)):
            for row in part:
                name = row["image"].encode("utf-8", "surrogateescape")
                row["image"] = name.decode("utf-8", "backslashreplace")
            writer.write_table(pyarrow.Table.from_pylist(part, schema=schema))


def _write_coco(path: Path, records: Iterator[Record]) -> None:
    """COCO's results format; the id is the number that a COCO file name ends with, or its stem."""
    with path.open("w", encoding="utf-8") as file:
        file.write("[")
        known: dict[int | str, str] = {}
        for number, record in enumerate(records):
            name, identity = record["image"], _coco_id(record["image"])
            if (other := known.setdefault(identity, name)) != name:
                raise OutputError(
                    f"{other} and {name} would both have the COCO id {identity!r}: rename one, or "
                    "write .jsonl, .csv or .parquet"
                )
            result = {"image_id": identity, "caption": record["caption"]}
            file.write((",\n" if number else "\n") + json_line(result))
        file.write("\n]\n")


def _write_lines(path: Path, records: Iterator[Record]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json_line(record) + "\n" for record in records)


def _coco_id(image: str) -> int | str:
    stem = Path(image).stem
    number = re.search(r"(?:^|_)([0-9]{1,18})$", stem)  # COCO_val2014_000000391895
    return int(number[1]) if number else stem


_WRITERS: dict[str, Callable[[Path, Iterator[Record]], None]] = {
    ".jsonl": _write_lines,
    ".csv": _write_csv,
    ".parquet": _write_parquet,
    ".json": _write_coco,
}
