"""The decoder against torch.nn.LSTMCell, and against itself one step at a time."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from captioner import ConfigError
from captioner.decoders.lstm import Decoder, DecoderConfig

CONFIG = DecoderConfig(
    vocabulary_size=11,
    grid_dim=6,
    embedding_dim=5,
    hidden_dim=4,
    attention_dim=3,
    value_dim=7,
    dropout=0.5,
)


@pytest.fixture
def decoder() -> Decoder:
    torch.manual_seed(0)
    return Decoder(CONFIG).eval()


def test_step_is_the_papers_equations_with_torchs_lstm(decoder: Decoder) -> None:
    """Equations 1 to 7 written out, with torch.nn.LSTMCell as the LSTM."""
    features = torch.randn(2, 9, 6)
    tokens = torch.tensor([[1], [7]])
    state, grid = decoder.start(features)
    output = decoder.step(tokens, state, grid)

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
    assert torch.allclose(output.state.hidden[:, 0], h, atol=1e-6)
    assert torch.allclose(output.state.cell[:, 0], c, atol=1e-6)
    assert torch.allclose(output.logits[:, 0], logits, atol=1e-5)


def test_the_table_of_words_says_the_same(decoder: Decoder) -> None:
    state, grid = decoder.start(torch.randn(2, 9, 6))
    tokens = torch.tensor([[1, 4, 10], [7, 7, 0]])
    state = state.expand(3)
    computed = decoder.step(tokens, state, grid)
    decoder.tabulate()
    nn.init.constant_(decoder.word_gates.weight, torch.nan)  # is not looked at any more
    torch.testing.assert_close(decoder.step(tokens, state, grid), computed)
    assert "word_table" not in decoder.state_dict()


def test_teacher_forcing_is_the_steps_one_by_one(decoder: Decoder) -> None:
    features, tokens = torch.randn(2, 9, 6), torch.randint(0, 11, (2, 3, 5))
    whole = decoder(features, tokens)
    state, grid = decoder.start(features)
    state = state.expand(3)
    for t in range(5):
        output = decoder.step(tokens[..., t], state, grid)
        state = output.state
        assert torch.allclose(decoder.logits(whole.deep[:, :, t]), output.logits, atol=1e-5)
        assert torch.allclose(whole.attention[:, :, t], output.attention, atol=1e-6)
        assert torch.allclose(whole.gate[:, :, t], output.gate, atol=1e-6)


def test_select_lets_a_hypothesis_follow_its_parent(decoder: Decoder) -> None:
    state, _ = decoder.start(torch.randn(2, 9, 6))
    state = state.expand(3)._replace(hidden=torch.arange(24.0).view(2, 3, 4))
    chosen = state.select(torch.tensor([[2, 0], [1, 1]]))
    assert chosen.hidden[..., 0].tolist() == [[8.0, 0.0], [16.0, 16.0]]


def test_gradients_reach_every_parameter(decoder: Decoder) -> None:
    output = decoder.train()(torch.randn(2, 9, 6), torch.randint(0, 11, (2, 3, 5)))
    decoder.logits(output.deep).square().mean().backward()
    missing = [name for name, p in decoder.named_parameters() if p.grad is None]
    assert missing == []


@pytest.mark.parametrize(
    ("field", "value"), [("hidden_dim", 0), ("value_dim", -1), ("dropout", 1.0)]
)
def test_bad_sizes_are_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{field} {value}"):
        DecoderConfig(**{"vocabulary_size": 10, "grid_dim": 4, field: value})
