"""Scripts of the page without a browser: records and texts."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from captioner.caption import Caption
from captioner_serving.batch.outputs.formats import DEFUSED
from captioner_serving.server.records import served_record
from tests.conftest import ROOT
from tests.node import run_module

STATIC = ROOT / "serving" / "captioner_serving" / "server" / "static"
CHOOSE = """
const [module, record] = process.argv.slice(-2);
const { chooseSentence, dashedOf, doubtOf, stateOf, worstFirst } = await import(module);
const of = (sentence) => ({ record: JSON.parse(record), sentence });
const chosen = [0, 1, 2].map((number) => chooseSentence(JSON.parse(record), number));
const states = [0, 1, 2].map((number) => stateOf(of(number)));
const doubts = chosen.map((one, at) => doubtOf(one, states[at]));
const photos = [of(1), { record: { ...JSON.parse(record), trust: 0.8 }, sentence: 0 }];
const order = worstFirst(photos).map((photo) => photos.indexOf(photo));
console.log(JSON.stringify({ chosen, states, doubts, order }));
"""

RECORDS = """
const [module, photos] = process.argv.slice(-2);
const { FORMATS, marksOf, trainingFiles } = await import(module);
const listed = JSON.parse(photos);
const [copy, whole] = ["image/jpeg", "image/png"].map((type) => new File(["photo"], "x", { type }));
const files = listed.flatMap((photo, at) => trainingFiles(photo, at ? whole : copy, at + 1));
const captions = files.filter(({ name }) => name.endsWith(".txt")).map(({ blob }) => blob.text());
console.log(JSON.stringify({
  csv: FORMATS.csv.make(listed),
  marks: listed.map(marksOf), names: files.map(({ name }) => name),
  captions: await Promise.all(captions),
}));
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
    record = sentence("a cat sits on two red mats", 0.004, None, 0.3, None, None, 0.1, 0.2, 0.9) | {
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
    assert json.loads(printed) == {
        "chosen": expected,
        "states": ["likely wrong", "likely right", ""],
        # The two words with the lowest trust; words without trust are never named.
        "doubts": ["Likely wrong: check “two” and “red”.", "Likely right.", ""],
        "order": [1, 0],  # of trusts of 0.9 and 0.8
    }


@pytest.mark.needs("node")
def test_downloads_are_safe_in_spreadsheets_and_folders(tmp_path: Path) -> None:
    record = {**sentence("a dog", 0.9, None, 0.9), "score": -0.5, "review": True}
    record["alternatives"] = [sentence("-1 dogs", 0.5, None, 0.5)]
    names = ["a--><b>.png", "größe 1:2", "@x.jpg", "+1.tif"]
    photos = [{"name": name, "record": record, "sentence": 1} for name in names]
    photos[2] |= {"text": "'=1, -1", "reviewed": True}
    photos[3] |= {"text": "Tab\t@x", "reviewed": True}
    answer = run_module(RECORDS, tmp_path, (STATIC / "record.js").as_uri(), json.dumps(photos))
    made = json.loads(answer)
    assert made["csv"] == (  # with the mark by which spreadsheets know UTF-8
        "\ufeffimage,alt,caption,score,trust,marks,reviewed,caption_by,error\r\n"
        """"a--><b>.png","'-1 dogs.","'-1 dogs",-1,0.5,MARKS,"false","model",""\r\n"""
        """"größe 1:2","'-1 dogs.","'-1 dogs",-1,0.5,MARKS,"false","model",""\r\n"""
        """"'@x.jpg","''=1, '-1","'-1 dogs",-1,0.5,"","true","person",""\r\n"""
        """"'+1.tif","Tab\t'@x","'-1 dogs",-1,0.5,"","true","person",""\r\n"""
    ).replace("MARKS", '"likely wrong, untrusted"')
    rows = csv.reader(made["csv"].splitlines())
    assert [DEFUSED.sub(r"\1", row[1]) for row in rows][3:] == ["'=1, -1", "Tab\t@x"]
    assert made["marks"] == [["likely wrong", "untrusted"]] * 2 + [[], []]
    assert made["names"] == [
        "001-a--__b_.jpg", "001-a--__b_.txt", "002-größe 1_2", "002-größe 1_2.txt",
        "003-@x.jpg", "003-@x.txt", "004-+1.tif", "004-+1.txt",
    ]  # fmt: skip
    assert made["captions"] == ["-1 dogs\n", "-1 dogs\n", "'=1, -1\n", "Tab\t@x\n"]
