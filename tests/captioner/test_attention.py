"""Attention against worked numbers of lecture notes and against PyTorch's own attention."""

from __future__ import annotations

from decimal import Decimal

import pytest
import torch
from torch import Tensor, nn

from captioner import ConfigError
from captioner.model.attention import Attention, causal, full, local, masked_softmax
from captioner.model.positions import POSITIONS, Positions
from captioner.model.scores import SCORES, AdditiveScore, ProductScore

SIZES = {"query_dim": 8, "key_dim": 8, "attention_dim": 12}

# Numbers worked by hand and in lecture notes. They come from outside this code, so they are the
# only tests here that a mistake shared by code and tests cannot satisfy: never remove them.

# "Practical 10: Attention Mechanisms", Deep Learning (IST, 2021-22), question 1.
X = torch.tensor([[-2, 1, 0.5], [1, 1.5, -0.5], [-1.5, 1, -0.5], [-2, -2.5, 1.5]]).double()
W_Q = torch.tensor([[1, -1.5], [0, 2], [-0.5, -1]]).double()
W_K = torch.tensor([[-1.5, -1], [2.5, 0], [0.5, -1]]).double()
W_V = torch.tensor([[1, 2.5], [-0.5, -2], [0, -1]]).double()
W_O = torch.tensor([[-1, 1.5, 2], [0, -1, -2], [1, -1.5, 0], [2, 0, 1]]).double()
P = [
    [4.79433566e-5, 3.2209862e-5, 1.71943035e-3, 9.98200416e-1],
    [0.597319598, 1.28333499e-3, 0.401298182, 9.88847812e-5],
    [1.46423661e-2, 4.87223528e-4, 0.237021787, 0.747848624],
    [9.06143069e-9, 1.87817885e-3, 2.98824011e-8, 0.998121782],
]
P2 = [
    [0.118306921, 2.01966211e-2, 0.168483136, 0.693013322],
    [8.48429312e-4, 0.998944583, 2.06267364e-4, 7.20592823e-7],
    [2.67590116e-2, 7.79843042e-4, 5.42703523e-2, 0.918190793],
    [2.47463407e-5, 6.12522986e-10, 2.06437556e-4, 0.999768815],
]
Z = [
    [-0.75220098, -1.50668721],
    [-2.29564869, -6.58686077],
    [-1.07141415, -2.47595506],
    [-0.74812187, -1.4971829],
]


def assert_every_digit(found: Tensor, expected: list[list[float]]) -> None:
    """Equal to every digit that the source gives."""
    for row, wanted in zip(found.tolist(), expected, strict=True):
        for number, digits in zip(row, wanted, strict=True):
            last = Decimal(1).scaleb(int(Decimal(repr(digits)).as_tuple().exponent))
            assert abs(Decimal(number) - Decimal(repr(digits))) <= last * Decimal("0.51")


def scaled_dot(query: Tensor, key: Tensor, value: Tensor | None, heads: int = 1) -> Attention:
    """Scaled dot-product attention with these projections, each (inputs, outputs)."""
    attention = Attention(
        score="scaled_dot",
        query_dim=query.shape[0],
        key_dim=key.shape[0],
        attention_dim=key.shape[1],
        value_dim=None if value is None else value.shape[1],
        heads=heads,
        value_bias=False,
    ).double()
    assert isinstance(attention.score, ProductScore)
    nn.init.zeros_(attention.score.query.bias)
    attention.score.query.weight.data = query.T.contiguous()
    attention.score.key.weight.data = key.T.contiguous()
    if value is not None:
        attention.value.weight.data = value.T.contiguous()
    return attention


def test_practical_10_question_1_scaled_dot_product() -> None:
    identity = torch.eye(3, dtype=torch.float64)
    attention = scaled_dot(identity, identity, None)
    query = torch.tensor([[[-2, 1, -1]]]).double()
    grid = attention.project(X[None])
    context, weights = attention(query, grid)
    assert_every_digit(attention.score(query, grid.keys)[0, 0], [[2.59807621, 0, 2.59807621, 0]])
    assert_every_digit(weights[0, 0], [[0.46536883, 0.03463117, 0.46536883, 0.03463117]])
    assert_every_digit(context[0], [[-1.66342208, 0.8961065, 0.03463117]])


def test_practical_10_question_1_self_attention() -> None:
    attention = scaled_dot(W_Q, W_K, W_V)
    context, weights = attention(X[None], attention.project(X[None]))
    assert_every_digit(weights[0, :, 0], P)
    assert_every_digit(context[0], Z)


