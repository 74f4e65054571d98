"""Scripts of the page without a browser: records and zip files."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from captioner.caption import Caption
from captioner_serving.server.records import served_record
from tests.conftest import ROOT
from tests.node import run_module

STATIC = ROOT / "serving" / "captioner_serving" / "server" / "static"
CHOOSE = """
const [module, record] = process.argv.slice(-2);
const { chooseSentence, marksOf } = await import(module);
const of = (sentence) => ({ record: JSON.parse(record), sentence });
const chosen = [0, 1, 2].map((number) => chooseSentence(JSON.parse(record), number));
console.log(JSON.stringify({ chosen, marks: [0, 1, 2].map((number) => marksOf(of(number))) }));
"""

ZIP = """
import { writeFileSync } from "node:fs";
const [module, files, to] = process.argv.slice(-3);
const { zip } = await import(module);
const blobs = JSON.parse(files).map(([name, text]) => ({ name, blob: new Blob([text]) }));
writeFileSync(to, new Uint8Array(await (await zip(blobs)).arrayBuffer()));
"""


def sentence(text: str, trust: float | None, *trusts: float | None) -> dict[str, Any]:
    words = [
        {"word": word, "probability": 0.5} | ({} if trust is None else {"trust": trust})
        for word, trust in zip(text.split(), trusts, strict=True)
    ]
    whole = {} if trust is None else {"trust": trust}
    return {"caption": text, "score": -1.0, "words": words} | whole


@pytest.mark.needs("node")
def test_another_sentence_has_the_trust_and_warning_that_the_library_gives_it(
    tmp_path: Path,
) -> None:
    record = sentence("a cat sits", 0.004, None, 0.2, 0.9) | {
        "alternatives": [
            sentence("a dog", 0.9, None, 0.9),
            sentence("two of them", None, *[None] * 3),
        ]
    }
    caption = Caption.from_record(record)
    expected = [
        served_record(caption.choose(number), name="a.jpg", attention=False) for number in range(3)
    ]
    assert ["doubt" in chosen for chosen in expected] == [True, False, False]
    printed = run_module(CHOOSE, tmp_path, (STATIC / "record.js").as_uri(), json.dumps(expected[0]))
    assert json.loads(printed) == {"chosen": expected, "marks": [["doubtful"], [], []]}


@pytest.mark.needs("node")
def test_a_zip_file_holds_names_of_any_letters(tmp_path: Path) -> None:
    files = [["Müller.jpg", "größe"], ["日本/犬.txt", ""], ["a.txt", "x" * 70_000]]
    run_module(ZIP, tmp_path, (STATIC / "zip.js").as_uri(), json.dumps(files), "files.zip")
    with zipfile.ZipFile(tmp_path / "files.zip") as archive:
        assert archive.testzip() is None
        assert [[name, archive.read(name).decode()] for name in archive.namelist()] == files
