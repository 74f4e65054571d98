"""The state of a decoder: moved about whatever tensors are in it."""

from __future__ import annotations

import pytest
import torch

from captioner import ConfigError
from captioner.decoders.config import DecoderConfig
from captioner.decoders.decoder import build_decoder
from captioner.decoders.lstm import LSTMDecoder
from captioner.decoders.state import State


@pytest.fixture
def state() -> State:
    """Two images with four cells, three hypotheses each; a number says whose it is."""
    return State(
        image={"grid": torch.arange(2.0).view(2, 1, 1).expand(2, 4, 5)},
        hypothesis={
            "flat": torch.arange(6).view(2, 3),
            "cache": torch.arange(6.0).view(2, 3, 1, 1).expand(2, 3, 7, 2),
        },
        words={"memory": torch.arange(2.0).view(2, 1, 1).expand(2, 9, 5)},
    )


def test_select_lets_a_hypothesis_follow_its_parent(state: State) -> None:
    chosen = state.select(torch.tensor([[2, 0], [1, 1]]))
    assert chosen.hypothesis["flat"].tolist() == [[2, 0], [4, 4]]
    assert chosen.hypothesis["cache"].shape == (2, 2, 7, 2)
    assert chosen.hypothesis["cache"][..., 6, 1].tolist() == [[2, 0], [4, 4]]
    assert chosen.image is state.image and chosen.words is state.words


def test_take_keeps_images(state: State) -> None:
    taken = state.take(torch.tensor([1]))
    assert taken.hypothesis["flat"].tolist() == [[3, 4, 5]]
    assert taken.image["grid"].shape == (1, 4, 5) and taken.image["grid"].unique() == 1
    assert taken.words["memory"].shape == (1, 9, 5) and taken.words["memory"].unique() == 1


def test_expand_gives_every_hypothesis_the_same(state: State) -> None:
    one = state.select(torch.tensor([[1], [2]]))
    wide = one.expand(3)
    assert wide.hypothesis["flat"].tolist() == [[1, 1, 1], [5, 5, 5]]
    assert wide.hypothesis["cache"].shape == (2, 3, 7, 2)
    assert wide.hypothesis["cache"].data_ptr() == one.hypothesis["cache"].data_ptr()
    # What follows from an expanded state is as good as from any other.
    assert wide.select(torch.tensor([[2, 0], [1, 1]])).hypothesis["flat"].tolist() == [
        [1, 1],
        [5, 5],
    ]


def test_a_state_without_hypothesis_tensors_moves_too(state: State) -> None:
    bare = State(state.image, {})
    assert bare.expand(3).select(torch.zeros(2, 3, dtype=torch.long)) == bare


def test_decoders_are_known_by_their_kind() -> None:
    config = DecoderConfig(embedding_dim=5, hidden_dim=4, attention_dim=3)
    assert type(build_decoder(config, grid_dim=6, vocabulary_size=11)) is LSTMDecoder
    with pytest.raises(ConfigError, match="kind 'parrot' is out of range: use lstm"):
        DecoderConfig(kind="parrot")