def test_practical_10_question_1_two_heads() -> None:
    """The second head's projections are all ones."""
    ones = torch.ones(3, 2, dtype=torch.float64)
    query, key, value = (torch.cat([matrix, ones], dim=1) for matrix in (W_Q, W_K, W_V))
    attention = scaled_dot(query, key, value, heads=2)
    context, weights = attention(X[None], attention.project(X[None]))
    assert_every_digit(weights[0, :, 0], P)
    assert_every_digit(weights[0, :, 1], P2)
    expected = [
        [-6.04664898, 3.77781072, -0.75731086],
        [8.28741825, 0.14750295, 10.57968068],
        [-7.3905735, 5.09982766, -0.01158073],
        [-8.25045389, 4.87428797, -1.50140321],
    ]
    assert_every_digit(context[0] @ W_O, expected)


def test_additive_attention_worked_by_hand() -> None:
    """Weights of v tanh(k + q) with v = 2 for cells 0 and 1 and the query 0.5.

    Scores 2 tanh(0.5) = 0.924234 and 2 tanh(1.5) = 1.810297; e^0.924234 = 2.519936 and
    e^1.810297 = 6.112261, so the weights are 0.291924 and 0.708076.
    """
    attention = Attention(score="additive", key_dim=1, query_dim=1, attention_dim=1)
    assert isinstance(attention.score, AdditiveScore)
    with torch.no_grad():
        attention.score.key.weight.fill_(1)
        attention.score.key.bias.zero_()
        attention.score.query.weight.fill_(1)
        attention.score.score.weight.fill_(2)
    context, weights = attention(
        torch.tensor([[[0.5]]]), attention.project(torch.tensor([[[0.0], [1.0]]]))
    )
    assert weights.flatten().tolist() == pytest.approx([0.291924, 0.708076], abs=1e-6)
    assert context.item() == pytest.approx(0.708076, abs=1e-6)


def test_veras_masked_softmax() -> None:
    """The matrices of "Attention" (Vera, 2025)."""
    scores = torch.tensor(
        [[0.2, 0.5, 0.9, 0.6], [0.4, 0.4, 0.9, 0.3], [0.1, 0.9, 0.3, 0.6], [0.7, 0.2, 0.9, 0.2]]
    )
    expected = torch.tensor(
        [
            [0.1708, 0.2305, 0.3439, 0.2548],
            [0.2196, 0.2196, 0.3621, 0.1987],
            [0.1641, 0.3651, 0.2004, 0.2705],
            [0.2912, 0.1766, 0.3556, 0.1766],
        ]
    )
    torch.testing.assert_close(masked_softmax(scores, full(4, 4)), expected, rtol=0, atol=5e-5)


def test_a_fully_masked_row_has_weights_of_zero() -> None:
    """And no slope: nothing becomes NaN, forward or backward, in any way to attend."""
    attention = built("scaled_dot", 2)
    keys, queries = torch.randn(1, 4, 8), torch.randn(1, 3, 8, requires_grad=True)
    mask = torch.tensor([[True, False, True, False], [False] * 4, [True] * 4])
    grid = attention.project(keys)
    context, weights = attention(queries, grid, mask)
    assert weights[0, 1].count_nonzero() == context[0, 1].count_nonzero() == 0
    torch.testing.assert_close(weights[0, [0, 2]].sum(-1), torch.ones(2, 2))
    torch.testing.assert_close(attention.attend(queries, grid, mask), context)
    context.square().sum().backward()
    assert queries.grad is not None and queries.grad.isfinite().all()
    assert queries.grad[0, 1].count_nonzero() == 0 < queries.grad[0, 0].count_nonzero()


def test_masks_by_their_rule() -> None:
    assert causal(2, 3).tolist() == [[True, True, False], [True, True, True]]
    for i, row in enumerate(local(5, 5, delta=1).tolist()):
        assert row == [abs(i - j) <= 1 for j in range(5)]
    assert local(2, 2, delta=0).tolist() == [[True, False], [False, True]]
    assert full(2, 3).tolist() == [[True] * 3] * 2
    with pytest.raises(ConfigError, match="3 queries"):
        causal(3, 2)
    with pytest.raises(ConfigError, match="delta is -1"):
        local(2, 2, delta=-1)


def built(name: str, heads: int = 1) -> Attention:
    torch.manual_seed(0)
    return Attention(score=name, value_dim=8, heads=1 if name == "none" else heads, **SIZES)


