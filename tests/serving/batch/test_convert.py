"""Other outputs of records that are there."""

from __future__ import annotations

import csv
import json
import re
import zlib
from pathlib import Path
from typing import Any

import pytest

from captioner.cli import main
from captioner_serving.batch.files import RunFiles
from captioner_serving.batch.journal import Journal
from captioner_serving.batch.wording import Wording
from tests.launcher import Run
from tests.refusals import Refusals, check_refusals
from tests.serving.batch.conftest import read_lines, record_of, write_lines, write_run
from tests.serving.batch.test_xmp import LIGHTROOM


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with two photos, their records, and one of a photo that failed."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).write_bytes(b"a photo")
    failed = {"image": "c.jpg", "error": {"code": "image_empty", "detail": "c.jpg is empty"}}
    write_lines(tmp_path / "r.jsonl", record_of("a.jpg"), failed, record_of("b.jpg", "a cat"))
    return tmp_path


def test_the_command_makes_a_table_and_sidecars(folder: Path, run_main: Run) -> None:
    wording = ("--replace", "man=person", "--template", "Photo: {caption}")
    result = run_main("convert", "r.jsonl", "--to", "c.csv", "--sidecar", "txt", *wording)
    assert (result.returncode, result.stdout) == (0, "")
    assert result.stderr == (
        "2 captions; 1 failed photo skipped; written to c.csv; 2 sidecars written\n"
    )
    with (folder / "c.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["image"], row["caption"], row["alternatives"]) for row in rows] == [
        ("a.jpg", "Photo: a person and a dog", "Photo: the person"),
        ("b.jpg", "Photo: a cat", "Photo: the person"),
    ]
    assert rows[0]["model"] == "tiny 1"
    assert (folder / "a.txt").read_text() == "Photo: a person and a dog\n"
    assert (folder / "a.jpg").read_bytes() == b"a photo"


def test_new_wording_starts_from_the_models_sentence(folder: Path) -> None:
    assert main(["convert", "r.jsonl", "--to", "one.jsonl", "--replace", "man=person"]) == 0
    first, second = read_lines(folder / "one.jsonl")
    assert (first["caption"], first["unworded"]) == ("a person and a dog", "a man and a dog")
    assert first["alternatives"] == [
        {"caption": "the person", "score": -0.75, "unworded": "the man"}
    ]
    assert "unworded" not in second  # nothing was replaced in it
    write_lines(folder / "s.jsonl", record_of("a.jpg", "a woman, a man (old) and a human"))
    # Literal texts; the first = separates.
    old = ("--replace", "man (old)=senior", "--replace", "human=x=y")
    assert main(["convert", "s.jsonl", "--to", "s.csv", *old, "--replace", "man=person"]) == 0
    assert "A woman, a senior and a x=y." in (folder / "s.csv").read_text()
    assert main(["convert", "one.jsonl", "--to", "two.jsonl", "--template", "{caption}!"]) == 0
    assert read_lines(folder / "two.jsonl")[0]["caption"] == "a man and a dog!"
    assert main(["convert", "one.jsonl", "--to", "same.jsonl"]) == 0  # no wording: as they stand
    assert (folder / "same.jsonl").read_bytes() == (folder / "one.jsonl").read_bytes()
    assert Wording().apply(first) == read_lines(folder / "r.jsonl")[0]


