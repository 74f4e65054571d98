"""What `captioner evaluate` reads and writes beside photos; captions that were made elsewhere."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from captioner import DataError
from captioner.vision.transform import Box
from captioner_training.evaluation.boxes import BoxedObject
from captioner_training.evaluation.caption_set import CaptionSet
from captioner_training.evaluation.predictions import (
    Predictions,
    Target,
    check_replaceable,
    read_predictions,
    write_predictions,
)
from captioner_training.evaluation.report import hash_split
from tests.launcher import Run
from tests.refusals import Refusals, check_refusals

SPLIT = [
    Target(id=7, name="seven.jpg", references=("A dog runs in the grass.", "the dog is running")),
    Target(id=8, name="eight.jpg", references=("Two cats sit on a mat.", "a pair of cats")),
    Target(id=9, name="nine.jpg", references=("A red ball.", "one ball on the floor")),
]


def write(path: Path, *entries: object) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in entries))
    return path


def captions(path: Path, *targets: Target) -> Path:
    images = [{"id": one.id, "file_name": one.name} for one in targets]
    notes = [{"image_id": one.id, "caption": text} for one in targets for text in one.references]
    return write(path, {"images": images, "annotations": notes})


def test_coco_results_and_records_give_the_same_captions(tmp_path: Path) -> None:
    said = ["a dog runs", "two cats", "a ball"]
    for name in ("results.json", "OTHER.JSON", "records.jsonl"):
        write_predictions(tmp_path / name, SPLIT, said, [-1.0, -2.0, -3.0])
        read = read_predictions(tmp_path / name, SPLIT)
        assert read.captions == said and read.problems == []
    for name in ("results.json", "OTHER.JSON"):  # what COCO's server takes
        results = json.loads((tmp_path / name).read_text())
        assert results[0] == {"image_id": 7, "caption": "a dog runs"}
    # With a mark of its byte order, and a character that Python takes for the end of a line.
    line = '{"image": "seven.jpg", "caption": "a dog\u2028runs"}\n'
    (tmp_path / "other.jsonl").write_text(line, encoding="utf-8-sig")
    read = read_predictions(tmp_path / "other.jsonl", SPLIT)
    assert read.captions == ["a dog\u2028runs", None, None]


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
    assert read.captions == ["a dog", " ", None]
    problems = "\n".join(read.problems)
    assert "already has one, skipped (first: 7)" in problems
    assert "not in the split, skipped (first: unknown.jpg)" in problems
    assert "without a word" in problems and "captioning the image failed" in problems
    assert "no caption for 1 of 3 images (first: nine.jpg)" in problems


def test_a_caption_is_not_assigned_to_a_photo_of_a_similar_name(tmp_path: Path) -> None:
    """Paths are compared from the end; ids and names are not mixed up."""
    split = [
        Target(id=1, name="a/1.jpg", references=("A dog.",)),
        Target(id=2, name="b/1.jpg", references=("A cat.",)),
        Target(id=3, name="20", references=("A cow.",)),
        Target(id=20, name="b/4.jpg", references=("A boat.",)),
    ]
    path = write(
        tmp_path / "out.jsonl",
        {"image": "/photos/b/1.jpg", "caption": "a cat"},
        {"image": "1.jpg", "caption": "which?"},
        {"image": "c/4.jpg", "caption": "another"},
        {"image": "d/4.jpg", "caption": "another"},
        {"image_id": 20, "caption": "a boat"},
        {"image": "20", "caption": "a cow"},
    )
    read = read_predictions(path, split)
    assert read.captions == [None, "a cat", "a cow", "a boat"]
    problems = "\n".join(read.problems)
    assert "2 captions whose image is not in the split, skipped (first: c/4.jpg)" in problems
    assert (
        "1 caption matching several images, skipped (first: 1.jpg: a/1.jpg or b/1.jpg)" in problems
    )
    for name in ("4.jpg", "elsewhere/4.jpg"):  # one path, one image of that file name
        (tmp_path / "end.jsonl").write_text(json.dumps({"image": name, "caption": "a boat"}))
        assert read_predictions(tmp_path / "end.jsonl", split).captions[3] == "a boat"


@pytest.mark.parametrize(
    ("form", "keys"),
    [
        ("{}.jpg", [1003, "1003", 1003.0, "1003.jpg"]),  # a prepared data set: ids are names
        ("100CANON/{}.JPG", [1003, "1003", "100CANON/1003.JPG"]),
        (
            "COCO_val2014_00000000{}.jpg",
            [1003, "1003", "000000001003", "COCO_val2014_000000001003"],
        ),
        ("00000000{}.jpg", [1003, "1003", "000000001003"]),  # COCO's names since 2017
        ("{}", [1003, "1003", 1003.0]),
    ],
)
def test_image_id_is_an_id_a_stem_or_the_number_of_a_stem(
    tmp_path: Path, form: str, keys: list[object]
) -> None:
    names = [form.format(number) for number in range(1000, 1008)]
    split = [Target(id=name, name=name, references=("A dog.",)) for name in names]
    for key in keys:
        path = write(tmp_path / "r.json", {"image_id": key, "caption": "a dog"})
        captions = read_predictions(path, split).captions
        assert [at for at, caption in enumerate(captions) if caption] == [3], key


def test_image_id_that_fits_several_images_is_refused_by_name(tmp_path: Path) -> None:
    split = [
        Target(id=name, name=name, references=("A dog.",))
        for name in ("a/1.jpg", "b/1.png", "IMG_0007.jpg", "DSC_0007.jpg", "12.jpg", "12")
    ]
    path = write(
        tmp_path / "r.jsonl",
        {"image_id": 1, "caption": "which?"},
        {"image_id": "7", "caption": "which?"},
        {"image_id": 12, "caption": "the id"},
    )
    read = read_predictions(path, split)
    assert read.captions == [None] * 5 + ["the id"]
    assert "2 captions matching several images, skipped (first: 1: a/1.jpg or b/1.png)" in str(
        read.problems
    )
    only = write(tmp_path / "only.json", {"image_id": 7, "caption": "which?"})
    with pytest.raises(DataError, match=r"7: IMG_0007\.jpg or DSC_0007\.jpg"):
        read_predictions(only, split)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "entry 1 is not a JSON object"),
        ('{"caption": "a"}', "line 1 names no image"),
        ('{"image_id": 7}', "line 1 has no caption"),
        ('{"image_id": 1, "caption": "a"}', "none of the 3 images"),
        ("", "none of the 3 images"),
        ("[" * 100_000, "neither a JSON list"),  # deeper than Python can read
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_predictions(path, SPLIT)


def test_captions_are_described_by_hand_counts() -> None:
    said = ["a dog", "a dog", "a b c a b c", ""]
    split = [Target(id=at, name="", references=("a",)) for at in range(4)]
    there = CaptionSet.from_predictions(Predictions(captions=[*said]), split)
    found = there.parts(official=False, training=None, boxes=None)["captions"]()
    assert isinstance(found, dict)
    assert found["words"] == {"mean": 2.5, "shortest": 0, "longest": 6}
    assert (found["distinct"], found["vocabulary"], found["empty"]) == (75, 4, 1)
    assert (found["repeats_three_words"], found["novel"]) == (25, None)
    one = CaptionSet.from_predictions(Predictions(captions=["a man"]), split[:1])
    boxes = {0: [BoxedObject("", Box(0, 0, 1, 1))]}  # of a file without categories: a person
    for known, share in ((None, 100), (boxes, 0)):
        parts = one.parts(official=False, training=None, boxes=known)
        facts: Any = parts["captions"]()
        assert facts["hallucination"]["CHAIR_i"] == share
    assert [row.invented for row in one.rows()] == [("person",)]


def test_captions_without_spaces_are_scored_by_characters() -> None:
    """A caption that is a reference but for a character shares most of it."""
    split = [
        Target(id=1, name="1.jpg", references=("一只狗在草地上跑",)),
        Target(id=2, name="2.jpg", references=("两只猫坐在桌子上",)),
    ]
    read = Predictions(captions=["一只狗在草地上", "两只猫坐在桌子上"])
    parts = CaptionSet.from_predictions(read, split).parts(
        official=False, training=split, boxes=None
    )
    scores, facts = parts["nltk"](), parts["captions"]()
    assert isinstance(scores, dict) and isinstance(facts, dict)
    assert scores["BLEU-1"] == pytest.approx(100 * math.exp(1 - 16 / 15))  # brevity: 15 of 16
    assert facts["novel"] == 50 and facts["words"]["mean"] == 7.5


def test_the_command_scores_what_can_be_scored(run_main: Run, tmp_path: Path) -> None:
    references, right = captions(tmp_path / "captions.json", *SPLIT), tmp_path / "right.json"
    write_predictions(right, SPLIT, [one.references[0] for one in SPLIT], [0.0] * 3)
    options = ("--captions", references, "--score", right)
    result = run_main("evaluate", *options, "--training", references, "--json")
    report = json.loads(result.stdout)
    assert (result.returncode, result.stderr) == (0, "")
    assert report["nltk"]["BLEU-1"] == pytest.approx(100)
    assert report["nltk"]["intervals"]["ROUGE-L"] == pytest.approx([100, 100])
    assert report["nltk"]["human"]["BLEU-1"] < 60
    assert report["split"]["images"] == 3 and report["split"]["references"] == 6
    assert report["split"]["hash"] == hash_split(SPLIT) and report["captions"]["novel"] == 0

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
    assert "checkpoint" not in text and "CIDEr" in text and "{" not in text
    refused = run_main("evaluate", *options, "--compare", folder / "report.json")
    assert refused.returncode == 1 and "captions of some images are missing" in refused.stderr


def test_the_hash_of_a_split_depends_on_ids_and_references_in_any_order() -> None:
    turned = [
        Target(id=str(one.id), name="", references=one.references[::-1]) for one in SPLIT[::-1]
    ]
    assert hash_split(turned) == hash_split(SPLIT)
    for change in ({"id": 6}, {"references": ("A dog runs in the grass.",)}):
        assert hash_split([replace(SPLIT[0], **change), *SPLIT[1:]]) != hash_split(SPLIT)


TARGETS = [Target(id=at, name=f"{at}.jpg", references=("a dog",)) for at in (1, 2)]
SIDE = "--boxes others.json --corpus less.json --training broken.json --compare split.json"
IN_SIDE = (
    "others.json has boxes for 1 images, but for none of this split",
    "--corpus less.json lacks 1 of the 2 images of this split (first: 2.jpg)",
    "broken.json is not JSON",
    "split.json is not a report.json",
)
PHOTOS = "--captions split.json --images photos --checkpoint tiny.safetensors"


@pytest.mark.parametrize(
    ("line", "status", "messages"),
    [
        ("--captions split.json --score s.json --calibration", 2, ["cannot be used with --score"]),
        # All that is wrong is said at once.
        (f"{PHOTOS} {SIDE}", 1, IN_SIDE),
        (
            f"--captions split.json --score none.json {SIDE}", 1,
            [*IN_SIDE, "there is no file none.json"],
        ),
        (
            f"{PHOTOS} {SIDE} --predictions no/p.json --checkpoint split.json", 1,
            [
                "there is no folder no",
                "split.json is cut off, damaged or not a safetensors file",
                *IN_SIDE,
            ],
        ),
        (f"{PHOTOS} --save no/4.safetensors", 1, ["there is no folder no"]),
        (f"{PHOTOS} --save tiny.safetensors", 1, ["tiny.safetensors exists: choose"]),
        (f"{PHOTOS} --save known.safetensors", 1, ["known.trust.safetensors exists"]),
        (f"{PHOTOS} --save p.jsonl --predictions p.jsonl", 2, ["--predictions are the same file"]),
        (f"{PHOTOS} --save 4.safetensors --beam-size 2", 2, ["--save cannot be used with --beam"]),
        (f"{PHOTOS} --version 4", 2, ["--version requires --save FILE"]),
        ("--captions split.json --score none.json --save 4.safetensors", 2, ["--save needs a"]),
        # A split that cannot be read keeps no other file from being looked at.
        (
            "--captions broken.json --images photos --corpus less.json --boxes none.json "
            "--checkpoint tiny.safetensors", 1,
            ["broken.json is not JSON", "there is no file none.json"],
        ),
        # Nothing is written over but predictions and reports.
        *(
            (f"{PHOTOS} --predictions {name}", 1, [f"{name} exists and is not a file of pred"])
            for name in ("photos/1.jpg", "batch.jsonl")
        ),
        (f"{PHOTOS} --report mine", 1, ["mine/report.html exists and is not a report"]),
        (f"{PHOTOS} --report other", 1, ["other/report.json exists and is"]),
        (f"{PHOTOS} --report note.json", 1, ["note.json cannot be written: "]),
    ],
)  # fmt: skip
def test_refusals(
    run_main: Run,
    tmp_path: Path,
    tiny_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    status: int,
    messages: list[str],
) -> None:
    monkeypatch.chdir(tiny_file.parent)
    captions(Path("split.json"), *TARGETS)
    captions(Path("less.json"), TARGETS[0])
    box = {"image_id": 9, "bbox": [0, 0, 4, 4]}
    size = {"id": 9, "width": 8, "height": 8}
    write(Path("others.json"), {"images": [size], "annotations": [box]})
    for name, text in {
        "broken.json": "{", "note.json": '{"a": 1}', "photos/1.jpg": "a photo", "photos/2.jpg": "",
        "batch.jsonl": '{"image": "1.jpg", "caption": "a", "words": []}\n',
        "mine/report.html": "notes", "other/report.json": "{}", "known.trust.safetensors": "",
    }.items():  # fmt: skip
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    result = run_main("evaluate", *line.split())
    lines = result.stderr.splitlines()
    assert (result.returncode, result.stdout) == (status, "")
    assert len(lines) == len(messages), lines
    for message in messages:
        assert sum(message in line for line in lines) == 1, lines
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


OF_A_CHECKPOINT = (
    "--deletion", "--unlike d", "--checkpoint c", "--beam-size 2", "--style s", "--predictions p",
)  # fmt: skip
USE: Refusals = {
    **{
        f"evaluate --captions c.json --score s.json {option}": (
            2, f"{option.split()[0]} needs a checkpoint and cannot be used with --score"
        )
        for option in OF_A_CHECKPOINT
    },
    "evaluate": (2, "name either a folder DIR, or --captions FILE"),
    "evaluate data --captions c.json": (2, "name either a folder DIR, or --captions FILE"),
    "evaluate --captions c.json": (2, "--captions requires --images"),
    "evaluate data --open": (2, "--open requires --report DIR"),
    "evaluate data --save s --style long": (2, "--save cannot be used with --beam-size or --style"),
}  # fmt: skip


def test_options_that_do_not_fit_together_are_refused(run_main: Run, tmp_path: Path) -> None:
    check_refusals(run_main, USE, tmp_path)


def test_predictions_of_an_earlier_run_may_be_replaced(tmp_path: Path) -> None:
    for name in ("empty.jsonl", "some.jsonl", "some.json"):
        (tmp_path / name).touch()
        for caption in ("a dog", "a cat"):
            check_replaceable(tmp_path / name)
            write_predictions(tmp_path / name, TARGETS[:1], [caption], [-1.0])
            assert caption in (tmp_path / name).read_text()
        assert "a dog" not in (tmp_path / name).read_text()
