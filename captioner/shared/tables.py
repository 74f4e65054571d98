"""Read text files and tables in common encodings and formats.

Text: UTF-8; UTF-16 and UTF-32 with a byte order mark; Windows-1252. Tables: cells separated by
commas, semicolons, tabs or bars; JSON Lines or a JSON list; workbooks (.xlsx, .xls, .ods); Parquet.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from captioner.errors import DataError, MissingExtraError
from captioner.shared.paths import there_is_no

if TYPE_CHECKING:
    from pandas import DataFrame

Content = bytes | bytearray | memoryview
Source = str | os.PathLike[str] | Content
"""A path, or the content of a file."""

WORKBOOKS = (".xlsx", ".xlsm", ".xls", ".ods")
JSON_TABLES = (".jsonl", ".ndjson", ".json")
TABLES = (".csv", ".tsv", *JSON_TABLES, *WORKBOOKS, ".parquet")
"""Suffixes that always mean a table; a `.txt` file may be a table too."""

_MARKS = {  # UTF-32 first, because its mark begins with the mark of UTF-16
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_SEPARATORS = (",", ";", "\t", "|")
_SEPARATOR_LINE = re.compile(r"sep=(.)\r?\n?", re.IGNORECASE)  # an optional first line, for Excel
_FILE_NAME = re.compile(r".*\S\.\w{2,5}")
_SAMPLE_LINES = 50
_LARGEST_CELL = 2**31 - 1  # the largest limit on all systems
_CSV_LIMIT = threading.Lock()


def read_bytes(source: Source, *, name: str) -> bytes:
    """Return the content of a source, called `name` in errors. Raises DataError."""
    if isinstance(source, Content):
        return bytes(source)
    try:
        return Path(source).read_bytes()
    except FileNotFoundError as error:
        raise DataError(there_is_no("file", Path(source))) from error
    except IsADirectoryError as error:
        raise DataError(f"{name} is a folder: name the file in it") from error
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror}") from error


def decode_text(data: bytes, *, name: str) -> tuple[str, str]:
    """Decode text; return the text and its encoding.

    The encoding "cp1252" is a guess, because almost all bytes are valid in it. Raises DataError for
    binary data.
    """
    marked = next((encoding for mark, encoding in _MARKS.items() if data.startswith(mark)), None)
    for encoding in (marked,) if marked else ("utf-8", "cp1252"):
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        if "\0" not in text:
            return text, encoding
    raise DataError(f"{name} is not a text file: save it as UTF-8")


def read_text(source: Source, *, name: str) -> str:
    """Read a text file. Raises DataError."""
    return decode_text(read_bytes(source, name=name), name=name)[0]


def read_lines(source: Source, *, name: str) -> list[str]:
    """Read the lines of a text file, without line ends and empty lines. Raises DataError."""
    return split_lines(read_text(source, name=name))


def split_lines(text: str) -> list[str]:
    """Split a text at LF, CRLF and CR only; leave out empty lines."""
    return [line for line in re.split(r"\r\n|\n|\r", text) if line]


class Row(NamedTuple):
    """A row of a sheet: its number, from 1, and its cells."""

    number: int
    cells: list[str]


class Sheet(NamedTuple):
    """The rows of a text table or workbook, without blank rows."""

    rows: list[Row]
    unit: str  # what a row is called in messages: "line" or "row"
    separator: str  # between cells; "" in a workbook

    def fit(self, cells: Sequence[str], width: int) -> list[str]:
        """Cut or extend a row to `width` cells.

        In a text table surplus cells are joined to the last one, because a caption in the last
        column may contain commas without quotation marks.
        """
        cells = list(cells)
        while len(cells) > width and not cells[-1].strip():
            cells.pop()
        if len(cells) > width and self.separator:
            cells[width - 1 :] = [self.separator.join(cells[width - 1 :])]
        return [cell.strip() for cell in (*cells[:width], *[""] * (width - len(cells)))]


def read_sheet(source: Source, *, name: str) -> Sheet:
    """Read a text table, or the first sheet of a workbook, without interpreting a header.

    The suffix of `name` selects the format. Raises DataError, and MissingExtraError for a workbook
    without python-calamine.
    """
    data = read_bytes(source, name=name)
    if PurePath(name).suffix.lower() in WORKBOOKS:
        rows = [Row(number, cells) for number, cells in enumerate(_workbook(data, name), 1)]
        return Sheet([row for row in rows if any(map(str.strip, row.cells))], "row", "")
    text, _ = decode_text(data, name=name)
    if line := _SEPARATOR_LINE.match(text):
        text, separator, unit = text[line.end() :], line[1], "row"
    else:
        separator, unit = _detect_separator(text), "line"
    with _CSV_LIMIT:  # the limit of the csv module is global
        limit = csv.field_size_limit(_LARGEST_CELL)
        try:
            return Sheet(list(_rows(text, separator)), unit, separator)
        except csv.Error as error:
            raise DataError(f"{name} cannot be read as a table: {error}") from error
        finally:
            csv.field_size_limit(limit)


def _rows(text: str, separator: str) -> Iterator[Row]:
    # Some programs write a space before a quotation mark.
    style: dict[str, Any] = {
        "delimiter": separator,
        "skipinitialspace": f'{separator} "' in text,
    }
    lines = io.StringIO(text, newline="").readlines()
    reader = csv.reader(lines, **style)
    first = 1
    for cells in reader:
        if reader.line_num > first:
            _check_quotes(lines[first - 1 : reader.line_num], first, style)
        if any(map(str.strip, cells)):
            yield Row(first, cells)
        first = reader.line_num + 1


def _check_quotes(lines: Sequence[str], first: int, style: Mapping[str, Any]) -> None:
    """Raise csv.Error if a row of several lines has a quotation mark that is not closed."""
    try:
        for _ in csv.reader(lines, strict=True, **style):
            pass
    except csv.Error as error:
        raise csv.Error(
            f"line {first} has a quotation mark that is not closed; close it, and write two "
            "quotation marks for one inside quoted text"
        ) from error


def _detect_separator(text: str) -> str:
    """Choose the separator that gives the most rows with a file name.

    In a tie, the number of rows with equally many cells decides. csv.Sniffer is not
    used, because it would choose the commas in sentences.
    """
    head = text[: 1 << 20].splitlines()
    lines = [line for line in head if line.strip()][:_SAMPLE_LINES]

    def fitness(separator: str) -> tuple[int, int, int]:
        rows = [[cell.strip(' "') for cell in line.split(separator)] for line in lines]
        wide = [cells for cells in rows if len(cells) > 1]
        files = sum(any(map(_FILE_NAME.fullmatch, cells)) for cells in wide)
        width, count = Counter(map(len, wide)).most_common(1)[0] if wide else (0, 0)
        return files, count, width

    return max(_SEPARATORS, key=fitness)


def _workbook(data: bytes, name: str) -> list[list[str]]:
    try:
        import python_calamine  # noqa: F401 - pandas imports it
    except ImportError as error:
        raise MissingExtraError(f"reading {name} (or export it as CSV)", "xlsx") from error
    from pandas import read_excel

    try:
        frame = read_excel(
            io.BytesIO(data), header=None, dtype=str, na_filter=False, engine="calamine"
        )
    except Exception as error:  # a damaged workbook can raise almost anything
        raise DataError(
            f"{name} cannot be read as a workbook ({error}): export it as CSV"
        ) from error
    return [["" if cell is None else str(cell) for cell in row] for row in frame.to_numpy()]


def read_json(source: Source, *, name: str) -> Any:
    """Read a JSON file. Raises DataError: the file cannot be read, or is not JSON."""
    try:
        return json.loads(read_text(source, name=name))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name} is not JSON: {error}") from error


def read_json_rows(
    source: Source, *, name: str, report: Callable[[int], None] | None = None
) -> list[tuple[int, Any]]:
    """Return the values of JSON Lines or of a JSON list, numbered from 1. Raises DataError.

    `report` receives the number of each line that is not JSON; if it is None, they are errors.
    """
    text = read_text(source, name=name)
    try:
        whole = json.loads(text)
        return list(enumerate(whole if isinstance(whole, list) else [whole], 1))
    except (ValueError, RecursionError) as error:
        fault: Exception = error
    rows: list[tuple[int, Any]] = []
    damaged: list[tuple[int, Exception]] = []
    for number, line in enumerate(text.split("\n"), 1):  # strings may contain other line ends
        try:
            if line.strip():
                rows.append((number, json.loads(line)))
        except (ValueError, RecursionError) as error:
            damaged.append((number, error))
    if not damaged:
        return rows
    is_lines = bool(rows) and rows[0][0] < damaged[0][0]
    if report is None or (len(damaged) >= len(rows) and not is_lines):
        number, fault = damaged[0] if is_lines else (getattr(fault, "lineno", 1), fault)
        raise DataError(f"{name}: line {number} is not JSON ({fault})") from fault
    for number, _ in damaged:
        report(number)
    return rows


def read_table(source: Source, *, name: str, columns: Iterable[str] | None = None) -> DataFrame:
    """Read a table whose first row contains the column names; every cell becomes a str.

    A missing value becomes "", a list or object becomes JSON. Repeated column names are numbered.
    The suffix of `name` selects the format, text by default. `columns` of None reads all of them.
    Raises DataError, and MissingExtraError for workbooks and Parquet.
    """
    from pandas import DataFrame

    suffix = PurePath(name).suffix.lower()
    wanted = None if columns is None else list(columns)
    if suffix == ".parquet":
        return _parquet(source, name, wanted)
    if suffix in JSON_TABLES:
        rows = [row for _, row in read_json_rows(source, name=name) if isinstance(row, Mapping)]
        names = list(dict.fromkeys(key for row in rows for key in row))
        cells = [[_as_text(row.get(column)) for column in names] for row in rows]
    else:
        sheet = read_sheet(source, name=name)
        names = unique_names(sheet.rows[0].cells) if sheet.rows else []
        cells = [sheet.fit(row.cells, len(names)) for row in sheet.rows[1:]]
    _check_columns(name, names, wanted)
    frame = DataFrame(cells, columns=names, dtype=object)
    return frame if wanted is None else frame[wanted]


def unique_names(cells: Sequence[str]) -> list[str]:
    """Strip the names in a header, drop empty cells at its end, and number repeated names."""
    names = [cell.strip() for cell in cells]
    while names and not names[-1]:
        names.pop()
    return [
        f"{name} {names[:at].count(name) + 1}" if name and name in names[:at] else name
        for at, name in enumerate(names)
    ]


def _parquet(source: Source, name: str, wanted: list[str] | None) -> DataFrame:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError(f"reading {name}", "parquet") from error
    from pandas import DataFrame

    content = io.BytesIO(source) if isinstance(source, Content) else Path(source)
    if isinstance(content, Path) and not content.is_file():
        raise DataError(there_is_no("file", content))
    try:
        with parquet.ParquetFile(content) as file:
            names = file.schema_arrow.names
            _check_columns(name, names, wanted)
            values = file.read(columns=wanted).to_pydict()
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{name} cannot be read as Parquet: {error}") from error
    cells = {column: list(map(_as_text, values[column])) for column in wanted or names}
    return DataFrame(cells, dtype=object)


def _check_columns(name: str, names: Sequence[str], wanted: Iterable[str] | None) -> None:
    for column in wanted or ():
        if column not in names:
            raise DataError(f"{name} has no column {column!r}; it has {', '.join(names)}")


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)