PAGE = """\ufeffimage,alt,caption,score,trust,marks,reviewed,caption_by,error
"a.jpg","Two friends, and a dog","a man and a dog",-0.5,0.5,"","true","person",""
"b.jpg","","a cat",-0.5,0.5,"","true","person",""
"c.jpg","A cow.","a cow",-0.5,0.9,"","true","model",""
"d.jpg","A tree.","a tree",-0.5,0.1,"untrusted","false","model",""
"e.jpg","","",,,"","","","e.jpg is empty"
"f.jpg","eBay\vlogo","a logo",-0.5,0.9,"","TRUE","model",""
"g.jpg","A sea.","a sea",-0.5,0.9,"unfamiliar","false","model",""
"h.jpg","A sea.","a sea",-0.5,0.9,"unfamiliar","TRUE","model",""
"i.jpg","Mine",,,,"","true","person","i.jpg is empty"
"j.jpg","一只狗.","一只狗",-0.5,0.9,"","true","model",""
"""
"""The table of the page; f.jpg was edited in a spreadsheet, j.jpg has a script without capitals."""


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_the_texts_of_a_person_reach_the_sidecars(folder: Path, run_main: Run, kind: str) -> None:
    """Corrected, decorative, accepted, to review, failed with and without a text, unfamiliar."""
    (folder / "page.csv").write_text(PAGE)
    for name in "abcdefghij":
        (folder / f"{name}.jpg").write_bytes(b"a photo")
    write_lines(
        folder / "page.jsonl",
        record_of("a.jpg", corrected="Two friends, and a dog", caption_by="person", review=True),
        record_of("b.jpg", "a cat", corrected="", caption_by="person"),
        record_of("c.jpg", "a cow", corrected="A cow.", reviewed=True, caption_by="model"),
        record_of("d.jpg", "a tree", review=True, caption_by="model"),
        {"image": "e.jpg", "error": {"type": "image-empty", "detail": "e.jpg is empty"}},
        record_of("f.jpg", "a logo", corrected="eBay\vlogo", caption_by="person", reviewed=True),
        record_of("g.jpg", "a sea", unfamiliar=True, reviewed=False, caption_by="model"),
        record_of("h.jpg", "a sea", unfamiliar=True, reviewed=True, caption_by="model"),
        {"image": "i.jpg", "error": {}, "corrected": "Mine", "caption_by": "person"},
        record_of("j.jpg", "一只狗", reviewed=True, caption_by="model"),
    )
    options = ("--root", ".", "--sidecar", "xmp", "--replace", "dog=cat")
    result = run_main("convert", f"page.{kind}", *options)
    assert result.returncode == 0, result.stderr
    for count in ("3 by a person", "1 decorative skipped", "2 to review skipped"):
        assert count in result.stderr
    texts = {"a": "Two friends, and a dog", "c": "A cow.", "f": "eBay logo", "h": "A sea."}
    texts |= {"i": "Mine", "j": "一只狗"}
    found = {path.stem: path.read_text() for path in folder.glob("*.xmp")}
    assert sorted(found) == sorted(texts)
    assert all(f">{text}<" in found[name] for name, text in texts.items())


@pytest.mark.parametrize("kind", ["xmp", "txt"])
def test_a_correction_of_an_older_text_is_counted_or_overwrites_it(
    folder: Path, run_main: Run, kind: str
) -> None:
    for name in "ab":
        (folder / f"{name}.{kind}").write_text(LIGHTROOM if kind == "xmp" else "mine")
    accepted = record_of("b.jpg", corrected="A cat.", reviewed=True, caption_by="model")
    options = ("convert", "p.jsonl", "--sidecar", kind, "--language", "de", "--existing")
    for text in ("eins", "zwei"):
        write_lines(folder / "p.jsonl", record_of("a.jpg", corrected=text), accepted)
        before = (folder / f"a.{kind}").read_text()
        result = run_main(*options, "skip")
        assert "1 by a person not written" in result.stderr
        assert "--existing overwrite" in result.stderr
        assert kind == "xmp" or (folder / f"a.{kind}").read_text() == before
        assert "by a person not written" not in run_main(*options, "overwrite").stderr
        assert text in (folder / f"a.{kind}").read_text()
        assert "by a person not written" not in run_main(*options, "skip").stderr


def test_no_other_photo_of_the_same_name_gets_a_text(folder: Path, run_main: Run) -> None:
    for name in ("c.jpg", "d.jpg_original"):
        (folder / name).write_bytes(b"another")
    (folder / "d.jpg").write_bytes(b"changed by exiftool")
    own, other = (f"7-{zlib.crc32(data):x}" for data in (b"a photo", b"another"))
    contents = {"a": own, "b": other, "c": "999999-deadbeef", "d": other}
    write_lines(
        folder / "p.jsonl", *(record_of(f"{k}.jpg", content=v) for k, v in contents.items())
    )
    result = run_main("convert", "p.jsonl", "--sidecar", "txt")
    assert result.returncode == 1 and "2 sidecars written; 2 not written" in result.stderr
    assert "b.jpg is not the photo that was captioned" in result.stderr
    assert "restore b.jpg_original" in result.stderr
    assert sorted(path.name for path in folder.glob("*.txt")) == ["a.txt", "d.txt"]


def test_blank_captions_and_those_to_review_get_no_sidecar(folder: Path, run_main: Run) -> None:
    (folder / "blank.txt").write_text("mine")
    values = {"": 1, "FALSE": 1, "no": 1, "0": 1, "True": 0, "yes": 0, "1": 0}
    rows = ["image,caption,score,review\n", "blank.jpg, ,-1,\n"]
    for number, value in enumerate(values):
        (folder / f"{number}.jpg").touch()
        rows.append(f"{number}.jpg,a dog,-1,{value}\n")
    (folder / "c.csv").write_text("".join(rows))
    result = run_main("convert", "c.csv", "--sidecar", "txt", "--existing", "overwrite")
    assert result.returncode == 0 and "1 without a caption skipped" in result.stderr
    assert (folder / "blank.txt").read_text() == "mine"
    assert [(folder / f"{n}.txt").exists() for n in range(len(values))] == [*values.values()]


