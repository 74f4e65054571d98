r"""The formats of outputs: .jsonl, .csv, .parquet and COCO results; records come back from two.

In a .csv an apostrophe precedes what a spreadsheet would run as a formula. A formula may begin
after any separator, because programs disagree about the separator of a file.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from captioner.errors import ConfigError, DataError, MissingExtraError, OutputError
from captioner.shared.tables import decode_text, read_bytes
from captioner.shared.text import choose_keywords, counted, json_line
from captioner.trust.familiarity import UNFAMILIAR
from captioner_serving.batch.wording import CONTROL, INVALID, has_word, sentence

Record = dict[str, Any]

COLUMNS = (
    *("image", "caption", "score", "alternatives", "model"),
    *("familiarity", "trust", "keywords", "review"),
)

_FORMATS = (".jsonl", ".csv", ".parquet", ".json")
_ROWS = 10_000  # rows of Parquet that are written together
_SPACE = r'[^\S\x1c-\x1f\x85]|[\ufeff"]'  # \s of JavaScript, and quotation marks
_BEGIN = rf"((?:^|[,;|\t\r\n])(?:{_SPACE})*)"  # the beginning of a cell; in record.js too
_SIGNS = r"'*[=+@\-＝＋＠－]"  # programs in East Asian languages also run full-width signs
_FORMULA = re.compile(rf"{_BEGIN}(?={_SIGNS})")
DEFUSED = re.compile(rf"{_BEGIN}'(?={_SIGNS})")
_NUMBER = re.compile(r"(?:^|_)([0-9]{1,18})$")  # COCO_val2014_000000391895
_NO_KEYWORD = re.compile(rf"[,\n\t]|{INVALID.pattern}")
_NO_NAME = re.compile(r"\A\Z|[\0\ud800-\udc7f\udd00-\udfff]")  # others are bytes, not UTF-8


def check_output(output: str) -> None:
    """Check the format and folder of an output before the run."""
    path = Path(output)
    if path.suffix not in _FORMATS:
        raise ConfigError(f"output is {output!r}; it must end in {', '.join(_FORMATS)}")
    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise MissingExtraError(f"writing {output}", "parquet")
    if path.is_dir():
        raise OutputError(f"{output} cannot be written: it is a folder")
    if not (folder := path.absolute().parent).is_dir():
        raise OutputError(f"{output} cannot be written: there is no folder {folder}")


def write_records(
    file: BinaryIO, suffix: str, records: Iterator[Record], *, plain: bool = False
) -> str:
    """Write records to the path of a file; return a line about the ids in COCO results, or "".

    plain: add no capital letter and no full stop in .csv. Other formats never get them.
    """
    path = Path(file.name)
    if suffix == ".json":
        return _write_coco(path, records)
    if suffix == ".csv":
        _write_csv(path, records, spell=str if plain else sentence)
    elif suffix == ".parquet":
        _write_parquet(path, records)
    else:
        with path.open("w", encoding="utf-8") as lines:
            lines.writelines(json_line(record) + "\n" for record in records)
    return ""


def _row(record: Record, spell: Callable[[str], str] = str) -> Record:
    return {
        **{name: record.get(name) for name in COLUMNS},
        "caption": record["caption"] if "corrected" in record else spell(record["caption"]),
        "alternatives": [spell(alternative["caption"]) for alternative in record["alternatives"]],
        "model": f"{record['model']['name']} {record['model']['version']}",
    }


def _write_csv(path: Path, records: Iterator[Record], spell: Callable[[str], str]) -> None:
    """Write one row per photo; bytes of a name that are not UTF-8 are written unchanged."""
    with path.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for record in records:
            row = _row(record, spell)
            row["alternatives"] = "\n".join(row["alternatives"])
            row["keywords"] = ", ".join(row["keywords"] or ())
            texts = {k: _FORMULA.sub(r"\1'", v) for k, v in row.items() if isinstance(v, str)}
            writer.writerow(row | texts)


def _write_parquet(path: Path, records: Iterator[Record]) -> None:
    r"""Write a Parquet file; bytes of a name that are not UTF-8 are written as \xNN."""
    import pyarrow
    from pyarrow import parquet

    text, number = pyarrow.string(), pyarrow.float32()
    texts = pyarrow.list_(text)
    kinds = (text, text, number, texts, text, number, number, texts, pyarrow.bool_())
    schema = pyarrow.schema(list(zip(COLUMNS, kinds, strict=True)))
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        rows = map(_row, records)
        while part := list(islice(rows, _ROWS)):
            for row in part:
                name = row["image"].encode("utf-8", "surrogateescape")
                row["image"] = name.decode("utf-8", "backslashreplace")
            writer.write_table(pyarrow.Table.from_pylist(part, schema=schema))


def _write_coco(path: Path, records: Iterator[Record]) -> str:
    """Write COCO results. The id is the number that ends the stem, otherwise the stem.

    If photos share an id, all ids are positions in the run.
    """
    pairs = [(record["image"], record["caption"]) for record in records]
    captions, notes = dict(pairs), []
    if len(captions) < len(pairs):
        notes.append(f"{counted(len(captions), 'result')}, one for each photo")
    stems = [Path(name).stem for name in captions]
    ids = [int(match[1]) if (match := _NUMBER.search(stem)) else stem for stem in stems]
    if len({*ids}) < len(ids):
        ids = [*range(1, len(ids) + 1)]
        notes.append("photos share an id: each image_id is a position in the run")
    results = zip(ids, captions.values(), strict=True)
    lines = (json_line({"image_id": key, "caption": text}) for key, text in results)
    path.write_text("[" + ",".join("\n" + line for line in lines) + "\n]\n", encoding="utf-8")
    return "; ".join(notes)


def read_records(path: Path) -> Iterator[Record | None]:
    """Yield the records in a .jsonl or .csv file; None for a photo that failed.

    A person's text on the page (`corrected`) becomes the caption. A spreadsheet may have edited and
    saved a .csv. If any row has keywords, all records have `keywords`.

    Raises DataError: the file cannot be read, or a line is not a record.
    """
    for number, record in _read_table(path) if path.suffix == ".csv" else _read_lines(path):
        yield _checked(record, f"{path}, line {number}")


def _read_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the number and value of each line; None for a torn line."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                value = None
                with suppress(ValueError, RecursionError):
                    value = json.loads(line)
                yield number, value
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def _read_table(path: Path) -> Iterator[tuple[int, Record]]:
    """Yield the number and record of each row. Bytes that are not UTF-8 become surrogates."""
    data = read_bytes(path, name=str(path))
    if b"\0" in data[:1000]:
        text, _ = decode_text(data, name=str(path))
    else:
        text = data.decode("utf-8-sig", "surrogateescape")
    first = text.partition("\n")[0]
    try:
        table = csv.DictReader(
            io.StringIO(text, newline=""), delimiter=max(",;\t|", key=first.count), restval=""
        )
        if missing := {"image", "caption", "score"} - set(table.fieldnames or ()):
            raise DataError(
                f"{path} has no column {', '.join(sorted(missing))}: use a .csv that captioner "
                "batch wrote, with its header"
            )
        # A spreadsheet may leave empty rows at the end.
        rows = [(table.line_num, row) for row in table if any(row.values())]
    except csv.Error as error:
        raise DataError(f"{path} cannot be read as a table: {error}") from error
    has_keywords = any(row.get("keywords") for _, row in rows)
    for number, row in rows:
        record = _record_of_row(row)
        if has_keywords:
            keywords = map(str.strip, _text(row, "keywords").split(","))
            record["keywords"] = list(filter(None, keywords))
        yield number, record


def _record_of_row(row: dict[str, str]) -> Record:
    """Return the record of a row. Only tables of the page have alt texts and failed photos."""
    caption, alt, marks = _text(row, "caption"), _text(row, "alt"), row.get("marks", "")
    record: Record = {"image": DEFUSED.sub(r"\1", row["image"])}
    is_by_person = row.get("caption_by") == "person"
    if row.get("error"):
        return record | {"error": {}} | ({"corrected": alt} if is_by_person else {})
    score = math.nan
    with suppress(ValueError):
        score = float(row["score"].replace(",", "."))
    model = {"name": "", "version": ""}
    record |= {"caption": caption, "score": score, "alternatives": [], "model": model}
    is_review = row.get("review", "").strip().lower() not in ("", "false", "no", "0")
    if "alt" in row:
        record["reviewed"] = row.get("reviewed", "").strip().lower() == "true"
        record["unfamiliar"] = "unfamiliar" in marks
        # The page always adds a full stop, also to scripts without capitals.
        models = {sentence(caption), f"{caption[:1].upper()}{caption[1:]}.", ""}
        if is_by_person or alt not in models:
            record["corrected"] = alt
        is_review |= not alt or "untrusted" in marks
    return record | ({"review": True} if is_review else {})


def _text(row: dict[str, str], column: str) -> str:
    text = DEFUSED.sub(r"\1", row.get(column, ""))
    if any("\udc80" <= sign <= "\udcff" for sign in text):
        return text.encode("utf-8", "surrogateescape").decode("cp1252", "replace")
    return text


def _checked(value: Any, place: str) -> Record | None:
    """Check a record, and use a person's text; return None for a failed photo without one."""
    if value is None:
        raise DataError(
            f"{place} is an incomplete record: resume the run that wrote it, or remove the line"
        )
    record: Record = value if isinstance(value, dict) else {}
    if not _is_text(record.get("image"), without=_NO_NAME):
        raise DataError(f"{place} is not a caption record: image is missing or invalid")
    if isinstance(text := record.get("corrected", ""), str):
        # People paste control characters from other programs.
        text = CONTROL.sub(" ", text.replace("\r\n", "\n"))
    if "error" in record and "caption" not in record:
        if "corrected" not in record or not _is_text(text):
            return None
        others = {key: record[key] for key in ("image", "content") if key in record}
        empty: Record = {"score": 0.0, "words": [], "alternatives": [], "reviewed": True}
        record = others | empty | {"model": {"name": "", "version": ""}, "corrected": text}
        record["caption"] = text
    alternatives, model = record.get("alternatives"), record.get("model")
    keywords = record.get("keywords", [])
    valid = {
        "caption, score or alternatives": isinstance(alternatives, list)
        and all(map(_is_sentence, (record, *alternatives))),
        "model": isinstance(model, dict)
        and all(_is_text(model.get(key)) for key in ("name", "version")),
        "corrected": _is_text(text),
        "keywords": isinstance(keywords, list)
        and all(_is_text(keyword, without=_NO_KEYWORD) for keyword in keywords),
    }
    if invalid := [name for name, is_valid in valid.items() if not is_valid]:
        raise DataError(f"{place} is not a caption record: {invalid[0]} missing or invalid")
    if "corrected" in record:
        record["corrected"] = record["caption"] = text
        record.pop("review", None)
    elif record.get("unfamiliar") and record.get("reviewed") is False:  # only the page adds it
        record["review"] = True
    return record


def is_persons(record: Record) -> bool:
    """Return whether a record has a text of a person, not one that a person accepted."""
    return "corrected" in record and record.get("caption_by", "person") == "person"


def keywords_of(record: Record, minimum_trust: float) -> list[str]:
    """Choose the keywords of a record as `captioner batch --keywords` does.

    Words that are no longer in an edited caption are skipped.
    """
    text: str = record.get("unworded") or record["caption"]
    try:
        if record.get("familiarity", 1.0) < UNFAMILIAR:
            return []
        words = [(word["word"], word.get("trust")) for word in record["words"]]
        keywords = choose_keywords(words, minimum_trust=minimum_trust)
        return [word for word in keywords if has_word(text, word)]
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"the record of {record['image']} has no words to choose keywords from: use the .jsonl "
            "that captioner batch wrote"
        ) from error


def _is_sentence(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    score = value.get("score")
    is_number = isinstance(score, int | float) and not isinstance(score, bool) and abs(score) < 1e9
    return is_number and _is_text(value.get("caption")) and _is_text(value.get("unworded", ""))


def _is_text(value: object, *, without: re.Pattern[str] = INVALID) -> bool:
    return isinstance(value, str) and without.search(value) is None
