"""What `captioner evaluate` reads and writes beside photos; captions that were made elsewhere."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pandas import DataFrame

from captioner import DataError
from captioner_training.data.images import CaptionedImage
from captioner_training.evaluation.evaluate import describe_captions, hash_split
from captioner_training.evaluation.predictions import Captions, read_predictions
from tests.launcher import Run
from tests.refusals import Refusals, check_refusals
from tests.training.evaluation.test_trust import image

SPLIT = [
    image("A dog runs in the grass.", "the dog is running", id=7, name="seven.jpg"),
    image("Two cats sit on a mat.", "a pair of cats", id=8, name="eight.jpg"),
    image("A red ball.", "one ball on the floor", id=9, name="nine.jpg"),
]


def write(path: Path, *entries: object) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in entries))
    return path


def captions(path: Path, *targets: CaptionedImage) -> Path:
    images = [{"id": one.id, "file_name": one.name} for one in targets]
    notes = [{"image_id": one.id, "caption": text} for one in targets for text in one.captions]
    return write(path, {"images": images, "annotations": notes})


def results(path: Path, split: Sequence[CaptionedImage], said: Sequence[str]) -> Path:
    """Write captions as COCO results."""
    pairs = zip(split, said, strict=True)
    path.write_text(json.dumps([{"image_id": one.id, "caption": text} for one, text in pairs]))
    return path


def texts(read: Captions, split: list[CaptionedImage] = SPLIT) -> list[str | None]:
    """Return the caption of each image of a split."""
    said = dict(zip([image.id for image in read.images], read.texts, strict=True))
    return [said.get(image.id) for image in split]


def test_coco_results_and_outputs_of_the_batch_are_read(tmp_path: Path) -> None:
    """A null caption has no words. A photo whose sidecar failed has both caption and error."""
    said = ["a dog runs", "two cats", "a ball"]
    read = read_predictions(results(tmp_path / "R.JSON", SPLIT, said), SPLIT)
    assert read.texts == said and read.facts["problems"] == []
    rows = [
        {"image": "photos/seven.jpg", "caption": "a dog", "error": "output-error"},
        {"image": "photos/eight.jpg", "caption": None, "error": None},
        {"image": "photos/nine.jpg", "caption": None, "error": "image-error"},
    ]
    write(tmp_path / "r.jsonl", *rows)
    frame = DataFrame(rows)
    frame.to_csv(tmp_path / "r.csv", index=False)
    frame.to_parquet(tmp_path / "r.parquet")
    for name in ("r.jsonl", "r.csv", "r.parquet"):
        assert texts(read_predictions(tmp_path / name, SPLIT)) == ["a dog", "", None], name
    # With a mark of its byte order, and a character that Python takes for the end of a line.
    line = '{"image": "seven.jpg", "caption": "a dog\u2028runs"}\n'
    (tmp_path / "other.jsonl").write_text(line, encoding="utf-8-sig")
    read = read_predictions(tmp_path / "other.jsonl", SPLIT)
    assert texts(read) == ["a dog\u2028runs", None, None]


def test_each_kind_of_bad_entry_is_reported_and_the_rest_is_read(tmp_path: Path) -> None:
    path = write(
        tmp_path / "out.jsonl",
        {"image": "photos/seven.jpg", "caption": "a dog"},
        {"image_id": 7, "caption": "a cat"},
        {"image": "unknown.jpg", "caption": "a boat"},
        {"image": "eight.jpg", "caption": " "},
        {"image": "nine.jpg", "error": {"type": "image-error"}},
    )
    read = read_predictions(path, SPLIT)
    assert texts(read) == ["a dog", " ", None]
    problems = "\n".join(read.facts["problems"])
    assert "already has one, skipped (first: 7)" in problems
    assert "not in the split or not unique, skipped (first: unknown.jpg)" in problems
    assert "without a word" in problems and "captioning the image failed" in problems
    assert "no caption for 1 of 3 images (first: nine.jpg)" in problems


@pytest.mark.parametrize(
    ("form", "keys"),
    [
        ("{}.jpg", [1003, "1003", 1003.0, "1003.jpg"]),  # a prepared data set: ids are names
        ("100CANON/{}.JPG", [1003, "1003", "100CANON/1003.JPG"]),
        ("COCO_val2014_00000000{}.jpg", [1003, "000000001003", "COCO_val2014_000000001003"]),
        ("00000000{}.jpg", [1003, "1003", "000000001003"]),  # COCO's names since 2017
        ("{}", [1003, "1003", 1003.0]),
    ],
)
def test_image_id_is_an_id_a_stem_or_the_number_of_a_stem(
    tmp_path: Path, form: str, keys: list[object]
) -> None:
    names = [form.format(number) for number in range(1000, 1008)]
    split = [image("A dog.", id=name, name=name) for name in names]
    for key in keys:
        path = write(tmp_path / "r.json", {"image_id": key, "caption": "a dog"})
        assert read_predictions(path, split).images == [split[3]], key


def test_a_stem_or_number_of_several_images_names_none_of_them(tmp_path: Path) -> None:
    split = [
        image("A dog.", id=name, name=name)
        for name in ("a/1.jpg", "b/1.png", "IMG_0007.jpg", "DSC_0007.jpg", "12.jpg", "12")
    ]
    path = write(
        tmp_path / "r.jsonl",
        {"image_id": 1, "caption": "which?"},
        {"image": "photos/1.jpg", "caption": "which?"},
        {"image_id": "7", "caption": "which?"},
        {"image_id": 12, "caption": "the id"},
        {"image": "b/1.png", "caption": "the name"},
        {"image": "photos/DSC_0007.JPG", "caption": "the stem"},
    )
    read = read_predictions(path, split)
    assert texts(read, split) == [None, "the name", None, "the stem", None, "the id"]
    assert "3 captions whose image is not in the split or not unique, skipped (first: 1)" in str(
        read.facts["problems"]
    )
    only = write(tmp_path / "only.json", {"image_id": 7, "caption": "which?"})
    with pytest.raises(DataError, match="none of the 6 images"):
        read_predictions(only, split)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "entry 1 is not a JSON object"),
        ('{"caption": "a"}', "entry 1 names no image"),
        ('{"image_id": 7}', "entry 1 has no caption"),
        ('{"image_id": 1, "caption": "a"}', "none of the 3 images"),
        ("", "none of the 3 images"),
        ('[\n{"image_id": 1}\n{"image_id": 2}\n]', "line 3 is not JSON"),
        ("[" * 100_000, "is not JSON"),  # deeper than Python can read
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(DataError, match=message):
        read_predictions(tmp_path / "file", SPLIT)


def test_captions_are_described_by_hand_counts() -> None:
    found = describe_captions([["a", "dog"], ["a", "dog"], [*"abcabc"], []])
    assert found["words"] == {"mean": 2.5}
    assert (found["distinct"], found["vocabulary"], found["empty"]) == (75, 4, 1)
    assert found["repeats_three_words"] == 25


def test_captions_without_spaces_are_scored_by_characters(run_main: Run, tmp_path: Path) -> None:
    """A caption that is a reference but for a character shares most of it."""
    split = [
        image("一只狗在草地上跑", id=1, name="1.jpg"),
        image("两只猫坐在桌子上", id=2, name="2.jpg"),
    ]
    said = results(tmp_path / "said.json", split, ["一只狗在草地上", "两只猫坐在桌子上"])
    references = captions(tmp_path / "captions.json", *split)
    command = ("evaluate", "--captions", references, "--score", said)
    report = json.loads(run_main(*command, "--json").stdout)
    expected = 100 * math.exp(1 - 16 / 15)  # brevity: 15 of 16
    assert report["nltk"]["BLEU-1"] == pytest.approx(expected)
    assert report["captions"]["words"]["mean"] == 7.5
    # People have no column if images have one reference.
    table = run_main(*command).stdout
    assert [line.split() for line in table.splitlines() if line.startswith(" " * 35)] == [["model"]]


def test_the_command_scores_what_can_be_scored(run_main: Run, tmp_path: Path) -> None:
    references = captions(tmp_path / "captions.json", *SPLIT)
    right = results(tmp_path / "right.json", SPLIT, [one.captions[0] for one in SPLIT])
    options = ("--captions", references, "--score", right)
    result = run_main("evaluate", *options, "--json")
    report = json.loads(result.stdout)
    assert (result.returncode, result.stderr) == (0, "")
    assert report["nltk"]["BLEU-1"] == pytest.approx(100)
    assert report["nltk"]["intervals"]["ROUGE-L"] == pytest.approx([100, 100])
    assert report["nltk"]["human"]["BLEU-1"] < 60
    assert report["split"]["images"] == 3 and report["split"]["references"] == 6
    assert report["split"]["hash"] == hash_split(SPLIT)

    part = write(tmp_path / "part.jsonl", {"image_id": 7, "caption": "a dog runs"})
    folder = tmp_path / "report"
    command = ("evaluate", "--captions", references, "--score", part, "--json", "--report", folder)
    result = run_main(*command)
    report = json.loads(result.stdout)
    assert result.returncode == 1 and report["scored"] == 1
    assert "no caption for 2 of 3 images" in result.stderr and report["problems"]
    assert report["nltk"]["CIDEr"] > 0  # the document frequencies are of the whole split
    table = run_main("evaluate", "--captions", references, "--score", part).stdout
    text = " ".join(table.split())
    assert f"captions {part}, only 1 of the images: not a score of the split" in text
    assert "checkpoint" not in text and "{" not in text
    assert "CIDEr-D – (needs 5 images)" in text
    refused = run_main("evaluate", *options, "--compare", folder / "report.json")
    assert refused.returncode == 1 and "captions of some images are missing" in refused.stderr


def test_the_hash_of_a_split_depends_on_ids_and_references_in_any_order() -> None:
    turned = [image(*one.captions[::-1], id=str(one.id)) for one in SPLIT[::-1]]
    assert hash_split(turned) == hash_split(SPLIT)
    for change in ({"id": 6}, {"captions": ("A dog runs in the grass.",)}):
        assert hash_split([replace(SPLIT[0], **change), *SPLIT[1:]]) != hash_split(SPLIT)


TARGETS = [image("a dog", id=at, name=f"{at}.jpg") for at in (1, 2)]
PHOTOS = "--captions split.json --images photos --checkpoint tiny.safetensors"
# What follows `captioner evaluate`.
REFUSED: Refusals = {
    f"{PHOTOS} --boxes others.json": (1, "boxes for 1 images, but for none of this split"),
    f"{PHOTOS} --compare split.json": (1, "split.json is not a report.json"),
    f"{PHOTOS} --compare deep.json": (1, "deep.json is not JSON"),
    f"{PHOTOS} --compare nowhere.safetensors": (1, "nowhere.safetensors"),
    "--captions split.json --score s.json --compare bundled": (2, "takes report.json files"),
    "--captions split.json --score none.json": (1, "none.json"),
    f"{PHOTOS} --compare bundled hf:a/b --calibration": (2, "needs Captioner checkpoints, not hf:"),
    f"{PHOTOS} --checkpoint split.json": (1, "split.json is cut off, damaged or not"),
    "--captions broken.json --images photos --checkpoint tiny.safetensors": (1, "is not JSON"),
    # Nothing is written over but reports.
    f"{PHOTOS} --report mine": (1, "mine/report.html exists and is not a report"),
    f"{PHOTOS} --report other": (1, "other/report.json exists and is"),
    f"{PHOTOS} --compare other/report.json --report other": (2, "would overwrite an input of this"),
    f"{PHOTOS} --report note.json": (1, "note.json cannot be written: "),
    **{
        f"--captions split.json --score s.json {option}": (2, f"{option.split()[0]} needs a che")
        for option in (
            "--deletion", "--calibration", "--checkpoint c", "--beam-size 2", "--style s",
        )
    },
    f"{PHOTOS} --beam-size 0": (2, "beam_size 0 is out of range"),
    "no --checkpoint tiny.safetensors": (1, "there is no folder"),
    "--captions no.json --images photos --checkpoint tiny.safetensors": (1, "no file no.json"),
    "": (2, "name either a folder DIR, or --captions FILE"),
    "--captions c.json": (2, "--captions requires --images"),
}  # fmt: skip


def test_refusals_change_no_file(
    run_main: Run, tiny_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tiny_file.parent)
    captions(Path("split.json"), *TARGETS)
    box = {"image_id": 9, "bbox": [0, 0, 4, 4]}
    size = {"id": 9, "width": 8, "height": 8}
    write(Path("others.json"), {"images": [size], "annotations": [box]})
    for name, text in {
        "broken.json": "{", "note.json": '{"a": 1}', "photos/1.jpg": "a photo", "photos/2.jpg": "",
        "mine/report.html": "notes", "other/report.json": "{}", "deep.json": "[" * 100_000,
    }.items():  # fmt: skip
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    refused = {f"evaluate {line}": wanted for line, wanted in REFUSED.items()}
    check_refusals(run_main, refused, tiny_file.parent)
