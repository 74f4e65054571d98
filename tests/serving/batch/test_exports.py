"""Conversion of records to outputs, and refused outputs."""

from __future__ import annotations

import csv
import json
from itertools import product
from pathlib import Path

import pytest

from captioner import Captioner, OutputError
from captioner.cli import main
from captioner_serving.batch import BatchConfig, caption_batch
from captioner_serving.batch.inputs.tables import table_names
from captioner_serving.batch.outputs.formats import read_records, write_records
from captioner_serving.batch.wording import Wording, sentence
from tests.conftest import ROOT
from tests.launcher import Run
from tests.node import run_module
from tests.serving.batch.conftest import draw, record_of, write_lines, write_run


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_an_output_that_was_edited_stays(tmp_path: Path, suffix: str) -> None:
    output = tmp_path / f"c{suffix}"
    write_run(output, record_of("a.jpg"))
    write_run(output, record_of("b.jpg"))  # resuming is no edit
    whole = output.read_bytes()
    for mine in (whole + b"a note of my own\n", whole.replace(b"b.jpg", b"B.jpg")):
        output.write_bytes(mine)
        with pytest.raises(OutputError, match="was changed since the run wrote it"):
            write_run(output, record_of("c.jpg"))
        assert output.read_bytes() == mine
    output.unlink()
    write_run(output, record_of("c.jpg"))
    assert output.exists()


def test_a_run_that_is_killed_before_the_new_table_replaces_the_old_one_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state has the digest of the new table, the old table is in place."""
    output = tmp_path / "c.csv"
    write_run(output, record_of("a.jpg"))
    replace = Path.replace

    def stop(path: Path, target: Path) -> Path:
        if target == output:
            raise KeyboardInterrupt
        return replace(path, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "replace", stop)
        write_run(output, record_of("b.jpg"))
    assert list(table_names(str(output), "image")) == ["a.jpg"]
    write_run(output, record_of("c.jpg"))
    assert list(table_names(str(output), "image")) == ["a.jpg", "b.jpg", "c.jpg"]


@pytest.mark.parametrize("plain", [True, False])
def test_any_text_comes_back_from_a_table_that_no_program_runs(tmp_path: Path, plain: bool) -> None:
    """Split at any separator, with or without quotation marks, no cell begins as a formula."""
    signs = [*"x';,\" \n|\t@\x1b\\\u2028", "=1+1", r"\x1b"]
    names = ["x;=1+1;.jpg", "\r=1", *map("".join, product(signs, repeat=3))]
    names += map("".join, product("',-+＋ a", repeat=4))
    texts = [name.replace("\x1b", "+").replace("\r", "-") for name in names]
    others = [{"caption": "@home", "score": -0.75}]
    output = tmp_path / "c.csv"
    with output.open("wb") as file:
        pairs = zip(names, texts, strict=True)
        records = (record_of(name, text, alternatives=others) for name, text in pairs)
        write_records(file, ".csv", records, plain=plain)
    for separator, quote in product(",;|\t", '"\0'):
        with output.open(encoding="utf-8", newline="") as file:
            rows = csv.reader(file, delimiter=separator, quotechar=quote)
            for cell in (cell for row in rows for cell in row):
                begins = cell.lstrip(' "\n\t\r\u2028')
                assert not begins.startswith(("=", "+", "@", "＋")), (cell, separator)
    wanted = texts if plain else [*map(sentence, texts)]
    assert [(r["image"], r["caption"]) for r in read_records(output)] == [
        *zip(names, wanted, strict=True)
    ]


TABLE = """
import { readFileSync } from "node:fs";
const { FORMATS } = await import(process.argv.at(-1));
const record = { caption: "a dog", score: -1, words: [], alternatives: [] };
const photos = JSON.parse(readFileSync(process.argv.at(-2))).map((text) =>
  ({ name: text, text, record, sentence: 0, reviewed: true }));
