"""Positional encodings by their definitions."""

from __future__ import annotations

import math

import pytest
import torch

from captioner import ConfigError
from captioner.attention.positions import (
    POSITIONS,
    Positions,
    binary,
    grid_places,
    sine,
    word_places,
)


def test_sines_are_the_papers() -> None:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos of the same (Vaswani et al.)."""
    code = sine(torch.tensor([0, 7]), 6)
    assert code[0].tolist() == [0, 1, 0, 1, 0, 1]
    for i in range(3):
        angle = 7 / 10000 ** (2 * i / 6)
        assert code[1, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
        assert code[1, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


@pytest.mark.parametrize("delta", [1, 5])
def test_sines_moved_by_delta_are_a_rotation_that_does_not_depend_on_the_place(delta: int) -> None:
    places, dim = torch.arange(40), 8
    turns = []
    for i in range(dim // 2):
        angle = torch.tensor(delta / 10000 ** (2 * i / dim))
        turns.append(
            torch.stack(
                [torch.stack([angle.cos(), angle.sin()]), torch.stack([-angle.sin(), angle.cos()])]
            )
        )
    rotation = torch.block_diag(*turns)
    torch.testing.assert_close(rotation @ rotation.T, torch.eye(dim))
    torch.testing.assert_close(
        sine(places + delta, dim), sine(places, dim) @ rotation.T, rtol=0, atol=1e-5
    )


def test_binary_positions_are_the_bits() -> None:
    for place, bits in enumerate(binary(torch.arange(16), 4).long().tolist()):
        assert sum(bit << i for i, bit in enumerate(bits)) == place


def test_places() -> None:
    assert grid_places(4).tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert word_places(2, first=3).tolist() == [[3], [4]]
    with pytest.raises(ConfigError, match="12 cells is not square"):
        grid_places(12)


@pytest.mark.parametrize("kind", POSITIONS)
def test_cells_that_look_alike_are_told_apart(kind: str) -> None:
    positions = Positions(kind=kind, dim=8, axes=2, length=5)
    grid = positions(torch.zeros(2, 25, 8), grid_places(25))
    assert grid.shape == (2, 25, positions.output_dim)
    assert len(grid[0].unique(dim=0)) == (1 if kind == "none" else 25)
    words = Positions(kind=kind, dim=6, axes=1, length=5)(torch.zeros(3, 4, 5, 6), word_places(5))
    assert len(words[1, 2].unique(dim=0)) == (1 if kind == "none" else 5)


@pytest.mark.parametrize("kind", ["learned", "binary"])
def test_a_place_beyond_the_length_is_refused(kind: str) -> None:
    positions = Positions(kind=kind, dim=4, axes=1, length=3)
    with pytest.raises(ConfigError, match=f"place 3 has no {kind} position: there are 3"):
        positions(torch.zeros(1, 4, 4), word_places(4))


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'cosine'.*none, sine, learned, binary"):
        Positions(kind="cosine", dim=4, axes=1, length=3)


def test_sines_leave_what_is_left_over() -> None:
    code = Positions(kind="sine", dim=7, axes=2, length=3)(torch.zeros(1, 9, 7), grid_places(9))
    assert code[..., 4:].count_nonzero() == 0
    torch.testing.assert_close(code[0, 5, :4], sine(torch.tensor([1, 2]), 2).flatten())
