"""Tables as people write them: columns and headers found, captions in many forms."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest

from captioner import ConfigError, DataError
from captioner_training.prepare.columns import Columns
from captioner_training.prepare.listing import Problems
from captioner_training.prepare.tables import read_caption_file

Captions = dict[str, tuple[str, ...]]


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
    assert "row with too many cells: 1 (line 2 has 4 cells)" in problems.report()
    assert "3 columns" in problems.report() and "','" in problems.report()


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_the_separator_is_detected_or_given(
    tmp_path: Path, problems: Problems, separator: str
) -> None:
    rows = f"1.jpg{separator}a dog; a cat, both\n2.JPG{separator}b\n"
    wanted = {"1.jpg": ("a dog; a cat, both",), "2.JPG": ("b",)}
    assert read(tmp_path, f"Image{separator}Caption\n{rows}", problems) == wanted
    excel = f"sep={separator}\nDatei{separator}Text\n{rows}"  # as Excel writes and reads it
    assert read(tmp_path, excel, problems, image="Datei") == wanted
    if separator == "\t":  # as people type it
        for typed in ("\\t", "tab"):
            table = "a,b\tImage\tCaption\nc,d\t1.jpg\te, f\n"
            assert read(tmp_path, table, problems, delimiter=typed) == {"1.jpg": ("e, f",)}
    assert not problems and not problems.notes()


def test_a_table_without_a_header_is_refused(tmp_path: Path, problems: Problems) -> None:
    with pytest.raises(DataError, match=r"t\.csv has no header: add a first line, such as image,"):
        read(tmp_path, "a.jpg,a dog runs\nb.jpg,a cat sits\n", problems)
    with pytest.raises(DataError, match=r"t\.csv contains JSON: rename it to t\.json"):
        read(tmp_path, '{"image": "a.jpg", "caption": "a dog"}', problems)


@pytest.mark.parametrize(
    ("table", "columns", "message"),
    [
        ("Datei,caption\n1.jpg,a dog runs\n", {}, "the columns Datei, caption: name the column of "
            "photos with --image-column"),
        ("image,Titel\n1.jpg,a dog runs fast\n", {}, "the columns image, Titel: name the column of "
            "captions with --caption-column"),
        ("image,caption\n", {"captions": ("Captoin",)},
            r"no column 'Captoin', did you mean caption\?"),
    ],
)  # fmt: skip
def test_columns_of_other_names_are_asked_for(
    tmp_path: Path, problems: Problems, table: str, columns: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, table, problems, **columns)


def test_the_header_is_the_row_of_the_named_columns(tmp_path: Path, problems: Problems) -> None:
    table = "图库,2026\n图片,描述\n1.jpg,一只狗在草地上奔跑\n"
    found = read(tmp_path, table, problems, image="图片", captions=("描述",))
    assert found == {"1.jpg": ("一只狗在草地上奔跑",)}
    assert problems.notes() == ["lines above the header, skipped: 1"]


@pytest.mark.parametrize(
    ("column", "cells", "splits"),
    [
        ("Subset", ("Train", "dev"), ("Train", "dev")),
        ("set", ("winter", "test"), (None, None)),
        ("part", ("train", "test"), (None, None)),
        ("split", ("1st", "2nd"), ("1st", "2nd")),
    ],
)
def test_a_column_of_splits_is_found_by_its_name(
    tmp_path: Path, problems: Problems, column: str,
    cells: tuple[str, str], splits: tuple[str | None, ...],
) -> None:  # fmt: skip
    table = tmp_path / "t.csv"
    rows = [f"{n}.jpg,a dog runs,{cell}" for n, cell in enumerate(cells)]
    table.write_text("\n".join([f"image,caption,{column}", *rows]))
    images = read_caption_file(table, Columns(), problems)
    assert tuple(image.split for image in images) == splits


@pytest.mark.parametrize(
    ("content", "image"),
    [
        ({"images": [
            {"filename": "1.jpg", "filepath": "val2014", "cocoid": 7, "split": "restval",
             "sentences": [{"raw": "a dog"}]}]},
         (7, "val2014/1.jpg", "restval", "t.json")),
        ({"images": [{"id": 8, "file_name": "1.jpg", "split": "test"}], "annotations": []},
         (8, "1.jpg", "test", "t.json")),
    ],
)  # fmt: skip
def test_json_keeps_ids_folders_and_splits(
    tmp_path: Path, problems: Problems, content: object, image: tuple[object, ...]
) -> None:
    (tmp_path / "t.json").write_text(json.dumps(content))
    (found,) = read_caption_file(tmp_path / "t.json", Columns(), problems)
    assert (found.id, found.file_name, found.split, found.split_from) == image


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
            for member in whole.namelist():
                content = whole.read(member)
                other.writestr(member, change(content) if member.endswith(part) else content)
    for name in ("whole.xlsx", "narrow.xlsx"):  # the sheet is called one cell wide, and is not
        images = read_caption_file(tmp_path / name, Columns(), problems)
        assert [image.captions for image in images] == [("a dog runs",), ("",)]
    for name in ("cut.xlsx", "cut-too.xlsx"):
        with pytest.raises(DataError, match=f"{name} cannot be read as a workbook"):
            read_caption_file(tmp_path / name, Columns(), problems)


def test_a_guessed_encoding_is_noted(tmp_path: Path, problems: Problems) -> None:
    table = "image,caption\n1.jpg,a café – open\n"
    assert read(tmp_path, table, problems) == {"1.jpg": ("a café – open",)}
    assert problems.notes() == []
    assert read(tmp_path, table.encode("cp1252"), problems) == {"1.jpg": ("a café – open",)}
    assert "read as Windows-1252" in problems.notes()[0] and "t.csv" in problems.notes()[0]
    with pytest.raises(DataError, match=r"t\.csv is empty"):
        read(tmp_path, " \n", problems)


def test_five_examples_of_a_problem_are_shown(problems: Problems) -> None:
    for number in (1, 2, 3, 4, 5, 5):
        problems.add("missing image", f"{number}.jpg")
    shown = "  missing image: 6 (1.jpg; 2.jpg; 3.jpg; 4.jpg; 5.jpg"
    assert problems.report() == f"{shown})"
    problems.add("missing image", "6.jpg")
    assert problems.report() == f"{shown.replace('6 (', '7 (')}; ...)"


def test_a_list_of_objects_is_as_good_as_lines(tmp_path: Path, problems: Problems) -> None:
    text = '[\n{"image": "1.jpg", "caption": ["a", "b"]},\n3]\n'
    assert read(tmp_path, text, problems, "t.json") == {"1.jpg": ("a", "b")}
    assert "item 2 is not a JSON object" in problems.report()
    lines = '{"image": 17, "caption": "a\u2028b"}\r\n{"image": "18", "caption": "c"}\r\n'
    assert read(tmp_path, lines, problems, "t.jsonl") == {"17": ("a\u2028b",), "18": ("c",)}
    with pytest.raises(DataError, match="no JSON objects that name photos and captions"):
        read(tmp_path, "[]", problems, "t.json")


def test_columns_of_one_name_are_all_read(tmp_path: Path, problems: Problems) -> None:
    table = "Bild;Text;Text\n1.jpg;ein Hund im Schnee;ein Tier im Winter\n"
    captions = read(tmp_path, table, problems, image="Bild")
    assert captions == {"1.jpg": ("ein Hund im Schnee", "ein Tier im Winter")}


def test_deep_nesting_is_an_error_in_json_and_a_caption_in_a_cell(
    tmp_path: Path, problems: Problems
) -> None:
    deep = "[" * 100_000
    with pytest.raises(DataError, match=r"t\.jsonl: line 1 is not JSON"):
        read(tmp_path, deep, problems, "t.jsonl")
    assert read(tmp_path, f"image,caption\n1.jpg,{deep}\n", problems) == {"1.jpg": (deep,)}


def test_yaml_is_refused_as_a_table(tmp_path: Path, problems: Problems) -> None:
    with pytest.raises(ConfigError, match=r"captions\.yaml has the columns 1\.jpg: a dog runs"):
        read(tmp_path, "1.jpg: a dog runs\n2.jpg: a cat sits\n", problems, "captions.yaml")


SENTENCES = ("A dog runs.", "A cat sits.")
KARPATHY = {
    "dataset": "flickr30k",
    "images": [
        {"filename": "1.jpg", "imgid": 0, "split": "train",
         "sentences": [{"raw": text, "tokens": text.lower().split()} for text in SENTENCES]}
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("dataset_coco_fr.json", json.dumps(KARPATHY)),
        ("words.json", json.dumps({"images": [
            {"filename": "1.jpg", "split": "test", "sentences": [
                {"tokens": text.split(" ")} for text in SENTENCES]}]})),
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
        (
            {"images": [{"filename": "1.jpg"}]},
            "has images, but is not in COCO's or Karpathy's",
        ),
        ({"images": [], "annotations": 3}, "annotations is not a list of objects"),
        ({"images": [{"file_name": "1.jpg"}], "annotations": []}, "there is no 'id'"),
        ({"1.jpg": {"caption": "a dog", "tags": "dog"}}, "no list of objects such as {.image"),
        (7, "not in COCO's or Karpathy's format, and has no list of objects"),
    ],
)
def test_json_of_another_format_is_named(
    tmp_path: Path, problems: Problems, content: object, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path, json.dumps(content), problems, "t.json")