def test_a_pattern_may_match_the_other_files_of_a_run(folder: Path, run_main: Run) -> None:
    failed = {"image": "c.jpg", "error": {"detail": "c.jpg is empty"}}
    write_lines(folder / "r.jsonl.errors.jsonl", failed)
    write_lines(folder / "r.jsonl.run.json", {"settings": {}})
    write_lines(folder / "s.jsonl", record_of("s.jpg"))
    names = sorted(path.name for path in folder.glob("*.json*"))  # as a shell gives them
    result = run_main("convert", *names, "--to", "c.jsonl")
    assert result.returncode == 0, result.stderr
    assert [one["image"] for one in read_lines(folder / "c.jsonl")] == ["a.jpg", "b.jpg", "s.jpg"]
    assert result.stderr.startswith("3 captions; 1 failed photo skipped")
    # None of them is overwritten.
    over = {
        f"convert r.jsonl --to {name} --overwrite": (2, name)
        for name in ("r.jsonl.errors.jsonl", "r.jsonl.run.json")
    }
    check_refusals(run_main, over, folder)


def test_a_missing_photo_is_named_and_other_sidecars_are_written(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lines(
        folder / "r.jsonl", record_of("t.tar/x.jpg"), record_of("n" * 300), record_of("a.jpg")
    )
    assert main(["convert", "r.jsonl", "--sidecar", "caption"]) == 1
    said = capsys.readouterr().err
    assert "captioner: there is no photo t.tar/x.jpg for a sidecar" in said
    assert "1 sidecar written; 2 not written" in said
    assert (folder / "a.caption").read_text() == "a man and a dog\n"
    assert main(["convert", "r.jsonl", "--sidecar", "caption", "--existing", "skip"]) == 1
    assert "0 sidecars written; 1 sidecar unchanged" in capsys.readouterr().err


def test_no_sidecar_is_written_outside_of_the_root(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Records may be untrusted and name any file on the disk as their photo."""
    root, elsewhere = folder / "root", folder / "root-private"
    for place in (root / "deep", elsewhere):
        place.mkdir(parents=True)
        (place / "a.jpg").write_bytes(b"a photo")
    (root / "way").symlink_to(elsewhere)
    (root / "c.jpg").symlink_to(elsewhere / "a.jpg")  # beside which there is a place
    (elsewhere / "a.txt").write_text("mine")
    outside = (f"{elsewhere}/a.jpg", "../root-private/a.jpg", "deep/../../a.jpg", "way/a.jpg")
    inside = (f"{root}/deep/../deep/a.jpg", "c.jpg")
    write_lines(folder / "r.jsonl", *map(record_of, (*outside, *inside)))
    arguments = ["convert", "r.jsonl", "--sidecar", "txt", "--existing", "overwrite"]
    assert main([*arguments, "--root", "root"]) == 1
    *errors, summary = capsys.readouterr().err.splitlines()
    for error, name in zip(errors, outside, strict=True):
        assert error.startswith(f"captioner: {name} is outside the folder root: ")
    assert "; 2 sidecars written; " in summary and summary.endswith("; 4 not written")
    assert (elsewhere / "a.txt").read_text() == "mine" and not (folder / "a.txt").exists()
    assert (root / "deep/a.txt").is_file() and (root / "c.txt").is_file()
    assert main(arguments) == 1  # without a root, names are what the records say
    assert (elsewhere / "a.txt").read_text() == "a man and a dog\n"


def spreadsheet(path: Path, delimiter: str, encoding: str) -> None:
    """Save a table as spreadsheets do: a mark, their delimiter, decimal commas, empty rows."""
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    with path.open("w", newline="", encoding=encoding) as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow([*rows[0], "checked by"])
        writer.writerows(
            [*row[:2], row[2].replace(".", ","), *row[3:], "Jürgen"] for row in rows[1:]
        )
        writer.writerow([""] * len(rows[0]))


@pytest.mark.parametrize(
    ("delimiter", "encoding"),
    [("", ""), (";", "utf-8-sig"), ("\t", "utf-16"), (";", "cp1252"), ("|", "utf-8")],
)
def test_captions_edited_in_a_table_become_sidecars(
    folder: Path, delimiter: str, encoding: str
) -> None:
    odd = "-ü\udce9 1,5;=2.jpg"  # formulas for a spreadsheet, and bytes that are no text
    if delimiter:  # of whose writers none keeps such bytes
        odd = odd.replace("\udce9", "")
    (folder / odd).write_bytes(b"a photo")
    write_run(folder / "c.csv", record_of("a.jpg"), record_of(odd, score=-1.25))
    with (folder / "c.csv").open(newline="", errors="surrogateescape") as file:
        rows = list(csv.reader(file))
    assert rows[2][0] == "'" + odd.replace(";=", ";'=")
    rows[1][1], rows[2][1] = "ein Hund, groß; müde", "'+ says the ‘cat’"
    with (folder / "c.csv").open("w", newline="", errors="surrogateescape") as file:
        csv.writer(file).writerows(rows)
    if delimiter:
        spreadsheet(folder / "c.csv", delimiter, encoding)
    assert main(["convert", "c.csv", "--sidecar", "xmp", "--language", "de"]) == 0
    assert '<rdf:li xml:lang="de">Ein Hund, groß; müde.</rdf:li>' in (folder / "a.xmp").read_text()
    template = ("--template", "{caption} {score}")  # a brace is a character
    assert main(["convert", "c.csv", "--sidecar", "txt", *template]) == 0
    said = (folder / odd).with_suffix(".txt").read_text()
    assert said == "+ says the ‘cat’ {score}\n"


def damaged(image: str, caption: str = "a dog", **more: Any) -> str:
    return json.dumps(record_of(image, caption, **more))


DAMAGED = {
    "no column": ("image;caption\n", "has no column score"),
    "no image": ("image,caption,score\n,a dog,-0.5\n", "line 2 is not a caption record: image"),
    "nan": ("image,caption,score\na.jpg,a dog,nan\n", "line 2 is not a caption record: caption"),
    "torn line": ('{"image": "a.jpg", "capt', "line 4 is an incomplete record"),
    "no name": (damaged("a\0.jpg"), "image is missing"),
    "no number": (damaged("a.jpg", score="high"), "score or alternatives"),
    "control character": (damaged("a.jpg", "a\x1b"), "or alternatives"),
    "alternative": (damaged("a.jpg", alternatives=[{}]), "or alternatives"),
    "no model": (damaged("a.jpg", model=None), "model missing"),
    "correction": (damaged("a.jpg", corrected=1), "corrected missing or invalid"),
    "keywords": (damaged("a.jpg", keywords=["a,b"]), "keywords missing or invalid"),
}


@pytest.mark.parametrize(("content", "message"), DAMAGED.values(), ids=DAMAGED)
def test_what_is_damaged_is_named_and_nothing_is_made(
    folder: Path, run_main: Run, content: str, message: str
) -> None:
    name = "c.csv" if re.search("column|line 2", message) else "r.jsonl"
    with (folder / name).open("a") as file:
        file.write(content)
    check_refusals(run_main, {f"convert {name} --sidecar txt": (1, message)}, folder)


REFUSED: Refusals = {
    "convert r.jsonl": (2, "no output: add --to"),
    "convert a.jpg --to c.csv": (2, "a.jpg has no records"),
    "convert r.jsonl --to link.jsonl --overwrite": (2, "an input of this command"),
    "convert r.jsonl --to old.csv": (1, "old.csv exists: choose"),
    "convert r.jsonl --to c.xlsx": (2, "it must end in .jsonl, .csv, .parquet, .json"),
    "convert t.csv --to c.json": (2, "t.csv does not have the complete records"),
    "convert t.csv --sidecar json": (2, "leave out --sidecar json"),
    "convert t.csv --sidecar txt --keywords": (2, "leave out --keywords"),
    "convert r.jsonl --to no/c.csv": (1, "there is no folder"),
    "convert gone.jsonl --to c.csv": (1, "gone.jsonl cannot be read"),
    "convert r.jsonl --to c.csv --replace man": (2, "write OLD=NEW"),
}


def test_what_cannot_be_done_is_refused_in_a_sentence(folder: Path, run_main: Run) -> None:
    (folder / "old.csv").write_text("mine")
    (folder / "link.jsonl").symlink_to("r.jsonl")
    check_refusals(run_main, REFUSED, folder)


def test_convert_is_refused_while_a_run_holds_the_records(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Journal(RunFiles(Path("c.jsonl")), {}):
        assert main(["convert", "c.jsonl", "--sidecar", "txt"]) == 1
    assert "another run is writing to c.jsonl" in capsys.readouterr().err
