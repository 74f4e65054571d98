"""The deletion test on made-up models whose attention is known; numbers are worked by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from captioner.deletion import (
    attended_cells,
    repeated_cells,
    word_effects,
)
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


def every_cell(counts: Tensor, cells: int) -> Tensor:
    """Instead of chance: each cell by itself, once."""
    assert (counts == 1).all()
    return torch.eye(cells, dtype=torch.bool)[:, None].expand(-1, len(counts), -1)


def log_probability(seen: float) -> float:
    return seen - math.log(5 + math.exp(seen))


def grid(images: int = 1) -> Tensor:
    return torch.tensor([SEEN, 0, 0, 0])[None, :, None].expand(images, -1, -1)


def test_a_model_that_looks_at_the_box_falls_by_what_is_in_it() -> None:
    (word,) = word_effects(Looker(BOX), grid(), [[5]], draws=every_cell, starts=[START])
    fall = log_probability(SEEN) - log_probability(SEEN / 4)  # the mean of the cells is a quarter
    assert word.cells == 1 and word.deletion == pytest.approx(fall, abs=1e-5)
    assert word.random_deletion == pytest.approx(fall / 4, abs=1e-5)
    assert word.effect == pytest.approx(0.75 * fall, abs=1e-5)


@pytest.mark.parametrize("rows", [64, 7, 1])
def test_a_batch_of_photos_gives_the_effects_place_by_place(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all changed grids in one batch, or in several."""
    monkeypatch.setattr("captioner.deletion._ROWS", rows)
    looker = Looker(BOX)
    words = word_effects(
        looker, grid(3), [[5, 4], [4], [4, 5]], draws=every_cell, starts=[START, 2, 3]
    )
    places = [(word.place, word.caption) for word in words]
    assert places == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 2)]
    fall = log_probability(SEEN) - log_probability(SEEN / 4)
    of_5 = [word.effect for word in words if (word.place, word.caption) in ((0, 0), (1, 2))]
    assert of_5 == pytest.approx([0.75 * fall] * 2, abs=1e-5)
    others = [word.effect for word in words if (word.place, word.caption) not in ((0, 0), (1, 2))]
    assert max(others) < 0  # what is seen speaks for word 5, and against the others


def test_a_model_that_looks_elsewhere_gains_by_deletion() -> None:
    (word,) = word_effects(Looker(ELSEWHERE), grid(), [[5]], draws=every_cell, starts=[START])
    fall = log_probability(0) - log_probability(SEEN / 4)  # below 0: the mean holds some of it
    assert word.deletion == pytest.approx(fall, abs=1e-5) and fall < 0
    assert word.effect == pytest.approx(0.75 * fall, abs=1e-5)


def test_a_model_that_looks_everywhere_loses_as_much_as_by_chance() -> None:
    def halves(counts: Tensor, cells: int) -> Tensor:
        assert counts.tolist() == [2] and cells == 4
        pairs = [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]
        return torch.stack([torch.eye(4, dtype=torch.bool)[pair].any(0)[None] for pair in pairs])

    (word,) = word_effects(Looker(UNIFORM), grid(), [[5]], draws=halves, starts=[START])
    # Of the cells in reading order the first two: the sum of 4 becomes 1 + 1; without the first
    # cell among the two it becomes 4 + 1 + 1.
    with_first = log_probability(1) - log_probability(2 / 4)
    without = log_probability(1) - log_probability(6 / 4)
    assert word.deletion == pytest.approx(with_first, abs=1e-5)
    assert word.random_deletion == pytest.approx((with_first + without) / 2, abs=1e-5)


def test_cells_are_the_fewest_that_hold_half() -> None:
    weights = torch.tensor([[0.1, 0.3, 0.4, 0.2], [0.5, 0.2, 0.2, 0.1], [0.25] * 4])
    wanted = [[0, 1, 1, 0], [1, 0, 0, 0], [1, 1, 0, 0]]
    assert attended_cells(weights).int().tolist() == wanted
    # Eight draws, which are the same for every word: more cells include the fewer.
    masks, again = (repeated_cells()(torch.tensor([1, 3]), 9) for _ in range(2))
    assert masks.shape == (8, 2, 9) and masks.equal(again)
    assert masks.sum(-1).unique(dim=0).tolist() == [[1, 3]]
    assert (masks[:, 1] | masks[:, 0]).equal(masks[:, 1])
