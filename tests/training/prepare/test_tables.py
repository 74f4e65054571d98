"""Tables as people write them: columns and headers found, captions in many forms."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest

from captioner import CaptionerError, ConfigError, DataError
from captioner_training.prepare.columns import Columns
from captioner_training.prepare.problems import Problems
from captioner_training.prepare.tables import read_caption_file
from tests.training.prepare.conftest import write_table

Captions = dict[str, tuple[str, ...]]
SENTENCES = ("A dog runs.", "A cat sits.")
KARPATHY = {
    "dataset": "flickr30k",
    "images": [
        {"filename": "1.jpg", "imgid": 0, "split": "train",
         "sentences": [{"raw": text, "tokens": text.lower().split()} for text in SENTENCES]}
    ],
}  # fmt: skip


@pytest.fixture
def problems() -> Problems:
    return Problems()


def read(
    tmp_path: Path, content: str | bytes, problems: Problems, name: str = "t.csv", **columns: object
) -> Captions:
    table = tmp_path / name
    table.write_bytes(content if isinstance(content, bytes) else content.encode())
    images = read_caption_file(table, Columns(**columns), problems)  # type: ignore[arg-type]
    return {image.file_name: image.captions for image in images}


@pytest.mark.parametrize(
    ("table", "columns", "captions"),
    [
        # Commas in the last column belong to the caption.
        ("image,caption\n1.jpg,A dog, a cat, and a bird .\n1.jpg,plain\n", {},
         {"1.jpg": ("A dog, a cat, and a bird .", "plain")}),
        ('image,caption\n2.jpg,"quoted, too"\n2.jpg, A sign says "stop, now", it seems\n', {},
         {"2.jpg": ("quoted, too", 'A sign says "stop, now", it seems')}),
        ("image,caption\n3.jpg,spreadsheet,,\n", {}, {"3.jpg": ("spreadsheet",)}),
        ("\ufeffimage,caption\n1.jpg,with a mark\n", {}, {"1.jpg": ("with a mark",)}),
        ("Bild;Text;Text\n1.jpg;ein Hund;ein Tier\n", {"image": "Bild"},
         {"1.jpg": ("ein Hund", "ein Tier")}),
        ('subject| c1| c2\n1.jpg| one| ["two", "three"]\n',
         {"image": "subject", "captions": ("c1", "c2")},
         {"1.jpg": ("one", "two", "three")}),
        ("sep=\t\na,b\tImage\tCaption\nc,d\t1.jpg\te, f\n", {}, {"1.jpg": ("e, f",)}),
        (f"image,caption\n1.jpg,{'[' * 100_000}\n", {}, {"1.jpg": ("[" * 100_000,)}),
        # The separator is detected, or given as Excel writes and reads it.
        *(
            (f"{head}1.jpg{at}a dog; a cat, both\n2.JPG{at}b\n", columns,
             {"1.jpg": ("a dog; a cat, both",), "2.JPG": ("b",)})
            for at in ",;\t|"
            for head, columns in (
                (f"Image{at}Caption\n", {}), (f"sep={at}\nDatei{at}Text\n", {"image": "Datei"}),
            )
        ),
    ],
)  # fmt: skip
def test_text_tables(
    tmp_path: Path, problems: Problems, table: str, columns: dict[str, object], captions: Captions
) -> None:
    assert read(tmp_path, table, problems, **columns) == captions
    assert not problems and not problems.notes()


def test_too_many_cells_elsewhere_are_named(tmp_path: Path, problems: Problems) -> None:
    table = "image,caption,split\n1.jpg,a dog, a cat,train\n2.jpg,fine,train\n"
    assert read(tmp_path, table, problems) == {"2.jpg": ("fine",)}
    assert "row with too many cells: 1 (line 2 has 4 cells for 3 columns)" in problems.report()


def test_the_header_is_the_row_of_the_named_columns(tmp_path: Path, problems: Problems) -> None:
    """An export of a museum: lines above the header, Windows-1252, and columns in German."""
    rows = [
        ["Sammlung Altstadt; Export", "März", "2026", ""],
        ["Nr", "Detail", "Datei", "Rechte", "Titel", "Beschreibung", "Vermerk"],
        ["0", "", "Brücken/17.jpg", "Alle Rechte", "Bild 0", "ein großer Hund", ""],
        ["1", "18.jpg", "Plätze/18.jpg", "Alle Rechte", "Bild 1", "zwei Kinder", "nein, nein"],
    ]
    csv.writer(text := io.StringIO(), delimiter=";").writerows(rows)
    content = f"sep=;\n{text.getvalue()}".encode("cp1252")
    columns = {"image": "Datei", "captions": ("Beschreibung",)}
    assert read(tmp_path, content, problems, **columns) == {
        "Brücken/17.jpg": ("ein großer Hund",), "Plätze/18.jpg": ("zwei Kinder",),
    }  # fmt: skip
    encoding, above = problems.notes()
    assert "read as Windows-1252" in encoding and "t.csv" in encoding
    assert above == "lines above the header, skipped: 1"


@pytest.mark.parametrize(
    ("table", "columns", "message"),
    [
        ("a.jpg,a dog runs\nb.jpg,a cat sits\n", {}, r"t\.csv has no header.* image,caption"),
        ('{"image": "a.jpg", "caption": "a dog"}', {}, r"t\.csv contains JSON.* t\.json"),
        ("1.jpg: a dog runs\n2.jpg: a cat sits\n", {}, "1.jpg: a dog runs.* --image-column"),
        (" \n", {}, r"t\.csv is empty"),
        ("Datei,caption\n1.jpg,a dog\n", {}, "columns Datei, caption.* --image-column$"),
        ("image,Titel\n1.jpg,a dog\n", {}, "columns image, Titel.* --caption-column$"),
        ("Raum;Jahr\nHalle;1900\n", {}, "Raum, Jahr.* --image-column.* --caption-column$"),
        ("image,caption\n", {"captions": ("Captoin",)}, r"'Captoin', did you mean caption\?"),
    ],
)  # fmt: skip
def test_tables_that_cannot_be_read(
    tmp_path: Path, problems: Problems, table: str, columns: dict[str, object], message: str
) -> None:
    with pytest.raises(CaptionerError, match=message) as caught:
        read(tmp_path, table, problems, **columns)
    wants_option = "--" in message or "did you mean" in message
    assert isinstance(caught.value, ConfigError if wants_option else DataError)


@pytest.mark.parametrize(
    ("column", "cells", "is_split"),
    [
        ("Subset", ("Train", "dev"), True),
        ("set", ("winter", "test"), False),
        ("part", ("train", "test"), False),
        ("split", ("1st", "2nd"), True),
    ],
)
def test_a_column_of_splits_is_found_by_its_name(
    tmp_path: Path, problems: Problems, column: str, cells: tuple[str, str], is_split: bool
) -> None:
    first, second = cells
    table = write_table(
        tmp_path / "t.csv",
        {"1.jpg": f"a,{first}", "2.jpg": f"b,{second}"},
        f"image,caption,{column}",
    )
    images = read_caption_file(table, Columns(), problems)
    assert [image.split for image in images] == (list(cells) if is_split else ["", ""])


def test_workbooks(tmp_path: Path, problems: Problems) -> None:
    """Title lines, numbers as names of photos, and sheets that other programs wrote."""
    from openpyxl import Workbook

    book = Workbook()
    for row in (["Sammlung", "Export"], [], ["id", "Text 1", "Text 2"], [17, "a dog", "runs"]):
        book.active.append(row)
    book.save(tmp_path / "numbers.xlsx")
    columns = Columns(image="id", captions=("Text 1", "Text 2"))
    (image,) = read_caption_file(tmp_path / "numbers.xlsx", columns, problems)
    assert (image.file_name, image.captions, image.row()) == ("17", ("a dog", "runs"), "row 4")
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
            for member in whole.namelist():
                content = whole.read(member)
                other.writestr(member, change(content) if member.endswith(part) else content)
    for name in ("whole.xlsx", "narrow.xlsx"):  # the sheet is called one cell wide, and is not
        images = read_caption_file(tmp_path / name, Columns(), problems)
        assert [image.captions for image in images] == [("a dog runs",), ("",)]
    (tmp_path / "text.xlsx").write_text("no workbook")
    (tmp_path / "old.xls").write_bytes(b"\xd0\xcf\x11\xe0")
    for name in ("cut.xlsx", "cut-too.xlsx", "text.xlsx", "old.xls"):
        with pytest.raises(DataError, match=f"{name} cannot be read .* export it as CSV"):
            read_caption_file(tmp_path / name, Columns(), problems)


def test_json_keeps_ids_folders_and_splits(tmp_path: Path, problems: Problems) -> None:
    file = {"filename": "1.jpg", "filepath": "val2014", "cocoid": 7, "split": "restval"}
    coco = {"id": 8, "file_name": "1.jpg", "split": "test"}
    for content, image in (
        ({"images": [{**file, "sentences": []}]}, (7, "val2014/1.jpg", "restval")),
        ({"images": [coco], "annotations": []}, (8, "1.jpg", "test")),
    ):
        (tmp_path / "t.json").write_text(json.dumps(content))
        (found,) = read_caption_file(tmp_path / "t.json", Columns(), problems)
        assert (found.id, found.file_name, found.split) == image


def test_a_list_of_objects_is_as_good_as_lines(tmp_path: Path, problems: Problems) -> None:
    text = '[\n{"image": "1.jpg", "caption": ["a", "b", 3]},\n3,\n{"caption": "c"}]\n'
    assert read(tmp_path, text, problems, "t.json") == {"1.jpg": ("a", "b", "")}
    assert "2 (item 2 is not a JSON object; item 3 names no image)" in problems.report()
    lines = '{"image": 17, "caption": "a\u2028b"}\r\n\r\n{"image": "18", "caption": "c"}\r\n[1]'
    found = read(tmp_path, f'{{"image"\n{lines}', problems, "t.jsonl")
    assert found == {"17": ("a\u2028b",), "18": ("c",)}
    assert "line 1 is not JSON; line 5 is not a JSON object" in problems.report()
    one = '{"file_name": "1.jpg", "text": "a"}\n'
    assert read(tmp_path, f"{one}not JSON", problems, "t.json") == {"1.jpg": ("a",)}
    for name in ("one.jsonl", "one.json"):
        assert read(tmp_path, one, problems, name) == {"1.jpg": ("a",)}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("dataset_coco_fr.json", json.dumps(KARPATHY)),
        ("results.token", "".join(f"1.jpg#{n}\t{text}\n" for n, text in enumerate(SENTENCES))),
        ("quoted.txt", "".join(f'1.jpg#{n} | "{text}"\n' for n, text in enumerate(SENTENCES))),
        ("hf.jsonl", json.dumps({"file_name": "1.jpg", "sentences": [{"raw": text, "sentid": n}
            for n, text in enumerate(SENTENCES)]})),
        ("annotations.csv", f'raw,sentids,split,filename,img_id\n"{list(SENTENCES)!s}",'
            '"[0, 1]",train,1.jpg,0\n'),
        ("coco.json", json.dumps({
            "images": [{"id": 7, "file_name": "1.jpg"}],
            "annotations": [{"image_id": "7", "caption": text} for text in SENTENCES]})),
        ("coco-text.json", json.dumps({
            "images": [{"id": "7", "file_name": "1.jpg"}],
            "annotations": [{"image_id": 7, "caption": text} for text in SENTENCES]})),
    ],
)  # fmt: skip
def test_formats_that_published_data_sets_have(
    tmp_path: Path, problems: Problems, name: str, content: str
) -> None:
    for encoding in ("utf-8", "utf-16"):
        assert read(tmp_path, content.encode(encoding), problems, name) == {"1.jpg": SENTENCES}
        assert not problems


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"images": [{"filename": "1.jpg"}]}', "not in COCO's or Karpathy's format: .*sentences"),
        ('{"images": [1], "annotations": []}', "images is not a list of objects"),
        ('{"images": [{"file_name": "1.jpg"}], "annotations": []}', "there is no 'id'"),
        ('{"1.jpg": {"caption": "a dog", "tags": "dog"}}', "no list of objects such as {.image"),
        ("7", "not in COCO's or Karpathy's format, and has no list of objects"),
        ("[]", "no JSON objects that name photos and captions"),
        ('{"images": [{"filename": "1.jpg", "sentences": [], "split": 1}]}', "1.jpg .* split 1;"),
        ('{"images": [{"filename": "1.jpg", "sentences": [], "cocoid": [7]}]}', r"id \[7\] "),
        ("[" * 100_000, "line 1 is not JSON"),  # deeper than Python can read
        ('{"images": [\n{"id": 1}\n{"id": 2}\n]\n}', "line 3 is not JSON"),
    ],
)
def test_json_of_another_format_is_named(
    tmp_path: Path, problems: Problems, content: str, message: str
) -> None:
    with pytest.raises(DataError, match=rf"t\.json.*{message}"):
        read(tmp_path, content, problems, "t.json")
