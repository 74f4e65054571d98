"""The decoder against torch.nn.LSTMCell, and against itself one step at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

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


def test_step_is_the_papers_equations_with_torchs_lstm(decoder: LSTMDecoder) -> None:
    """Equations 1 to 7 written out, with torch.nn.LSTMCell as the LSTM."""
    features = torch.randn(2, 9, 6)
    tokens = torch.tensor([[1], [7]])
    output = decoder.step(tokens, decoder.start(features))

    lstm = nn.LSTMCell(5 + 7, 4)
    order = torch.cat([torch.arange(0, 8), torch.arange(12, 16), torch.arange(8, 12)])
    with torch.no_grad():  # torch's gates stand as i, f, g, o; the paper's as i, f, o, g
        stacked = torch.cat([decoder.word_gates.weight, decoder.context_gates.weight], dim=1)
        lstm.weight_ih.copy_(stacked[order])
        lstm.bias_ih.copy_(decoder.word_gates.bias[order])
        lstm.weight_hh.copy_(decoder.hidden_gates.weight[order])
        lstm.bias_hh.zero_()

    mean = features.mean(1)
    h = torch.tanh(decoder.initial_hidden(mean))
    c = torch.tanh(decoder.initial_cell(mean))
    score = decoder.attention.score
    e = score.score(torch.tanh(score.key(features) + score.query(h)[:, None]))  # type: ignore[operator]
    alpha = e.softmax(dim=1)
    z = torch.sigmoid(decoder.gate(h)) * (alpha * decoder.attention.value(features)).sum(1)
    word = decoder.embedding(tokens[:, 0])
    h, c = lstm(torch.cat([word, z], dim=1), (h, c))
    deep = word + decoder.deep_hidden(h) + decoder.deep_context(z)
    logits = deep @ decoder.embedding.weight.T + decoder.output_bias

    assert torch.allclose(output.attention[:, 0], alpha[..., 0], atol=1e-6)
    assert torch.allclose(output.state.hypothesis["hidden"][:, 0], h, atol=1e-6)
    assert torch.allclose(output.state.hypothesis["cell"][:, 0], c, atol=1e-6)
    assert torch.allclose(output.logits[:, 0], logits, atol=1e-5)


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