@pytest.mark.parametrize("mask", [None, causal(6, 9)])
def test_many_heads_are_torchs_multihead_attention(mask: Tensor | None) -> None:
    """Keys, values and queries of three different widths, and of different numbers."""
    theirs = nn.MultiheadAttention(8, 2, kdim=6, vdim=10, batch_first=True)
    nn.init.normal_(theirs.in_proj_bias)
    ours = Attention(
        score="scaled_dot",
        query_dim=8,
        key_dim=6,
        attention_dim=8,
        value_dim=8,
        heads=2,
        input_dim=10,
    )
    ours.load_state_dict(
        {
            "score.query.weight": theirs.q_proj_weight,
            "score.query.bias": theirs.in_proj_bias[:8],
            "score.key.weight": theirs.k_proj_weight,  # its bias is the same for every key
            "value.weight": theirs.v_proj_weight,
            "value.bias": theirs.in_proj_bias[16:],
        }
    )
    queries, keys, values = torch.randn(3, 6, 8), torch.randn(3, 9, 6), torch.randn(3, 9, 10)
    expected, maps = theirs(
        queries, keys, values, attn_mask=None if mask is None else ~mask, average_attn_weights=False
    )
    grid = ours.project(keys, values)
    context, weights = ours(queries, grid, mask)
    torch.testing.assert_close(theirs.out_proj(context), expected)
    torch.testing.assert_close(weights.transpose(1, 2), maps)


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("mask", [None, local(5, 9, delta=2), causal(5, 9).expand(2, 5, 9)])
def test_without_weights_the_context_is_the_same(
    name: str, heads: int, mask: Tensor | None
) -> None:
    """For products, this is torch's scaled_dot_product_attention."""
    attention = built(name, heads)
    grid, queries = attention.project(torch.randn(2, 9, 8)), torch.randn(2, 5, 8)
    context, weights = attention(queries, grid, mask)
    torch.testing.assert_close(attention.attend(queries, grid, mask), context)
    if mask is not None:
        hidden = ~mask.unsqueeze(-2).expand_as(weights)
        assert weights[hidden].count_nonzero() == 0


@pytest.mark.parametrize("name", SCORES)
def test_weights_sum_to_one_in_half_precision(name: str) -> None:
    torch.manual_seed(0)
    attention = Attention(score=name, key_dim=64, query_dim=8, attention_dim=16, value_dim=8)
    attention = attention.to(torch.bfloat16)
    grid = attention.project(torch.randn(2, 400, 64, dtype=torch.bfloat16))
    context, weights = attention(torch.randn(2, 3, 8, dtype=torch.bfloat16), grid)
    assert weights.dtype == torch.float32
    assert torch.allclose(weights.sum(-1), torch.ones(2, 3, 1), atol=1e-5)
    assert context.shape == (2, 3, 8) and context.dtype == torch.bfloat16


def test_additive_scores_stay_exact_under_autocast() -> None:
    """In bfloat16 sigmoids near 1 would be rounded to steps of 1/256."""
    torch.manual_seed(0)
    score = AdditiveScore(query_dim=8, key_dim=8, attention_dim=256)
    query, cells = torch.randn(1, 3, 8), torch.randn(1, 9, 8)
    with torch.autocast("cpu", torch.bfloat16):
        keys, asked = score.project(cells), score.query(query)
        found = score(query, keys)[:, :, 0].double()
    # v . tanh(k + q) of the same rounded k and q, up to a constant.
    hidden = torch.tanh(keys.double()[:, None] / 2 + asked.double()[:, :, None])
    expected = hidden @ score.score.weight[0].double()
    found, expected = (part - part.mean(-1, keepdim=True) for part in (found, expected))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize("kind", POSITIONS[1:])
def test_positions_start_with_the_norm_of_the_features_and_are_learned(
    kind: str, axes: int
) -> None:
    """Whatever the features' norm is; those of another image make no difference."""
    torch.manual_seed(0)
    positions = Positions(kind=kind, dim=128, axes=axes, length=8)
    features = (
        torch.randn(3, 64 if axes == 2 else 8, 128) * torch.tensor([0.1, 1, 30])[:, None, None]
    )
    told = positions(features)
    code = told[..., 128:] if kind == "binary" else told - features
    times = code.norm(dim=-1).mean(-1) / features.norm(dim=-1).mean(-1)
    wide = {"sine": 0.01, "learned": 0.1, "binary": 0.15}  # bits of a few places, drawn vectors
    assert (times - 1).abs().max() < wide[kind]
    torch.testing.assert_close(positions(features[:1]), told[:1])
    told.square().sum().backward()
    assert positions.scale.grad.abs() > 0
    plain = Positions(kind=kind, dim=128, axes=axes, length=8, scaled=False)
    assert "scale" not in plain.state_dict()


@pytest.mark.parametrize(
    ("kind", "axes", "words", "message"),
    [
        ("sine", 2, 12, "12 cells is not square"),
        ("learned", 1, 2, "position 3 is out of range: there are 3 learned positions"),
        ("binary", 2, 16, "position 3 is out of range: there are 3 binary positions"),
    ],
)
def test_positions_that_do_not_exist_are_refused(
    kind: str, axes: int, words: int, message: str
) -> None:
    positions = Positions(kind=kind, dim=4, axes=axes, length=3)
    with pytest.raises(ConfigError, match=message):
        positions(torch.zeros(1, words, 4), first=2)