process.stdout.write(FORMATS.csv.make(photos));
"""


@pytest.mark.needs("node")
def test_any_text_comes_back_from_a_table_of_the_page(tmp_path: Path) -> None:
    texts = [*map("".join, product("',-+＋ a\x85\ufeff", repeat=4))]
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    module = (ROOT / "serving/captioner_serving/server/static/record.js").as_uri()
    table = run_module(TABLE, tmp_path, str(tmp_path / "texts.json"), module)
    (tmp_path / "page.csv").write_text(table, encoding="utf-8", newline="")
    found = [*read_records(tmp_path / "page.csv")]
    assert [record["corrected"] for record in found if record] == texts
    assert [record["image"] for record in found if record] == texts


def test_a_table_has_all_alternatives_keywords_and_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Parquet file is written in several parts, and can be an input."""
    from pyarrow import parquet

    monkeypatch.setattr("captioner_serving.batch.outputs.formats._ROWS", 2)
    others = [{"caption": text, "score": -0.75} for text in ("a dog", "the sea")]
    known = {"alternatives": others, "keywords": ["man", "sea"], "familiarity": 0.5, "trust": 0.25}
    records = [record_of("a.jpg", "a man", **known), *map(record_of, ("b.jpg", "c\udcff.jpg"))]
    write_lines(tmp_path / "r.jsonl", *records)
    for suffix in (".csv", ".parquet"):
        assert main(["convert", f"{tmp_path}/r.jsonl", "--to", f"{tmp_path}/c{suffix}"]) == 0
    with (tmp_path / "c.csv").open(newline="", errors="surrogateescape") as file:
        rows = list(csv.DictReader(file))
    assert rows[0] == {
        "image": "a.jpg", "caption": "A man.", "score": "-0.5", "model": "tiny 1",
        "alternatives": "A dog.\nThe sea.", "keywords": "man, sea", "familiarity": "0.5",
        "trust": "0.25", "review": "",
    }  # fmt: skip
    table = parquet.read_table(tmp_path / "c.parquet").to_pylist()
    names = list(table_names(f"{tmp_path}/c.parquet", "image"))
    assert [row["image"] for row in table] == names == ["a.jpg", "b.jpg", r"c\xff.jpg"]
    assert table[0] == {
        "image": "a.jpg", "caption": "a man", "score": -0.5, "model": "tiny 1",
        "alternatives": ["a dog", "the sea"], "keywords": ["man", "sea"], "familiarity": 0.5,
        "trust": 0.25, "review": None,
    }  # fmt: skip
    assert [rows[1]["trust"], table[1]["trust"]] == ["", None]


@pytest.mark.parametrize("template", [None, "{caption}"])
def test_captions_in_csv_and_xmp_are_sentences_without_a_template(
    tiny: Captioner, tmp_path: Path, template: str | None
) -> None:
    """Records, COCO results and text sidecars have the model's own words."""
    draw(1).save(tmp_path / "a.jpg")
    config = BatchConfig(wording=Wording(template=template), captions=2, sidecar="xmp")
    output = tmp_path / "c.csv"
    (made,) = caption_batch(tmp_path / "a.jpg", output=output, config=config, captioner=tiny)
    own, other = made["caption"], made["alternatives"][0]["caption"]
    assert own.islower() and own[-1].isalpha()
    wanted = (own, other) if template else (f"{own.capitalize()}.", f"{other.capitalize()}.")
    with output.open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["caption"], row["alternatives"]) == wanted
    assert f">{wanted[0]}<" in (tmp_path / "a.xmp").read_text()
    assert own in Path(f"{output}.journal.jsonl").read_text()
    more = ["--template", template] if template else []
    assert main(["convert", f"{output}.journal.jsonl", "--to", f"{tmp_path}/d.csv", *more]) == 0
    assert (tmp_path / "d.csv").read_bytes() == output.read_bytes()
    assert main(["convert", str(output), "--sidecar", "xmp", "--existing", "append", *more]) == 0
    assert (tmp_path / "a.xmp").read_text().count(wanted[0]) == 4  # said once in each place


def test_coco_ids_are_numbers_and_stems_or_positions(
    tmp_path: Path, tiny: Captioner, run_main: Run, run_batch: Run
) -> None:
    """Two cameras count from 1."""
    place = tmp_path / "c.json"

    def ids() -> list[int | str]:
        return [row["image_id"] for row in json.loads(place.read_text())]

    names = ("x/8.jpg", "COCO_val2014_000000391895.jpg", "x/cat.jpg", "dog.jpg")
    write_lines(tmp_path / "r.jsonl", *map(record_of, names))
    result = run_main("convert", tmp_path / "r.jsonl", "--to", place)
    assert ids() == [8, 391895, "cat", "dog"]
    assert result.returncode == 0 and "position" not in result.stderr
    twice = (tmp_path / "r.jsonl", tmp_path / "r.jsonl", "--to", place, "--overwrite")
    said = run_main("convert", *twice).stderr
    assert "8 captions" in said and "4 results, one for each photo" in said and len(ids()) == 4
    place.unlink()
    for number, name in enumerate(("100CANON/IMG_0001.JPG", "101CANON/IMG_0001.JPG", "cat.jpg")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        draw(number).save(tmp_path / name)
    result = run_batch(tmp_path, "--output", place)
    assert result.returncode == 0 and "each image_id is a position in the run" in result.stderr
    assert ids() == [1, 2, 3]
