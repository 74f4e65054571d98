"""The numbers are worked by hand in the comments; none is copied from the code's output."""

from __future__ import annotations

import math
import random

import pytest
import torch
from torch import Tensor

from captioner.vision.geometry import Box
from captioner_training.evaluation.boxes import box_coverage
from captioner_training.evaluation.grounding import (
    center_weighted_attention,
    mass_in_boxes,
    points_at,
    uniform_attention,
    word_distance,
)


def one_hot(row: int, column: int, *, rows: int = 2, columns: int = 2) -> Tensor:
    attention = torch.zeros(rows, columns)
    attention[row, column] = 1
    return attention


def test_words_that_look_at_different_cells_are_at_distance_one() -> None:
    # |1-0| + |0-1| = 2, halved.
    assert word_distance(torch.stack([one_hot(0, 0), one_hot(1, 1)])) == 1.0


def test_words_that_look_alike_are_at_distance_zero() -> None:
    assert word_distance(uniform_attention(3, 4).expand(5, 3, 4)) == 0.0


def test_distance_is_the_mean_over_pairs() -> None:
    # One-hot to uniform over four cells: (|1 - 1/4| + 3 * 1/4) / 2 = 3/4. The pairs of
    # (a, a, uniform) are 0, 3/4 and 3/4: their mean is 1/2.
    maps = torch.stack([one_hot(0, 0), one_hot(0, 0), uniform_attention(2, 2)])
    assert word_distance(maps) == pytest.approx(0.5)


def test_distance_does_not_depend_on_the_scale_of_a_map() -> None:
    maps = torch.stack([one_hot(0, 0) * 0.98, uniform_attention(2, 2) * 3])
    assert word_distance(maps) == pytest.approx(0.75)


@pytest.mark.parametrize("words", [0, 1])
def test_fewer_than_two_words_have_no_distance(words: int) -> None:
    assert math.isnan(word_distance(torch.ones(words, 2, 2)))


@pytest.mark.parametrize(
    ("boxes", "share"),
    [
        ([], 0.0),
        ([(0, 0, 1, 1)], 1.0),
        ([(0, 0, 0.5, 1)], 0.5),
        # Half of the two left cells' width: 2 cells * 1/2 of 1/4 each.
        ([(0, 0, 0.25, 1)], 0.25),
        # A box inside one cell, 0.25 x 0.25 of the whole, in a uniform map: its area.
        ([(0.1, 0.1, 0.35, 0.35)], 0.0625),
        # Twice the same box counts once.
        ([(0, 0, 0.5, 0.5), (0, 0, 0.5, 0.5)], 0.25),
        # 0.6 x 0.6 twice, overlapping in 0.2 x 0.2: 0.36 + 0.36 - 0.04.
        ([(0, 0, 0.6, 0.6), (0.4, 0.4, 1, 1)], 0.68),
        # Beyond the image there is no attention.
        ([(-3, -3, 0.5, 5)], 0.5),
        ([(1.5, 0, 2, 1)], 0.0),
        # A line has no area.
        ([(0.2, 0, 0.2, 1)], 0.0),
    ],
)
def test_mass_of_uniform_attention_is_the_area_of_the_union(boxes: list[Box], share: float) -> None:
    assert mass_in_boxes(uniform_attention(2, 2), boxes) == pytest.approx(share, abs=1e-7)


def test_mass_weighs_each_cell_by_the_part_that_is_covered() -> None:
    attention = torch.tensor([[0.1, 0.2], [0.3, 0.4]])
    # x from 1/4 to 1, y from 1/2 to 3/4: of the lower cells, half of the left one's width and the
    # whole of the right one's, each at half its height: 0.3 * 1/2 * 1/2 + 0.4 * 1 * 1/2.
    assert mass_in_boxes(attention, [(0.25, 0.5, 1, 0.75)]) == pytest.approx(0.275)


def test_a_map_is_rows_by_columns_and_a_box_is_x_before_y() -> None:
    # One row, four columns, all attention in the last column: the right quarter, any height.
    attention = one_hot(0, 3, rows=1, columns=4)
    assert mass_in_boxes(attention, [(0.75, 0, 1, 1)]) == 1.0
    assert mass_in_boxes(attention, [(0, 0.75, 1, 1)]) == pytest.approx(0.25)


