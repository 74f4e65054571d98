"""Write records as .jsonl, .csv, .parquet or COCO results; read .jsonl."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

from captioner.errors import ConfigError, DataError, MissingExtraError, OutputError
from captioner.terminal import json_line
from captioner.trust.familiarity import UNFAMILIAR
from captioner.trust.keywords import choose_keywords
from captioner_serving.batch.outputs.cells import ADDED_COLUMNS, COLUMNS, cell_of
from captioner_serving.batch.outputs.coco import image_ids
from captioner_serving.batch.wording import CONTROL, has_word, sentence

Record = dict[str, Any]

_ROWS = 10_000  # rows of Parquet that are written together


def check_output(output: str) -> None:
    """Check the path of an output before the run.

    Raises:
        ConfigError: the format is unknown.
        MissingExtraError: the extra for Parquet is not installed.
        OutputError: the folder does not exist.
    """
    path = Path(output)
    if path.suffix not in _WRITERS:
        formats = ", ".join(_WRITERS)
        raise ConfigError(f"output is {output!r}; it must end in {formats}")
    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise MissingExtraError(f"writing {output}", "parquet")
    if path.is_dir() or not path.absolute().parent.is_dir():
        is_dir, parent = path.is_dir(), path.absolute().parent
        reason = "it is a folder" if is_dir else f"there is no folder {parent}"
        raise OutputError(f"{output} cannot be written: {reason}")


def write_records(
    file: BinaryIO, suffix: str, records: Iterator[Record], *, plain: bool = False
) -> None:
    """Write records in the format of a suffix.

    Args:
        file: an open file; only its `name` is used, to write to its path.
        suffix: .jsonl, .csv, .parquet or .json.
        records: of captioned photos.
        plain: add no capital letter and no full stop in .csv. Other formats never get them.

    Raises:
        OutputError: photos share a COCO id.
        OSError: the file cannot be written.
    """
    if suffix == ".csv" and not plain:
        records = map(_as_sentences, records)
    _WRITERS[suffix](Path(file.name), records)


def _row(record: Record) -> Record:
    return {
        "image": record["image"],
        "caption": record["caption"],
        "score": record["score"],
        "alternatives": [alternative["caption"] for alternative in record["alternatives"]],
        "model": f"{record['model']['name']} {record['model']['version']}",
        **{name: record.get(name) for name in ADDED_COLUMNS},
    }


def _write_lines(path: Path, records: Iterator[Record]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json_line(record) + "\n" for record in records)


def _write_csv(path: Path, records: Iterator[Record]) -> None:
    """Write one row per photo; its alternatives are the lines of one cell.

    Bytes of a name that are not UTF-8 are written unchanged.
    """
    with path.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        writer = csv.DictWriter(file, [*COLUMNS, *ADDED_COLUMNS])
        writer.writeheader()
        for record in records:
            row = _row(record)
            row["alternatives"] = "\n".join(row["alternatives"])
            row["keywords"] = ", ".join(row["keywords"] or ())
            writer.writerow({k: cell_of(v) if isinstance(v, str) else v for k, v in row.items()})


def _as_sentences(record: Record) -> Record:
    alternatives = [
        {**alternative, "caption": sentence(alternative["caption"])}
        for alternative in record["alternatives"]
    ]
    return {**record, "caption": sentence(record["caption"]), "alternatives": alternatives}


def _write_parquet(path: Path, records: Iterator[Record]) -> None:
    r"""Write a Parquet file; bytes of a name that are not UTF-8 are written as \xNN."""
    import pyarrow
    from pyarrow import parquet

    text, number = pyarrow.string(), pyarrow.float32()
    texts = pyarrow.list_(text)
    kinds = (text, text, number, texts, text, number, number, texts)
    schema = pyarrow.schema(list(zip((*COLUMNS, *ADDED_COLUMNS), kinds, strict=True)))
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        rows = map(_row, records)
        while part := list(islice(rows, _ROWS)):
            for row in part:
                name = row["image"].encode("utf-8", "surrogateescape")
                row["image"] = name.decode("utf-8", "backslashreplace")
            writer.write_table(pyarrow.Table.from_pylist(part, schema=schema))


def _write_coco(path: Path, records: Iterator[Record]) -> None:
    captions = {record["image"]: record["caption"] for record in records}
    ids = image_ids(captions, "the output")
    results = [{"image_id": ids[name], "caption": text} for name, text in captions.items()]
    with path.open("w", encoding="utf-8") as file:
        file.write("[" + ",".join("\n" + json_line(result) for result in results) + "\n]\n")


_WRITERS: dict[str, Callable[[Path, Iterator[Record]], None]] = {
    ".jsonl": _write_lines,
    ".csv": _write_csv,
    ".parquet": _write_parquet,
    ".json": _write_coco,
}


def read_captions(path: Path) -> Iterator[Record | None]:
    """Yield the records in a .jsonl file; None for a photo that failed.

    Raises DataError: the file cannot be read, or a line is not a record.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                yield _record(line, f"{path}, line {number}")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def _record(line: bytes, place: str) -> Record | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{place} is an incomplete record: resume the run that wrote it, or remove the line"
        ) from error
    if not isinstance(record, dict) or not is_name(record.get("image")):
        raise DataError(f"{place} is not a caption record: image is missing or invalid")
    if "error" in record and "caption" not in record:
        return None
    alternatives, model = record.get("alternatives"), record.get("model")
    if not (isinstance(alternatives, list) and all(map(is_sentence, (record, *alternatives)))):
        raise DataError(f"{place} is not a caption record: caption, score or alternatives invalid")
    if not (isinstance(model, dict) and all(_is_text(model.get(k)) for k in ("name", "version"))):
        raise DataError(f"{place} is not a caption record: model is missing or invalid")
    keywords = record.get("keywords", [])
    if not (isinstance(keywords, list) and all(map(_is_keyword, keywords))):
        raise DataError(f"{place} is not a caption record: keywords are invalid")
    return record


def keywords_of(record: Record, minimum_trust: float) -> list[str]:
    """Choose the keywords of a record as `captioner batch --keywords` does.

    Words that are no longer in an edited caption are skipped.

    Raises DataError: the record has no words.
    """
    text: str = record.get("unworded") or record["caption"]
    try:
        words = [(word["word"], word.get("trust")) for word in record["words"]]
        is_unfamiliar = record.get("familiarity", 1.0) < UNFAMILIAR
        keywords = choose_keywords(words, minimum_trust=minimum_trust)
        return [] if is_unfamiliar else [word for word in keywords if has_word(text, word)]
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"the record of {record['image']} has no words to choose keywords from: use the .jsonl "
            "that captioner batch wrote"
        ) from error


def is_sentence(value: object) -> bool:
    """Return whether a record or alternative has a caption and a score."""
    if not isinstance(value, dict):
        return False
    score = value.get("score")
    is_number = isinstance(score, int | float) and not isinstance(score, bool) and abs(score) < 1e9
    texts = (value.get("caption"), value.get("unworded", ""))
    return is_number and all(_is_text(text) and not CONTROL.search(text) for text in texts)


def _is_keyword(value: object) -> bool:
    return _is_text(value) and not CONTROL.search(value) and not re.search(r"[,\n\t]", value)


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and not any("\ud800" <= sign <= "\udfff" for sign in value)


def is_name(value: object) -> bool:
    """Return whether a value can be a file name, with surrogates for bytes that are not UTF-8."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True
