"""Tables of a museum, and the list of what was left out."""

from __future__ import annotations

import csv
from pathlib import Path
from zipfile import ZipFile

import pytest
from PIL import Image

from captioner_training.data.manifest import Manifest
from tests.launcher import Run
from tests.training.prepare.conftest import captions_of, prepare

SENTENCES = [
    "ein großer Hund läuft über die nasse Wiese",
    "zwei Kinder spielen im Schnee vor dem Haus",
    "eine Frau mit Hut steht an der Straßenbahn",
    "der Fährmann wartet auf die letzten Gäste",
]
NOTICE = "Alle Rechte bei der Sammlung der Stadt, Abdruck nur mit Erlaubnis"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Four small photos, no two alike, in folders with umlauts."""
    folder = tmp_path / "Fotos"
    for n, place in enumerate(("Brücken", "Brücken", "Plätze", "Plätze")):
        (folder / place).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 24), (50 * n, 10, 200)).save(folder / place / f"{n + 17}.jpg")
    return folder


def names(photos: Path) -> list[str]:
    return sorted(path.relative_to(photos).as_posix() for path in photos.rglob("*.jpg"))


def test_a_semicolon_export_with_a_title_and_columns_in_german(
    run_main: Run, photos: Path, tmp_path: Path
) -> None:
    rows = [
        ["Sammlung Altstadt; Export", "März", "2026", ""],
        ["Nr", "Detail", "Datei", "Rechte", "Titel", "Beschreibung", "Vermerk"],
    ]
    for n, (name, text) in enumerate(zip(names(photos), SENTENCES, strict=True)):
        rare = ["17.jpg", f"{NOTICE}, {NOTICE}"] if n == 2 else ["", ""]
        rows.append([str(n), rare[0], name, NOTICE, f"Bild {n} der Reihe", text, rare[1]])
    table = tmp_path / "Liste.csv"
    with table.open("w", encoding="cp1252", newline="") as file:
        file.write("sep=;\n")
        csv.writer(file, delimiter=";").writerows(rows)
    columns = ("--image-column", "Datei", "--caption-column", "Beschreibung")
    said = prepare(
        run_main, tmp_path / "to", "csv", table, "--images", photos, "--val", 0, *columns
    )
    assert captions_of(tmp_path / "to") == {
        name: (text,) for name, text in zip(names(photos), SENTENCES, strict=True)
    }
    assert "note: lines above the header, skipped: 1\n" in said
    assert "read as Windows-1252" in said
    assert not (tmp_path / "to" / "problems.csv").exists()


@pytest.mark.parametrize("column", ["id", "Inventarnummer"])
def test_a_workbook_whose_numbers_name_the_photos(
    run_main: Run, photos: Path, tmp_path: Path, column: str
) -> None:
    from openpyxl import Workbook

    book = Workbook()
    sheet = book.active
    sheet.append(["Sammlung Altstadt", "Export"])
    sheet.append([])
    sheet.append([column, "Jahr", "Beschreibung 1", "Beschreibung 2"])
    for n, text in enumerate(SENTENCES):
        sheet.append([n + 17, 1900 + n, text, f"{text} im Winter"])
    book.save(tmp_path / "Liste.xlsx")
    prepare(
        run_main, tmp_path / "to", "xlsx", tmp_path / "Liste.xlsx", "--images", photos, "--val", 0,
        "--image-column", column,
        "--caption-column", "Beschreibung 1", "--caption-column", "Beschreibung 2",
    )  # fmt: skip
    assert captions_of(tmp_path / "to") == {
        str(n + 17): (text, f"{text} im Winter") for n, text in enumerate(SENTENCES)
    }
    (tmp_path / "alt.xls").write_bytes(b"\xd0\xcf\x11\xe0")
    for name, reason in (("alt.xls", "export it as CSV"), ("kein.xlsx", "there is no file")):
        assert reason in prepare(run_main, tmp_path / "no", "xlsx", tmp_path / name, status=1)
    (tmp_path / "falsch.xlsx").write_text("no workbook")
    said = prepare(run_main, tmp_path / "no", "csv", tmp_path / "falsch.xlsx", status=1)
    assert "falsch.xlsx cannot be read as a workbook" in said


def test_the_error_names_both_missing_columns(run_main: Run, photos: Path, tmp_path: Path) -> None:
    table = tmp_path / "Liste.csv"
    table.write_text("Raum;Jahr\nHalle;1900\nKeller;1901\n")
    said = prepare(run_main, tmp_path / "no", "csv", table, "--images", photos, status=2)
    assert "has the columns Raum, Jahr: name the column of photos with --image-column, and " in said
    assert "name the column of captions with --caption-column" in said


def test_hugging_face_s_photos_inside_of_parquet(
    run_main: Run, photos: Path, tmp_path: Path
) -> None:
    import pyarrow
    from pyarrow import parquet

    files = [photos / name for name in names(photos)]
    for split, some, sizes in (("train", files[:3], 2), ("test", files[3:], 1)):
        rows = {
            # As often in practice: one photo is called as another is.
            "image": [{"bytes": one.read_bytes(), "path": "photo.jpg"} for one in some],
            "légende": SENTENCES[: len(some)],
        }
        parquet.write_table(
            pyarrow.table(rows), tmp_path / f"{split}-00000-of-00001.parquet", row_group_size=sizes
        )
    tables = [tmp_path / f"{split}-00000-of-00001.parquet" for split in ("train", "test")]
    columns = ("--caption-column", "légende")
    prepare(run_main, tmp_path / "to", "parquet", *tables, *columns)
    manifest = Manifest.load(tmp_path / "to")
    assert {name: split.images for name, split in manifest.splits.items()} == {
        "train": 3, "test": 1,
    }  # fmt: skip
    from captioner_training.data.reading import read_dataset

    stored = read_dataset(tmp_path / "to", split="train")
    assert [one.store.read(one.name) for one in stored] == [one.read_bytes() for one in files[:3]]
    assert [one.captions for one in stored] == [(text,) for text in SENTENCES[:3]]
    other = tables[0].rename(tmp_path / "photos.pq")
    prepare(run_main, tmp_path / "more", "parquet", other, *columns)
    assert sum(one.images for one in Manifest.load(tmp_path / "more").splits.values()) == 3


def test_imagefolder_s_tables_lie_beside_its_photos(
    run_main: Run, photos: Path, tmp_path: Path
) -> None:
    (photos / "Brücken").rename(photos / "train")
    (photos / "Plätze").rename(photos / "validation")
    for n, folder in enumerate(("train", "validation")):
        rows = [f"{2 * n + k + 17}.jpg,{SENTENCES[2 * n + k]}" for k in (0, 1)]
        (photos / folder / "metadata.csv").write_text("\n".join(["file_name,text", *rows]))
    prepare(run_main, tmp_path / "to", "folder", photos)
    manifest = Manifest.load(tmp_path / "to")
    assert {name: split.images for name, split in manifest.splits.items()} == {"train": 2, "val": 2}
    assert captions_of(tmp_path / "to")["validation/19.jpg"] == (SENTENCES[2],)
    # Where it has no captions, `folder` has no options to name them: it says who has.
    table = photos / "metadata.csv"
    table.write_text("file_name,year\ntrain/17.jpg,1907\n")
    said = prepare(run_main, tmp_path / "no", "folder", photos, status=2)
    assert f"{table} has the columns file_name, year: name the column of captions" in said
    assert f"(options of `captioner prepare csv {table} --images {photos}`)" in said
    table.unlink()
    # What is called so and is no table hides no captions beside photos.
    for folder in ("train", "validation"):
        (photos / folder / "metadata.csv").rename(photos / folder / "metadata.xml")
    for path in photos.rglob("*.jpg"):
        path.with_suffix(".txt").write_text("ein Bild")
    prepare(run_main, tmp_path / "beside", "folder", photos)
    assert captions_of(tmp_path / "beside")["validation/19.jpg"] == ("ein Bild",)


def test_everything_that_was_left_out_stands_in_one_file(
    run_main: Run, photos: Path, tmp_path: Path
) -> None:
    whole, cut, copy, other = names(photos)
    (photos / cut).write_bytes((photos / cut).read_bytes()[:200])
    (photos / "Kopie.jpg").write_bytes((photos / whole).read_bytes())
    with ZipFile(photos / "download.zip", "w") as archive:  # what the photos were unpacked from
        archive.write(photos / whole, f"Sammlung/{whole}")
        archive.writestr("__MACOSX/._17.jpg", b"of the Finder")
    formulas = ["=ohne Zeile.jpg", "\n =ohne Zeile.jpg", "+1.jpg", "-1.jpg", "@SUM.jpg"]
    for name in formulas:
        Image.new("RGB", (32, 24), "white").save(photos / name)
    long, longest = (" ".join(["lang"] * count) for count in (23, 22))
    table = tmp_path / "Liste.csv"
    lines = [
        "Image;Text", f"{whole};{SENTENCES[0]}", f"{cut};{SENTENCES[1]}", f"{copy};", ";verloren",
        f"Kopie.jpg;{long}", "fort.jpg;nirgends zu finden", f"{other};{SENTENCES[2]}",
        f"{whole};...", f"{other};{longest}", f"{other};{long}",
    ]  # fmt: skip
    table.write_text("\n".join(lines))
    command = ("csv", table, "--images", photos, "--val", 0)
    said = prepare(run_main, tmp_path / "to", *command, status=1)
    problems = tmp_path / "to" / "problems.csv"
    assert f"\n{problems} lists all of them." in said
    assert problems.read_bytes().startswith(b"\xef\xbb\xbf")  # by which Excel knows UTF-8
    with problems.open(encoding="utf-8-sig", newline="") as file:
        found = {
            (one["problem"].split(":")[0], one["row"], one["file"]) for one in csv.DictReader(file)
        }
    expected = {
        ("corrupt image", "line 3", cut),
        ("empty caption", "line 4", copy),
        ("incomplete row", "line 5", "line 5 names no image"),
        ("copies of another photo", "line 6", "Kopie.jpg"),
        ("captions longer than 22 words", "line 6", "Kopie.jpg"),
        ("missing image", "line 7", "fort.jpg"),
        ("empty caption", "line 9", whole),
        ("captions longer than 22 words", "line 11", other),
        *(("photos without a row", "", f"'{name}") for name in formulas),
    }
    assert found == expected
    with problems.open(encoding="utf-8-sig", newline="") as file:
        assert csv.DictReader(file).fieldnames == ["row", "file", "problem"]
    # What is put right is no more in it, and goes with the last of them.
    said = prepare(run_main, tmp_path / "to", *command, "--skip-bad")
    assert f"note: {problems} lists every photo and row that these notes are about\n" in said
    assert captions_of(tmp_path / "to").keys() == {whole, "Kopie.jpg", other}


def test_photos_without_a_row_are_looked_for_where_the_others_lie(
    run_main: Run, photos: Path, tmp_path: Path
) -> None:
    table = tmp_path / "Liste.csv"
    rows = [f"Fotos/{name};{text}" for name, text in zip(names(photos), SENTENCES, strict=True)]
    table.write_text("\n".join(["Image;Text", *rows]))
    (tmp_path / "Urlaub").mkdir()
    for name in ("Fotos/ohne Zeile.jpg", "Urlaub/privat.jpg"):
        Image.new("RGB", (32, 24), "white").save(tmp_path / name)
    said = prepare(run_main, tmp_path / "to", "csv", table, "--val", 0.5)
    assert "Fotos/ohne Zeile.jpg" in said and "privat" not in said
