"""The one reader of text and tables: encodings, separators, long cells, formats."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pandas
import pytest

from captioner import DataError
from captioner.shared.tables import read_json_rows, read_lines, read_table

ROWS = [["image", "Ünïcode text"], ["1.jpg", "a café – open; really, yes"], ["2.jpg", "b | c"]]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "cp1252"])
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_tables_that_pandas_wrote_are_read(tmp_path: Path, encoding: str, separator: str) -> None:
    frame = pandas.DataFrame(ROWS[1:], columns=ROWS[0])
    path = tmp_path / "table.csv"
    frame.to_csv(path, sep=separator, index=False, encoding=encoding)
    for source in (path, path.read_bytes()):
        table = read_table(source, name=str(path))
        assert [list(table.columns), *table.to_numpy().tolist()] == ROWS


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "cp1252"])
def test_lines_in_every_encoding(encoding: str, ending: str) -> None:
    lines = ["photos/1.jpg", "photos/é 2.jpg", "x\x0by.jpg"]
    content = ending.join(["", *lines, ""]).encode(encoding)
    assert read_lines(content, name="list.txt") == lines
    assert read_lines(memoryview(content), name="list.txt") == lines


def test_cells_may_be_longer_than_the_limit_of_the_csv_module(tmp_path: Path) -> None:
    long = "a, " * 100_000
    frame = pandas.DataFrame({"path": ["1.jpg", "2.jpg"], "note": [long, "x"]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert read_table(tmp_path / "t.csv", name="t.csv")["note"].tolist() == [long.strip(), "x"]


@pytest.mark.parametrize(
    "second", ["www.site.com, open", "see 2.jpg, 3.jpg", "x\u2028y", '""quoted""']
)
def test_a_quoted_caption_of_two_lines_is_one_row(second: str) -> None:
    text = f'image,caption\n1.jpg,"a shop\n{second}"\n2.jpg,a dog\n'
    expected = list(csv.reader(io.StringIO(text, newline="")))[1:]
    assert read_table(text.encode(), name="t.csv").to_numpy().tolist() == expected
    assert [cells[0] for cells in expected] == ["1.jpg", "2.jpg"]


@pytest.mark.parametrize("rest", ['2.jpg,"a dog, a cat"\n', "2.jpg,a dog\n3.jpg,a cat\n"])
def test_a_quotation_mark_that_is_not_closed_is_an_error(rest: str) -> None:
    text = f'image,caption\n0.jpg,"two\nlines"\n1.jpg,"a shop called Joe\'s\n{rest}'
    with pytest.raises(DataError, match=r"t\.csv .*: line 4 has a quotation mark that is not clos"):
        read_table(text.encode(), name="t.csv")


def test_separators_without_quotation_marks_belong_to_the_last_column() -> None:
    text = "path;note;\na;1;\nb;2; 3;\nc\n"
    assert read_table(text.encode(), name="t.csv")["note"].tolist() == ["1", "2; 3", ""]


def test_commas_in_sentences_are_no_separators() -> None:
    text = "id;caption\n1;a dog, a cat and a bird, asleep\n2;a man, a van and a plan, all red\n"
    table = read_table(text.encode(), name="t.csv")
    assert table.columns.tolist() == ["id", "caption"]
    assert table["caption"][0] == "a dog, a cat and a bird, asleep"


def test_columns_of_one_name_are_numbered() -> None:
    table = read_table(b"id,caption,caption,caption\n1,a dog,a cat,a bird\n", name="t.csv")
    assert table.columns.tolist() == ["id", "caption", "caption 2", "caption 3"]


def test_formats_beside_text(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"id": [18, 17], "path": [None, "1.jpg"], "words": [None, ["é"]]})
    frame.to_parquet(tmp_path / "t.parquet")
    rows = [{"id": 18, "words": None}, {"id": 17, "path": "1.jpg", "words": ["é"]}]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    (tmp_path / "t.json").write_text(json.dumps(rows, indent=1), "utf-16")
    frame.assign(words=[None, '["é"]']).to_excel(tmp_path / "t.xlsx", index=False)
    for suffix in ("parquet", "jsonl", "json", "xlsx"):
        path = tmp_path / f"t.{suffix}"
        for name in (path.name, path.name.upper()):
            assert read_table(path, name=name).to_dict("list") == {
                "id": ["18", "17"], "path": ["", "1.jpg"], "words": ["", '["é"]'],
            }, name  # fmt: skip
        assert read_table(path, name=path.name, columns=["path"]).columns.tolist() == ["path"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", b"\xff\xd8\xff\xe0\0\x10JFIF\0", r"t\.csv is not a text file: save it as UTF-8"),
        ("t.csv", "path\n".encode("utf-16-le"), r"t\.csv is not a text file"),  # without its mark
        ("t.csv", b"image,caption\n1.jpg,\x81\n", r"t\.csv is not a text file"),
        ("t.xlsx", b"PK\x03\x04", r"t\.xlsx cannot be read as a workbook \(.*export it as CSV"),
        ("t.parquet", b"PAR1", r"t\.parquet cannot be read as Parquet"),
        ("t.jsonl", b'{"path": 1}\n{"path"', r"t\.jsonl: line 2 is not JSON"),
        ("t.json", b'[\n{"path": 1}\n{"path": 2}\n]', r"t\.json: line 3 is not JSON"),
        ("t.csv", b"file,note\n1.jpg,x\n", r"t\.csv has no column 'path'; it has file, note"),
    ],
)
def test_bad_tables_are_named(name: str, content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_table(io.BytesIO(content).getbuffer(), name=name, columns=["path"])


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("x")
    with pytest.raises(DataError, match=r"there is no file .*lst\.txt, did you mean .*list\.txt"):
        read_lines(tmp_path / "lst.txt", name="lst.txt")
    with pytest.raises(DataError, match="is a folder"):
        read_table(tmp_path, name=str(tmp_path))


def test_only_a_line_feed_separates_lines_of_json(tmp_path: Path) -> None:
    """JSON strings may contain U+2028, U+0085 and other characters of `str.splitlines`."""
    texts = ["one\u2028two", "one\u2029two", "one\x85two", "last"]
    content = "\n".join(json.dumps({"text": text}, ensure_ascii=False) for text in texts).encode()
    (tmp_path / "t.jsonl").write_bytes(content)
    for source in (tmp_path / "t.jsonl", content):
        assert read_table(source, name="t.jsonl")["text"].tolist() == texts
        assert [row for row, _ in read_json_rows(source, name="t.jsonl")] == [1, 2, 3, 4]
