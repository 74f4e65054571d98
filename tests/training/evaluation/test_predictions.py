"""Captions made elsewhere, scored through the command; what is said of a file that is not right."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from captioner import DataError
from captioner_training.evaluation.elsewhere import CaptionsElsewhere
from captioner_training.evaluation.facts import describe_captions, hash_split
from captioner_training.evaluation.predictions import (
    Target,
    read_predictions,
    write_predictions,
)
from tests import launcher

Run = Callable[..., CompletedProcess[str]]

SPLIT = [
    Target(id=7, name="seven.jpg", references=("A dog runs in the grass.", "the dog is running")),
    Target(id=8, name="eight.jpg", references=("Two cats sit on a mat.", "a pair of cats")),
    Target(id=9, name="nine.jpg", references=("A red ball.", "one ball on the floor")),
]


@pytest.fixture
def captions(tmp_path: Path) -> Path:
    path = tmp_path / "captions.json"
    images = [{"id": one.id, "file_name": one.name} for one in SPLIT]
    notes = [{"image_id": one.id, "caption": text} for one in SPLIT for text in one.references]
    path.write_text(json.dumps({"images": images, "annotations": notes}))
    return path


def write(path: Path, *entries: object) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in entries))
    return path


def test_coco_results_and_records_are_read_alike(tmp_path: Path) -> None:
    said = ["a dog runs", "two cats", "a ball"]
    for name in ("results.json", "records.jsonl"):
        write_predictions(tmp_path / name, SPLIT, said, [-1.0, -2.0, -3.0])
        read = read_predictions(tmp_path / name, SPLIT)
        assert read.captions == said and read.problems == []
    results = json.loads((tmp_path / "results.json").read_text())
    assert results[0] == {"image_id": 7, "caption": "a dog runs"}  # what COCO's server takes


def test_each_mistake_is_one_sentence_and_the_rest_is_scored(tmp_path: Path) -> None:
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
    told = "\n".join(read.problems)
    assert "has one already, left out: the first counts (7 the first)" in told
    assert "not in the split, left out (unknown.jpg the first)" in told
    assert "without a word" in told and "say the image failed" in told
    assert "no caption for 1 of 3 images (nine.jpg the first)" in told


def test_a_caption_goes_to_no_namesake(tmp_path: Path) -> None:
    """Paths meet at their ends; ids are no names, and names no ids."""
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
    assert "3 captions whose image is not in the split, left out (1.jpg the first)" in str(
        read.problems
    )
    for name in ("4.jpg", "elsewhere/4.jpg"):  # one path, one image of that file name
        (tmp_path / "end.jsonl").write_text(json.dumps({"image": name, "caption": "a boat"}))
        assert read_predictions(tmp_path / "end.jsonl", split).captions[3] == "a boat"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "entry 1 is not a JSON object"),
        ('{"caption": "a"}', "line 1 names no image"),
        ('{"image_id": 7}', "line 1 has no caption"),
        ("a dog", "neither a JSON list"),
        ('{"image_id": 1, "caption": "a"}', "none of the 3 images"),
        ("", "none of the 3 images"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_predictions(path, SPLIT)


def test_captions_of_a_part_are_scored_and_said_to_be_a_part(
    captions: Path, tmp_path: Path
) -> None:
    path = write(tmp_path / "part.jsonl", {"image_id": 7, "caption": "a dog"})
    done = launcher.run("evaluate", "--captions", captions, "--score", path)
    assert done.returncode == 1 and "no caption for 2 of 3 images" in done.stderr


def test_the_hash_names_the_split_and_not_its_order() -> None:
    assert hash_split(SPLIT) == hash_split(SPLIT[::-1])
    assert hash_split(SPLIT) != hash_split(SPLIT[1:])


def test_captions_are_described_by_hand_counts() -> None:
    said = [["a", "dog"], ["a", "dog"], ["a", "b", "c", "a", "b", "c"], []]
    found = describe_captions(said, references=[[["a"]]] * 4)
    deviation = pytest.approx(2.179449)  # the root of 19 / 4
    assert found["words"] == {"mean": 2.5, "deviation": deviation, "shortest": 0, "longest": 6}
    assert (found["distinct"], found["vocabulary"], found["empty"]) == (75, 4, 1)
    assert (found["repeats_three_words"], found["novel"]) == (25, None)


def test_captions_without_spaces_are_scored_by_characters(tmp_path: Path) -> None:
    """A caption that is a reference but for a character shares most of it."""
    split = [
        Target(id=1, name="1.jpg", references=("一只狗在草地上跑",)),
        Target(id=2, name="2.jpg", references=("两只猫坐在桌子上",)),
    ]
    path = write(
        tmp_path / "out.jsonl",
        {"image": "1.jpg", "caption": "一只狗在草地上"},
        {"image": "2.jpg", "caption": "两只猫坐在桌子上"},
    )
    there = CaptionsElsewhere(read_predictions(path, split), split)
    parts = there.parts(official=False, training=split, boxes=None)
    scores, facts = parts["nltk"](), parts["captions"]()
    assert isinstance(scores, dict) and isinstance(facts, dict)
    assert scores["BLEU-1"] == pytest.approx(100 * math.exp(1 - 16 / 15))  # brevity: 15 of 16
    assert facts["novel"] == 50 and facts["words"]["mean"] == 7.5


def test_the_command_scores_what_can_be_scored(
    run_captioner: Run, captions: Path, tmp_path: Path
) -> None:
    right = tmp_path / "right.json"
    write_predictions(right, SPLIT, [one.references[0] for one in SPLIT], [0.0] * 3)
    options = ("--captions", captions, "--score", right)
    result = run_captioner("evaluate", *options, "--training", captions, "--json")
    report = json.loads(result.stdout)
    assert (result.returncode, result.stderr) == (0, "")
    assert report["nltk"]["BLEU-1"] == pytest.approx(100)
    assert report["nltk"]["intervals"]["ROUGE-L"] == pytest.approx([100, 100])
    assert report["nltk"]["human"]["BLEU-1"] < 60
    assert report["split"]["images"] == 3 and report["split"]["references"] == 6
    assert report["split"]["hash"] == hash_split(SPLIT) and report["captions"]["novel"] == 0

    part = write(tmp_path / "part.jsonl", {"image_id": 7, "caption": "a dog runs"})
    result = run_captioner("evaluate", "--captions", captions, "--score", part, "--json")
    report = json.loads(result.stdout)
    assert result.returncode == 1 and report["scored"] == 1
    assert "no caption for 2 of 3 images" in result.stderr and report["problems"]
    assert report["nltk"]["CIDEr"] > 0  # the document frequencies are of the whole split
    result = run_captioner("evaluate", *options, "--calibration")
    assert result.returncode == 2 and "--score reads captions alone" in result.stderr
