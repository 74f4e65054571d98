"""How many captions the page keeps, to show them again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from captioner_serving.server.pictures import CaptionShelf
from captioner_serving.server.problems import GoneError


def kept(sentences: int) -> Any:
    caption = SimpleNamespace(alternatives=[None] * (sentences - 1))
    return SimpleNamespace(caption=caption, owner=None)


@pytest.mark.parametrize(("sentences", "fit"), [(1, 3000), (3, 1000), (20, 150)])
def test_the_oldest_make_way_by_the_number_of_their_sentences(sentences: int, fit: int) -> None:
    shelf = CaptionShelf(keep=60)
    sample = shelf.put(kept(1), forever=True)
    tokens = [shelf.put(kept(sentences)) for _ in range(fit + 10)]
    shelf.sweep()
    with pytest.raises(GoneError):
        shelf.get(tokens[9], None)
    for token in (sample, tokens[10], tokens[-1]):
        shelf.get(token, None)


def test_what_is_over_is_forgotten_without_another_caption() -> None:
    shelf = CaptionShelf(keep=-1)
    shelf.put(kept(1))
    shelf.sweep()
    assert not shelf._kept
