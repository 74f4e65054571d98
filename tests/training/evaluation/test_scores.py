"""Scores compared with pycocoevalcap, nltk and hand calculations; human scores; Java errors."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from captioner import DataError
from captioner.vocabulary import tokenize
from captioner_training.evaluation.bootstrap import mean_table, summary
from captioner_training.evaluation.calibration import reliability
from captioner_training.evaluation.java import meteor, tokenize_ptb
from captioner_training.evaluation.scores import (
    common_words,
    human_tables,
    official_scores,
    score_tables,
)
from captioner_training.evaluation.words import hallucination, named_categories, words_of
from captioner_training.losses.cider import CiderD
from tests.launcher import Run
from tests.training.evaluation.test_predictions import captions, results
from tests.training.evaluation.test_trust import image

WORDS = ["a", "b", "c", "d", "e", "f"]
COCO = Path(os.environ.get("CAPTIONER_DATA", "nowhere")) / "coco" / "captions_val.json"


def made_up(images: int = 60) -> tuple[list[list[list[str]]], list[list[str]]]:
    """Make sentences of few words, so that n-grams of all orders are shared."""
    chance = np.random.default_rng(0)

    def sentence() -> list[str]:
        return [str(word) for word in chance.choice(WORDS, size=chance.integers(4, 12))]

    references = [[sentence() for _ in range(chance.integers(1, 6))] for _ in range(images)]
    return references, [sentence() for _ in range(images)]


def test_on_the_same_tokens_scores_are_pycocoevalcaps_and_nltks() -> None:
    from nltk.translate.bleu_score import corpus_bleu  # takes a second to import
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge

    references, captions = made_up()
    ours = {name: one.value() for name, one in score_tables(references, captions).items()}
    wanted = {at: [" ".join(one) for one in each] for at, each in enumerate(references)}
    given = {at: [" ".join(one)] for at, one in enumerate(captions)}
    theirs, _ = Bleu(4).compute_score(wanted, given, verbose=0)
    for order in (1, 2, 3, 4):
        weights = tuple(1 / order if at < order else 0.0 for at in range(4))
        nltk = corpus_bleu(references, captions, weights=weights)
        assert ours[f"BLEU-{order}"] / 100 == pytest.approx(theirs[order - 1], abs=1e-6)
        assert ours[f"BLEU-{order}"] / 100 == pytest.approx(nltk, abs=1e-6)
    theirs, _ = Rouge().compute_score(wanted, given)
    assert ours["ROUGE-L"] / 100 == pytest.approx(theirs, abs=1e-6)
    theirs, _ = Cider().compute_score(wanted, given)
    assert ours["CIDEr"] / 100 == pytest.approx(theirs, abs=1e-6)


def test_two_words_outside_the_corpus_are_different_words() -> None:
    cider = CiderD([[["a", "dog"]], [["two", "cats"]]])
    pairs = cider.score([[["zebra"]], [["zebra"]]], [[["giraffe"]], [["zebra"]]])
    assert pairs[:, 0].tolist() == pytest.approx([0, 2.5])  # one of four orders


def test_empty_captions_score_nothing() -> None:
    tables = score_tables([[["a", "dog"]], [["two", "cats"]]], [[], []])
    assert all(abs(one.value()) < 1e-3 for one in tables.values())
    assert common_words([], ["a"]) == 0 and common_words(list("abcd"), list("bxd")) == 2


def test_the_interval_of_a_mean_is_that_of_the_normal_distribution() -> None:
    values = np.random.default_rng(1).normal(50, 10, size=400)
    found = summary({"mean": mean_table(values)})
    assert found["mean"] == pytest.approx(values.mean())
    half = 1.96 * values.std() / 20  # the standard error of 400 values
    distances = np.abs(np.subtract(found["intervals"]["mean"], values.mean()))
    assert distances == pytest.approx([half, half], rel=0.12)
    same = summary({"mean": mean_table(np.full(9, 3.0), scale=100)})
    assert same == {"mean": pytest.approx(300), "intervals": {"mean": pytest.approx([300, 300])}}


def test_people_are_scored_as_captions_against_the_other_references() -> None:
    references, _ = made_up()
    several = [each for each in references if len(each) > 1]
    found = human_tables(references, partial(score_tables, corpus=references))
    sums: dict[str, np.ndarray] = {}
    for turn in range(5):
        said = [each[turn % len(each)] for each in several]
        others = [
            [one for at, one in enumerate(each) if at != turn % len(each)] for each in several
        ]
        tables = score_tables(others, said, corpus=references)
        for name, table in tables.items():
            sums[name] = sums.get(name, 0) + table.rows.sum(axis=0)
    assert found.keys() == tables.keys()
    for name, table in tables.items():
        assert found[name].value() == pytest.approx(float(table.score(sums[name])), rel=1e-9), name
    assert human_tables([[["a", "dog"]], [["two", "cats"]]], score_tables) == {}  # nobody else's


@pytest.mark.skipif(not COCO.is_file(), reason="COCO's captions are not here")
def test_people_reach_what_is_published_of_them() -> None:
    references = defaultdict(list)
    for one in json.loads(COCO.read_text())["annotations"]:
        references[one["image_id"]].append(tokenize(one["caption"]))
    whole = list(references.values())
    found = summary(human_tables(whole, partial(score_tables, corpus=whole)))
    assert found["BLEU-4"] == pytest.approx(19.9, abs=3)
    assert found["ROUGE-L"] == pytest.approx(47.3, abs=2)
    low, high = found["intervals"]["BLEU-4"]
    assert low < found["BLEU-4"] < high


@pytest.mark.needs("java")
@pytest.mark.slow
def test_official_scores_of_right_captions_and_of_people(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a locale that writes 0,5 for 0.5, as everywhere."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Duser.language=de -Duser.country=DE")
    references = [["A red dog runs.", "The dog is running."], ["Two cats sit\non a mat."]]
    right: dict[str, Any] = official_scores(references, ["a red dog runs", "two cats sit on a mat"])
    assert right["BLEU-4"] == pytest.approx(100)  # every n-gram is in a reference
    assert right["METEOR"] == pytest.approx(100)
    # What METEOR prints for the two captions of the dog together.
    assert right["human"]["METEOR"] == pytest.approx(21.309425006298893)
    assert right["intervals"]["METEOR"] == pytest.approx([100, 100])


def test_meteor_of_statistics_is_what_meteor_prints_for_them() -> None:
    printed = {
        "304 298 42 53 166 166 26 26 0 0 0 0 0 0 0 0 8 8 0 0 137 200 200": 30.08837059953472,
        "9 4 1 1 3 3 1 1 0 0 0 0 0 0 0 0 0 0 0 0 4 4 4": 32.6530612244898,
        "4 4 1 1 3 3 1 1 0 0 0 0 0 0 0 0 0 0 0 0 0 4 4": 100,
        "8 8 3 3 2 2 0 0 0 0 0 0 0 0 0 0 1 1 2 2 4 5 5": 21.309425006298893,
        "5 3 2 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0": 0,
    }
    rows = np.array([line.split() for line in printed], np.float64)
    assert meteor(rows) == pytest.approx([*printed.values()], rel=1e-12)


def test_a_java_that_is_missing_or_crashes_is_a_one_line_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DataError, match="install a Java runtime"):
        official_scores([["a dog"]], ["a dog"])
    program = tmp_path / "java"
    program.write_text("#!/bin/sh\nread line\necho 'a dog'\necho out of memory >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(DataError, match=r"status 3 after 1 of 2 lines: out of memory"):
        tokenize_ptb(["a dog", "a cat"])


def test_a_crash_of_meteor_affects_only_meteor(
    run_main: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is a line with its reason in the table, and status 1, also for a part of the split."""
    program = tmp_path / "java"  # a tokenizer that splits at spaces, and a METEOR that fails
    program.write_text('#!/bin/sh\ncase "$*" in *meteor*) exit 1;; esac\nexec cat\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    corpus = ["a dog runs", "a cat", "a dog", "the cat runs", "a man"]
    split = [image(text, id=at, name=f"{at}.jpg") for at, text in enumerate(corpus)]
    references, said = captions(tmp_path / "captions.json", *split), ["a dog runs", "a dog"]
    path = results(tmp_path / "said.json", split[:2], said)
    command = ("evaluate", "--captions", references, "--official", "--score", path)
    done = run_main(*command, "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)["pycocoevalcap"]
    words, tokens = [[text.split()] for text in corpus], [text.split() for text in said]
    alone, wanted = (
        score_tables(words[:2], tokens, corpus=known)["CIDEr"].value() for known in (None, words)
    )
    assert found["CIDEr"] == pytest.approx(wanted) != pytest.approx(alone, abs=1)
    assert found["BLEU-1"] == pytest.approx(80)  # of five words one is wrong
    assert "meteor-1.5.jar" in found["METEOR"]["error"]["detail"]
    assert "METEOR" not in found["human"]  # one reference
    results(path, split, [*said, *["a cat"] * 3])
    done = run_main(*command, "--report", tmp_path / "report")
    assert done.returncode == 1 and "METEOR         failed: Java (meteor-1.5.jar)" in done.stdout
    assert "METEOR failed: Java" in (tmp_path / "report" / "report.html").read_text()


# Calibration, worked by hand after Guo et al. 2017, section 2


@pytest.mark.parametrize(
    ("confidence", "right", "error"),
    [
        # Bin (0.5, 0.6]: mean 0.55, 1 of 2 right, gap 0.05. Bin (0.9, 1]: mean 0.95, none of 1
        # right, gap 0.95. (2 * 0.05 + 1 * 0.95) / 3 = 0.35.
        ([0.52, 0.58, 0.95], [1, 0, 0], 0.35),
        # The means agree (0.5 and 0.5), the bins are off by 0.8 each.
        ([0.2, 0.8], [1, 0], 0.8),
        ([1.0], [1.0], 0),
    ],
)
def test_the_gap_of_each_bin_counts_by_its_size(
    confidence: list[float], right: list[float], error: float
) -> None:
    percent, bins = reliability(confidence, right)
    assert percent / 100 == pytest.approx(error)
    assert sum(one["count"] for one in bins) == len(right)
    if len(right) == 3:
        assert bins[0] == pytest.approx({"count": 2, "confidence": 0.55, "right": 0.5})


# CHAIR on captions whose objects are counted by hand


@pytest.mark.parametrize(
    ("caption", "named"),
    [
        ("a man rides his bike by two buses", ["person", "bicycle", "bus"]),
        ("a hot dog and a dog", ["hot dog", "dog"]),
        ("train tracks beside a train station", []),
        ("geese and sheep near knives", ["bird", "sheep", "knife"]),
        # Plurals in ches, shes, ses, xes, ies and ves.
        ("sandwiches on benches behind couches", ["sandwich", "bench", "couch"]),
        ("toothbrushes in wine glasses on buses", ["toothbrush", "wine glass", "bus"]),
        ("lorries and ferries with teddies", ["truck", "boat", "teddy bear"]),
        ("pocketknives donkeys trolleys", ["knife"]),
        ("a clock tower", ["clock"]),
        ("the male coach of a group he passes her", []),  # words that as often name something else
    ],
)
def test_captions_name_categories(caption: str, named: list[str]) -> None:
    assert named_categories(caption.split()) == named


def test_there_are_cocos_eighty_categories() -> None:
    categories = ("person", *words_of("categories.yaml")["categories"])
    assert len(set(categories)) == len(categories) == 80
    for category in categories:
        assert named_categories(category.split()) == [category]


def test_hallucinated_objects_by_hand() -> None:
    references = [[["a", "man", "and", "a", "dog"], ["a", "person"]], [["two", "cats"]], [["snow"]]]
    captions = [["a", "woman", "with", "a", "puppy"], ["a", "cat", "on", "a", "couch"], ["snow"]]
    found = hallucination(references, captions)
    assert found is not None and found["mentions"] == 4
    assert found["CHAIR_i"] == pytest.approx(100 / 4)  # the couch
    assert found["CHAIR_s"] == pytest.approx(100 / 3)
    found = hallucination(references, captions, objects=[[], ["couch"], []])
    assert found is not None and found["CHAIR_i"] == 0
    assert hallucination(references, [["snow"]] * 3) is None
