"""The official scorers, where Java is there."""

from __future__ import annotations

import shutil

import pytest

from captioner import DataError
from captioner_training.evaluation.scores import official_scores


@pytest.mark.skipif(shutil.which("java") is None, reason="the official scorers run on Java")
# pycocoevalcap leaves the pipes to its Java programs to the garbage collector.
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_official_scores_know_a_right_caption_from_a_wrong_one() -> None:
    pytest.importorskip("pycocoevalcap")
    references = [["A red dog runs.", "The dog is running."], ["Two cats sit on a mat."]]
    right = official_scores(references, ["a red dog runs", "two cats sit on a mat"])
    wrong = official_scores(references, ["a boat", "a boat"])
    assert right["BLEU-4"] == pytest.approx(100)  # every n-gram is in a reference
    assert right["METEOR"] == pytest.approx(100) and right["CIDEr"] > 100
    assert wrong["METEOR"] < 10 and wrong["CIDEr"] < 10


def test_without_java_it_is_said_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pycocoevalcap")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DataError, match="install a Java runtime"):
        official_scores([["a dog"]], ["a dog"])
