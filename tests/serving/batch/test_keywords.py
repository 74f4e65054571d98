"""Keywords: the words of a caption that are probably right, in every output."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from captioner import Captioner, ConfigError
from captioner_serving.batch import BatchConfig, caption_batch
from captioner_serving.batch.wording import Wording
from tests.conftest import make_trust
from tests.launcher import Run
from tests.refusals import check_refusals
from tests.serving.batch.conftest import Photos, read_lines, read_tags, record_of, write_lines
from tests.serving.batch.test_xmp import HEAD, LIGHTROOM, TAIL

WORDS = [
    {"word": "a", "probability": 0.9},
    {"word": "Man", "probability": 0.9, "trust": 0.8},
    {"word": "and", "probability": 0.9},
    {"word": "dog", "probability": 0.9, "trust": 0.5499},
    {"word": "sea", "probability": 0.9, "trust": 0.55},
    {"word": "man", "probability": 0.9, "trust": 0.8},
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with three photos and their records; one photo is unfamiliar."""
    monkeypatch.chdir(tmp_path)
    records = [
        record_of("a.jpg", "a man and dog sea man", words=WORDS),
        record_of("b.jpg", "a group", words=WORDS[:1]),
        record_of("c.jpg", "a man and dog sea man", words=WORDS, familiarity=0.001),
    ]
    write_lines(tmp_path / "r.jsonl", *records)
    for name in ("a.jpg", "b.jpg", "c.jpg"):
        (tmp_path / name).write_bytes(b"a photo")
    return tmp_path


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ((), ["man", "sea"]),
        (("0.5",), ["man", "dog", "sea"]),
        (("0.81",), []),
        (("1",), []),
        (("0", "--replace", "man=person", "--replace", "dog sea=beach"), ["person"]),
        (("--replace", "a man=a golden, retriever"), ["man", "sea"]),  # the second man stays
        (("--replace", "man=", "--template", "no sea: {caption}"), ["sea"]),
    ],
)
def test_convert_chooses_words_by_their_trust(
    folder: Path, run_main: Run, options: tuple[str, ...], wanted: list[str]
) -> None:
    """Words of the sentence before an earlier wording, too."""
    said = {"unworded": "a man and dog sea man", "words": WORDS}
    worded = record_of("d.jpg", "a person and dog sea person", **said)
    write_lines(folder / "s.jsonl", worded)
    command = ("convert", "r.jsonl", "s.jsonl", "--to", "k.jsonl", "--keywords")
    assert run_main(*command, *options).returncode == 0
    chosen = [line["keywords"] for line in read_lines(folder / "k.jsonl")]
    assert chosen == [wanted, [], [], wanted]


@pytest.mark.needs("exiftool")
def test_keywords_are_a_column_a_comma_list_and_a_bag(folder: Path, run_main: Run) -> None:
    (folder / "b.xmp").write_text(LIGHTROOM)
    for more in (("--to", "k.csv"), ("--sidecar", "txt"), ("--sidecar", "caption")):
        assert run_main("convert", "r.jsonl", "--keywords", *more).returncode == 0
    with (folder / "k.csv").open(newline="") as file:
        assert [row["keywords"] for row in csv.DictReader(file)] == ["man, sea", "", ""]
    assert [(folder / f"{name}.txt").read_text() for name in "abc"] == ["man, sea\n", "\n", "\n"]
    assert (folder / "a.caption").read_text() == "a man and dog sea man\n"
    (folder / "a.txt").write_text("holiday\nMan, x\n")
    run_main("convert", "r.jsonl", "--keywords", "--sidecar", "txt", "--existing", "append")
    assert (folder / "a.txt").read_text() == "holiday, Man, x, sea\n"
    # A table that was edited has the keywords of its column.
    (folder / "k.csv").write_text((folder / "k.csv").read_text().replace("man, sea", "man,Beach"))
    for _ in range(2):
        result = run_main("convert", "k.csv", "--sidecar", "xmp", "--existing", "append")
        assert result.returncode == 0, result.stderr
    subjects = [tags["XMP-dc:Subject"] for tags in read_tags(folder / "a.xmp", folder / "b.xmp")]
    assert subjects == [["man", "Beach"], ["holiday & sea", 2024]]
    # A photo whose keywords were deleted has none.
    run_main("convert", "k.csv", "--sidecar", "txt", "--existing", "overwrite")
    assert [(folder / f"{name}.txt").read_text() for name in "ab"] == ["man, Beach\n", "\n"]


