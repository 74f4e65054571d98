"""CSV and JSON lines as people write them: nothing lost, every guess said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest

from captioner import ConfigError, DataError
from captioner_training.prepare.caption_files import (
    csv_rows,
    jsonl_rows,
    read_table,
    xlsx_rows,
)
from captioner_training.prepare.columns import Columns
from captioner_training.prepare.listing import Problems

Found = dict[str, tuple[str, ...]]


@pytest.fixture
def problems() -> Problems:
    return Problems()


def read(tmp_path: Path, content: str | bytes, problems: Problems, **columns: object) -> Found:
    table = tmp_path / "table.csv"
    table.write_bytes(content if isinstance(content, bytes) else content.encode())
    images = read_table(table, csv_rows, Columns(**columns), problems)  # type: ignore[arg-type]
    return {image.file_name: image.captions for image in images}


def test_commas_in_the_last_column_belong_to_the_caption(
    tmp_path: Path, problems: Problems
) -> None:
    table = (
        "image,caption\n1.jpg,A dog, a cat, and a bird .\n1.jpg,plain\n"
        '2.jpg,"quoted, too"\n2.jpg, A sign says "stop, now", it seems\n3.jpg,spreadsheet,,\n'
    )
    assert read(tmp_path, table, problems) == {
        "1.jpg": ("A dog, a cat, and a bird .", "plain"),
        "2.jpg": ("quoted, too", 'A sign says "stop, now", it seems'),
        "3.jpg": ("spreadsheet",),
    }
    assert not problems


def test_too_many_cells_elsewhere_are_named(tmp_path: Path, problems: Problems) -> None:
    table = "image,caption,split\n1.jpg,a dog, a cat,train\n2.jpg,fine,train\n"
    assert read(tmp_path, table, problems) == {"2.jpg": ("fine",)}
    assert problems.report().splitlines() == [
        "  row with too many cells: 1 (line 2 has 4)",
        "    there are 3 columns; a text with ',' in it needs quotation marks around it",
    ]


def test_a_quotation_mark_that_is_never_closed_is_named(tmp_path: Path, problems: Problems) -> None:
    rows = [f"{n}.jpg,caption {n}" for n in range(5)]
    rows[1] = '1.jpg,"V" is what, she shows'
    rows[2] = "2.jpg,\"a shop called Joe's"
    found = read(tmp_path, "image,caption\n" + "\n".join(rows) + "\n", problems)
    assert list(found) == ["0.jpg", "1.jpg"]
    assert "quotation mark that is never closed: 1 (line 4 on)" in problems.report()
    assert found["1.jpg"][0].endswith("is what, she shows")
    # What is quoted well may have line ends inside.
    table = 'image,caption\n1.jpg,"two\nlines, here"\n2.jpg,next\n'
    assert read(tmp_path, table, problems) == {"1.jpg": ("two\nlines, here",), "2.jpg": ("next",)}


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_delimiters_are_found_by_the_first_row(
    tmp_path: Path, problems: Problems, delimiter: str
) -> None:
    rows = f"1.jpg{delimiter}a dog; a cat, both\n2.JPG{delimiter}b\n"
    wanted = {"1.jpg": ("a dog; a cat, both",), "2.JPG": ("b",)}
    assert read(tmp_path, f"Image{delimiter}Caption\n{rows}", problems) == wanted
    assert read(tmp_path, rows, problems, image="1", captions=("2",)) == wanted
    said = f"sep={delimiter}\nDatei{delimiter}Text\n{rows}"  # as Excel writes and reads it
    assert read(tmp_path, said, problems, image="Datei") == wanted
    assert not problems and not problems.notes()


def test_columns_of_a_table_without_a_header_are_numbered(
    tmp_path: Path, problems: Problems
) -> None:
    table = "7,train,a.jpg,a dog runs\n8,val,b.jpg,a cat, black, sits\n"
    for columns in ({}, {"image": "3"}, {"image": "3", "captions": ("4",), "split": "2"}):
        found = read(tmp_path, table, problems, **columns)
        assert found == {"a.jpg": ("a dog runs",), "b.jpg": ("a cat, black, sits",)}
    assert "photos are named in the column 3, captions are those of 4: " in problems.notes()[0]
    with pytest.raises(ConfigError, match=r"the columns 1, 2: which one has the captions\? --cap"):
        read(tmp_path, "7,a.jpg\n8,b.jpg\n", problems)
    with pytest.raises(ConfigError, match=r"no column 'Captoin', did you mean caption\?"):
        read(tmp_path, "image,caption\n", problems, captions=("Captoin",))


def test_a_workbook_that_other_programs_wrote(tmp_path: Path, problems: Problems) -> None:
    from openpyxl import Workbook

    book = Workbook()
    for row in (["image", "caption"], ["a.jpg", "a dog runs"], ["b.jpg"]):
        book.active.append(row)
    book.save(tmp_path / "whole.xlsx")
    parts: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
        "narrow.xlsx": ("sheet1.xml", lambda content: content.replace(b'"A1:B3"', b'"A1"')),
        "cut.xlsx": ("sheet1.xml", lambda content: content[:-90]),
        "cut-too.xlsx": ("workbook.xml", lambda content: content[:-90]),
    }
    for name, (part, change) in parts.items():
        with ZipFile(tmp_path / "whole.xlsx") as whole, ZipFile(tmp_path / name, "w") as other:
            for one in whole.namelist():
                content = whole.read(one)
                other.writestr(one, change(content) if one.endswith(part) else content)
    for name in ("whole.xlsx", "narrow.xlsx"):  # the sheet is called one cell wide, and is not
        found = read_table(tmp_path / name, xlsx_rows, Columns(), problems)
        assert [image.captions for image in found] == [("a dog runs",), ("",)]
    for name in ("cut.xlsx", "cut-too.xlsx"):
        with pytest.raises(DataError, match=f"{name} cannot be read as a workbook"):
            read_table(tmp_path / name, xlsx_rows, Columns(), problems)


def test_encodings(tmp_path: Path, problems: Problems) -> None:
    table = "image,caption\n1.jpg,a café – open\n"
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        assert read(tmp_path, table.encode(encoding), problems) == {"1.jpg": ("a café – open",)}
    assert problems.notes() == []
    assert read(tmp_path, table.encode("cp1252"), problems) == {"1.jpg": ("a café – open",)}
    assert "read as Windows-1252" in problems.notes()[0] and "table.csv" in problems.notes()[0]
    for content in (b"\xff\xd8\xff\0\0binary", b"image,caption\n1.jpg,\x81\n"):
        with pytest.raises(DataError, match=r"table\.csv is not a text in UTF-8"):
            read(tmp_path, content, problems)
    with pytest.raises(DataError, match=r"table\.csv has '\\x1b', a character that steers"):
        read(tmp_path, b"image,caption\n1.jpg,a \x1b[2J dog\n", problems)
    with pytest.raises(DataError, match=r"table\.csv is empty"):
        read(tmp_path, " \n", problems)


def test_a_list_of_objects_is_as_good_as_lines(tmp_path: Path, problems: Problems) -> None:
    table = tmp_path / "t.json"
    table.write_text('[\n{"image": "1.jpg", "caption": ["a", "b"]},\n3]\n')
    (found,) = read_table(table, jsonl_rows, Columns(), problems)
    assert found.captions == ("a", "b")
    assert "item 2 is not a JSON object" in problems.report()
    table.write_text("[]")
    with pytest.raises(DataError, match="one a line is expected, or a list of them"):
        read_table(table, jsonl_rows, Columns(), problems)


def test_columns_of_one_name_are_all_read(tmp_path: Path, problems: Problems) -> None:
    table = "Bild;Text;Text\n1.jpg;ein Hund im Schnee;ein Tier im Winter\n"
    found = read(tmp_path, table, problems)
    assert found == {"1.jpg": ("ein Hund im Schnee", "ein Tier im Winter")}


def test_what_is_nested_too_deep_is_no_json_and_a_caption_in_a_cell(
    tmp_path: Path, problems: Problems
) -> None:
    deep = "[" * 100_000
    (tmp_path / "t.jsonl").write_text(deep)
    with pytest.raises(DataError, match="has no JSON objects"):
        read_table(tmp_path / "t.jsonl", jsonl_rows, Columns(), problems)
    assert read(tmp_path, f"image,caption\n1.jpg,{deep}\n", problems) == {"1.jpg": (deep,)}
