"""CHAIR on captions whose objects are counted by hand."""

from __future__ import annotations

import pytest

from captioner_training.evaluation.hallucination import (
    hallucination,
    named_categories,
    words_of,
)


@pytest.mark.parametrize(
    ("caption", "named"),
    [
        ("a man rides his bike by two buses", ["person", "bicycle", "bus"]),
        ("a hot dog and a dog", ["hot dog", "dog"]),
        ("train tracks beside a train station", []),
        ("geese and sheep near knives", ["bird", "sheep", "knife"]),
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
