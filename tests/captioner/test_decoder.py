"""The decoder against itself one step at a time; against its paper in test_papers.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from captioner import ConfigError
from captioner.decoders.config import DecoderConfig
from captioner.decoders.lstm import LSTMDecoder
from captioner.decoders.transformer import TransformerDecoder

CONFIG = DecoderConfig(
    embedding_dim=5,
    hidden_dim=4,
    attention_dim=3,
    value_dim=7,
    dropout=0.5,
)


@pytest.fixture
def decoder() -> LSTMDecoder:
    torch.manual_seed(0)
    return LSTMDecoder(CONFIG, grid_dim=6, vocabulary_size=11).eval()


def _train(decoder: LSTMDecoder) -> None:
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=0.1)
    deep = decoder(torch.randn(2, 9, 6), torch.randint(0, 11, (2, 3, 5))).deep
    decoder.logits(deep).square().mean().backward()
    optimizer.step()


def _load(decoder: LSTMDecoder) -> None:
    decoder.load_state_dict(LSTMDecoder(CONFIG, grid_dim=6, vocabulary_size=11).state_dict())


def _assign(decoder: LSTMDecoder) -> None:
    other = LSTMDecoder(CONFIG, grid_dim=6, vocabulary_size=11)
    decoder.load_state_dict(other.state_dict(), assign=True)


@pytest.mark.parametrize("change", [_train, _load, _assign])
def test_the_table_of_words_never_outlives_its_weights(
    decoder: LSTMDecoder, change: Callable[[LSTMDecoder], None]
) -> None:
    features, tokens = torch.randn(2, 9, 6), torch.tensor([[1], [7]])
    decoder.tabulate()
    change(decoder)
    got = decoder.step(tokens, decoder.start(features)).logits
    fresh = LSTMDecoder(CONFIG, grid_dim=6, vocabulary_size=11).eval()
    fresh.load_state_dict(decoder.state_dict())
    torch.testing.assert_close(got, fresh.step(tokens, fresh.start(features)).logits)


@pytest.mark.parametrize(
    ("field", "value"), [("hidden_dim", 0), ("value_dim", -1), ("dropout", 1.0)]
)
def test_bad_sizes_are_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{field} {value}"):
        DecoderConfig(**{field: value})


def test_sines_of_rows_and_columns_need_room() -> None:
    with pytest.raises(ConfigError, match="positions 'sine' need a hidden_dim of at least 4"):
        DecoderConfig(kind="transformer", hidden_dim=3, positions="sine")
    config = DecoderConfig(kind="transformer", hidden_dim=4, positions="sine")
    decoder = TransformerDecoder(config, grid_dim=6, vocabulary_size=11)
    decoder.start(torch.randn(1, 9, 6))