def test_mass_is_a_share_of_the_attention_there_is() -> None:
    half = torch.full((2, 2), 0.1, dtype=torch.float16)
    assert mass_in_boxes(half, [(0, 0, 0.5, 1)]) == pytest.approx(0.5)


def test_coverage_agrees_with_counting_fine_pixels() -> None:
    rng = random.Random(5)
    rows, columns, fine = 5, 7, 12
    for _ in range(20):
        boxes: list[Box] = []
        for _ in range(rng.randint(1, 6)):
            # Edges on the fine pixels' own lines, so that counting is exact.
            x = sorted(rng.sample(range(columns * fine + 1), 2))
            y = sorted(rng.sample(range(rows * fine + 1), 2))
            w, h = columns * fine, rows * fine
            boxes.append((x[0] / w, y[0] / h, x[1] / w, y[1] / h))
        painted = torch.zeros(rows * fine, columns * fine)
        for left, top, right, bottom in boxes:
            ys = slice(round(top * rows * fine), round(bottom * rows * fine))
            painted[ys, round(left * columns * fine) : round(right * columns * fine)] = 1
        counted = painted.view(rows, fine, columns, fine).mean(dim=(1, 3)).double()
        torch.testing.assert_close(
            box_coverage(boxes, rows=rows, columns=columns), counted, atol=1e-6, rtol=0
        )


def test_coverage_takes_an_edge_a_hair_from_the_border() -> None:
    near = math.nextafter(1.0, 0.0)
    coverage = box_coverage([(near, 0, 1, 1), (0, 0, near, near)], rows=3, columns=7)
    torch.testing.assert_close(coverage, torch.ones(3, 7, dtype=torch.float64))


def test_pointing_looks_at_the_centre_of_the_highest_cell() -> None:
    attention = one_hot(0, 1, rows=2, columns=4)  # its centre is (3/8, 1/4)
    assert points_at(attention, [(0.3, 0.2, 0.4, 0.3)])
    assert points_at(attention, [(0.375, 0.25, 1, 1)])  # on the corner
    assert points_at(attention, [(0.9, 0.9, 1, 1), (0, 0, 0.5, 0.5)])  # in any of them
    assert not points_at(attention, [(0.38, 0, 1, 1)])  # covers most of the cell, not its centre
    assert not points_at(attention, [(0.2, 0.3, 0.3, 0.4)])  # x and y swapped
    assert not points_at(attention, [])
    # The second row, third column: centre (5/8, 3/4), and no other cell's centre is in this box.
    lower = one_hot(1, 2, rows=2, columns=4)
    assert points_at(lower, [(0.6, 0.7, 0.65, 0.8)])


def test_baselines_sum_to_one() -> None:
    for attention in (uniform_attention(3, 5), center_weighted_attention(3, 5)):
        assert attention.shape == (3, 5)
        assert attention.sum().item() == pytest.approx(1)
    assert uniform_attention(3, 5).flatten().tolist() == pytest.approx([1 / 15] * 15)


def test_the_centre_is_where_the_centre_baseline_looks() -> None:
    attention = center_weighted_attention(7, 7, sigma=0.25)
    torch.testing.assert_close(attention, attention.flip(0))
    torch.testing.assert_close(attention, attention.T)
    # The next cell is 1/7 away: exp(-(1/7)^2 / (2 * 0.25^2)) = exp(-0.163265) = 0.84936.
    assert (attention[3, 4] / attention[3, 3]).item() == pytest.approx(0.84936, abs=1e-4)
    # On a grid of another shape the spread stays a fraction of each side: on 14 columns the cells
    # beside the middle are 1/28 and 3/28 away: exp(-(9 - 1) / 28^2 / (2 * 0.25^2)) = 0.92161.
    wide = center_weighted_attention(7, 14, sigma=0.25)
    assert (wide[3, 8] / wide[3, 7]).item() == pytest.approx(0.92161, abs=1e-4)


def test_a_tiny_sigma_is_a_point_and_not_nan() -> None:
    torch.testing.assert_close(
        center_weighted_attention(3, 3, sigma=1e-6), one_hot(1, 1, rows=3, columns=3)
    )
