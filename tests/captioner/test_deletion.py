"""The deletion test on made-up models whose attention is known; numbers are worked by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from captioner.deletion import attended_cells, random_cells, sentence_effects
from captioner.model.decoder import State, StepOutput
from captioner.vocabulary import START

SEEN = 4.0  # what the first of four cells adds to the logit of word 5; the other cells hold 0
BOX, ELSEWHERE, UNIFORM = [1.0, 0, 0, 0], [0, 0, 0, 1.0], [0.25] * 4


class Looker:
    """Attends to the same cell for every word; the probability of word 5 depends on this cell."""

    def __init__(self, attention: list[float]) -> None:
        self.attention = torch.tensor(attention)

    def start(self, features: Tensor) -> State:
        return State({"cells": features}, {"none": features.new_zeros(len(features), 1)})

    def step(self, tokens: Tensor, state: State) -> StepOutput:
        seen = (self.attention[None, :, None] * state.image["cells"]).sum(dim=1)
        logits = torch.zeros(*tokens.shape, 6)
        logits[..., 5] = seen
        return StepOutput(logits, state, self.attention.expand(*tokens.shape, -1), None)


def effects_of(
    attention: list[float],
    sentences: list[list[list[int]]],
    monkeypatch: pytest.MonkeyPatch,
    *,
    drawn: list[list[int]],
) -> list[Any]:
    """The effects of sentences with given sets of cells instead of random ones."""
    masks = torch.stack([torch.eye(4, dtype=torch.bool)[cells].any(0) for cells in drawn])

    def draw(_: object, counts: Tensor, cells: int) -> Tensor:
        assert {*counts.tolist()} == {len(drawn[0])} and cells == 4
        return masks[:, None].expand(-1, len(counts), -1)

    monkeypatch.setattr("captioner.deletion.random_cells", draw)
    return sentence_effects(Looker(attention), grid(len(sentences)), sentences, start=START)


def log_probability(seen: float) -> float:
    return seen - math.log(5 + math.exp(seen))


def grid(images: int = 1) -> Tensor:
    return torch.tensor([SEEN, 0, 0, 0])[None, :, None].expand(images, -1, -1)


EVERY_CELL = [[0], [1], [2], [3]]
EVERY_PAIR = [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]


@pytest.mark.parametrize(
    ("attention", "drawn", "effect"),
    [
        # The mean of the cells is a quarter, and one of the four random cells is the attended one.
        (BOX, EVERY_CELL, 0.75 * (log_probability(SEEN) - log_probability(SEEN / 4))),
        # It gains by deletion, because the mean holds some of the box.
        (ELSEWHERE, EVERY_CELL, 0.75 * (log_probability(0) - log_probability(SEEN / 4))),
        # The first two cells in reading order are deleted: the sum of 4 becomes 1 + 1. Without the
        # first cell among the two, as in half of the pairs, it becomes 4 + 1 + 1.
        (UNIFORM, EVERY_PAIR, (log_probability(6 / 4) - log_probability(2 / 4)) / 2),
    ],
)
def test_the_effect_of_a_word_is_its_fall_beyond_that_of_random_cells(
    attention: list[float], drawn: list[list[int]], effect: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    (((word,),),) = effects_of(attention, [[[5]]], monkeypatch, drawn=drawn)
    assert word == pytest.approx(effect, abs=1e-5)


@pytest.mark.parametrize("rows", [64, 7, 1])
def test_sentences_of_a_batch_have_their_own_effects(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all changed grids in one batch, or in several."""
    monkeypatch.setattr("captioner.deletion._ROWS", rows)
    sentences = [[[5, 4], [4]], [[]], [[4, 5]]]
    (first, second), (none,), (third,) = effects_of(BOX, sentences, monkeypatch, drawn=EVERY_CELL)
    assert none is None
    fall = log_probability(SEEN) - log_probability(SEEN / 4)
    assert [first[0], third[1]] == pytest.approx([0.75 * fall] * 2, abs=1e-5)
    # What is seen makes word 5 more likely, and the others less.
    assert max(first[1], *second, third[0]) < 0 and len(second) == 1


def test_cells_are_the_fewest_that_hold_half() -> None:
    weights = torch.tensor([[0.1, 0.3, 0.4, 0.2], [0.5, 0.2, 0.2, 0.1], [0.25] * 4])
    wanted = [[0, 1, 1, 0], [1, 0, 0, 0], [1, 1, 0, 0]]
    assert attended_cells(weights).int().tolist() == wanted
    # Eight draws, which are the same for every word: more cells include the fewer.
    masks, again = (
        random_cells(torch.Generator().manual_seed(0), torch.tensor([1, 3]), 9) for _ in range(2)
    )
    assert masks.shape == (8, 2, 9) and masks.equal(again)
    assert masks.sum(-1).unique(dim=0).tolist() == [[1, 3]]
    assert (masks[:, 1] | masks[:, 0]).equal(masks[:, 1])