@pytest.mark.needs("exiftool")
def test_keywords_of_others_stay_as_exiftool_reads_them(folder: Path, run_main: Run) -> None:
    wanted = {
        "": ["man", "sea"],
        "<d:subject/>": ["man", "sea"],
        "<d:subject>SEA</d:subject>": ["SEA", "man"],
        "<d:subject><r:Bag><r:li>Sea</r:li><r:li>x</r:li></r:Bag></d:subject>": ["Sea", "x", "man"],
        "<d:subject><r:Seq><r:li>x</r:li></r:Seq></d:subject>": ["x", "man", "sea"],
        "<d:subject><r:Alt><r:li>x</r:li></r:Alt></d:subject>": ["x", "man", "sea"],
        ' d:subject="sea"': ["sea", "man"],
    }
    sidecars = [folder / f"{number}.xmp" for number in range(len(wanted))]
    for sidecar, old in zip(sidecars, wanted, strict=True):
        inside, attribute = (old, "") if old.startswith("<") else ("", old)
        sidecar.write_text(f"{HEAD}{attribute}>{inside}</r:Description>{TAIL}")
        sidecar.with_suffix(".jpg").write_bytes(b"a photo")
    said = "a man and dog sea man"
    write_lines(
        folder / "r.jsonl", *(record_of(f"{p.stem}.jpg", said, words=WORDS) for p in sidecars)
    )
    for existing in ("skip", "overwrite", "append"):
        options = ("--keywords", "--sidecar", "xmp", "--existing", existing)
        run_main("convert", "r.jsonl", *options)
        subjects = [tags["XMP-dc:Subject"] for tags in read_tags(*sidecars)]
        assert subjects == list(wanted.values())


def test_a_subject_that_is_no_list_stays(folder: Path, run_main: Run) -> None:
    odd = LIGHTROOM.replace("<rdf:li>2024</rdf:li>", "<rdf:li><rdf:Bag/></rdf:li>")
    (folder / "a.xmp").write_text(odd)
    result = run_main("convert", "r.jsonl", "--keywords", "--sidecar", "xmp")
    assert result.returncode == 1
    assert "a.xmp has a dc:subject that is not a list; it was not changed" in result.stderr
    assert (folder / "a.xmp").read_text() == odd


def test_batch_writes_keywords_of_models_with_trust_alone(
    tiny: Captioner, photos: Photos, tmp_path: Path, run_main: Run, lively_file: Path
) -> None:
    folder, output = photos(3), tmp_path / "c.jsonl"
    sure = Captioner(tiny.checkpoint, device="cpu", trust=make_trust())
    config = BatchConfig(keywords=0.5, wording=Wording(replace=(("dog", "hound"),)))
    records = list(caption_batch(folder, output=output, config=config, captioner=sure))
    assert any(line["keywords"] for line in records)
    for line in read_lines(output):
        words = [word["word"] for word in line["words"] if word.get("trust", 0) >= 0.5]
        renamed = ["hound" if word == "dog" else word for word in words]
        assert line["keywords"] == list(dict.fromkeys(renamed))
    with pytest.raises(ConfigError, match="keywords needs a trust file, but the checkpoint tiny"):
        list(caption_batch(folder, config=config, captioner=tiny))
    (photo,), model = photos(1, name="one").iterdir(), f"--checkpoint {lively_file}"
    refused = {
        f"caption {photo} --keywords {model}": (2, "--keywords needs --json"),
        f"caption {photo} --json --keywords {model}": (2, "keywords needs a trust file"),
        f"caption --keywords {photo} {model}": (2, "is not between 0 and 1"),
        f"convert {output} --keywords nan --to x.csv": (2, "nan is not between 0 and 1"),
    }
    check_refusals(run_main, refused, tmp_path)


def test_records_without_trust_or_words_are_a_sentence(folder: Path, run_main: Run) -> None:
    for name, words, said in (
        ("none", WORDS[:1], "--keywords needs words with trust, and these records have none"),
        ("damaged", [3], "the record of a.jpg has no words to choose keywords from"),
    ):
        write_lines(folder / f"{name}.jsonl", record_of("a.jpg", words=words))
        result = run_main("convert", f"{name}.jsonl", "--keywords", "--to", "x.jsonl")
        assert result.returncode > 0 and said in result.stderr
    assert not (folder / "x.jsonl").exists()


def test_caption_prints_keywords(
    run_main: Run, photo: Path, tiny: Captioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    sure = Captioner(tiny.checkpoint, device="cpu", trust=make_trust())
    monkeypatch.setattr(Captioner, "from_pretrained", lambda *_, **__: sure)
    line = json.loads(run_main("caption", photo, "--json", "--keywords", "0").stdout)
    assert line["keywords"] == list(dict.fromkeys(word["word"] for word in line["words"]))
    assert "keywords" not in json.loads(run_main("caption", photo, "--json").stdout)
