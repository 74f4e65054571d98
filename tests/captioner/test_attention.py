"""Additive attention against numbers worked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from captioner import ConfigError
from captioner.attention import AdditiveScore, Attention


def hand_made(value_dim: int | None = None) -> Attention:
    """v . tanh(k + q) with one key dimension, v = 2, k = a, q = h."""
    attention = Attention(
        score="additive", grid_dim=1, query_dim=1, attention_dim=1, value_dim=value_dim
    )
    score = attention.score
    assert isinstance(score, AdditiveScore)
    with torch.no_grad():
        score.key.weight.fill_(1)
        score.key.bias.zero_()
        score.query.weight.fill_(1)
        score.score.weight.fill_(2)
    return attention


def test_worked_example() -> None:
    # Cells 0 and 1, query 0.5: scores 2 tanh(0.5) = 0.924234 and 2 tanh(1.5) = 1.810297.
    # Softmax: e^0.924234 = 2.519936, e^1.810297 = 6.112261; weights 0.291924 and 0.708076.
    attention = hand_made()
    grid = attention.project(torch.tensor([[[0.0], [1.0]]]))
    context, weights = attention(torch.tensor([[[0.5]]]), grid)
    assert weights.flatten().tolist() == pytest.approx([0.291924, 0.708076], abs=1e-6)
    assert context.item() == pytest.approx(0.708076, abs=1e-6)  # 0 * w0 + 1 * w1


def test_hypotheses_of_an_image_share_its_grid_and_no_other() -> None:
    attention = hand_made()
    cells = [[0.0, 1.0], [2.0, -1.0]]
    grids = attention.project(torch.tensor(cells).unsqueeze(-1))
    queries = torch.tensor([[[0.5], [-3.0]], [[0.1], [0.5]]])
    _, together = attention(queries, grids)
    for image in range(2):
        for hypothesis in range(2):
            scores = [
                2 * math.tanh(key + queries[image, hypothesis].item()) for key in cells[image]
            ]
            total = sum(math.exp(score) for score in scores)
            expected = [math.exp(score) / total for score in scores]
            assert together[image, hypothesis].tolist() == pytest.approx(expected, abs=1e-6)


def test_weights_sum_to_one_in_half_precision() -> None:
    torch.manual_seed(0)
    attention = Attention(
        score="additive", grid_dim=64, query_dim=32, attention_dim=16, value_dim=8
    ).to(torch.bfloat16)
    grid = attention.project(torch.randn(2, 400, 64, dtype=torch.bfloat16))
    context, weights = attention(torch.randn(2, 3, 32, dtype=torch.bfloat16), grid)
    assert weights.dtype == torch.float32
    assert torch.allclose(weights.sum(-1), torch.ones(2, 3), atol=1e-5)
    assert context.shape == (2, 3, 8)


def test_unknown_score_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'dotty'.*additive"):
        Attention(score="dotty", grid_dim=1, query_dim=1, attention_dim=1, value_dim=None)


def test_slopes_are_those_of_the_formula() -> None:
    """v . tanh(W_k a + W_q h), left to automatic differentiation, has the same slopes."""
    score = AdditiveScore(grid_dim=6, query_dim=4, attention_dim=5)
    features, query = torch.randn(2, 7, 6, requires_grad=True), torch.randn(2, 3, 4)
    wanted = torch.randn(2, 3, 7)
    inputs = (query.requires_grad_(), features, *score.parameters())

    hidden = torch.tanh(score.key(features).unsqueeze(1) + score.query(query).unsqueeze(2))
    plain = score.score(hidden).squeeze(-1)
    # A part that is the same for every cell differs: the softmax cannot tell.
    expected = torch.autograd.grad((plain.softmax(-1) * wanted).sum(), inputs)
    ours = score(query, score.project(features))
    found = torch.autograd.grad((ours.softmax(-1) * wanted).sum(), inputs)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
