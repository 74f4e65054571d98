"""Attention against numbers worked by hand, in lecture notes, and by PyTorch's own attention."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from captioner import ConfigError
from captioner.attention.attention import Attention, average, causal, full, local, masked_softmax
from captioner.attention.scores import SCORES, AdditiveScore, ProductScore, ScaledDotScore

PRODUCTS = ("multiplicative", "dot", "scaled_dot")
SIZES = {"query_dim": 8, "key_dim": 8, "attention_dim": 12}


def hand_made() -> Attention:
    """v . tanh(k + q) with one key dimension, v = 2, k = a, q = h."""
    attention = Attention(score="additive", key_dim=1, query_dim=1, attention_dim=1)
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


# "Practical 10: Attention Mechanisms", Deep Learning (IST, 2021-22), question 1.
X = torch.tensor([[-2, 1, 0.5], [1, 1.5, -0.5], [-1.5, 1, -0.5], [-2, -2.5, 1.5]]).double()
W_Q = torch.tensor([[1, -1.5], [0, 2], [-0.5, -1]]).double()
W_K = torch.tensor([[-1.5, -1], [2.5, 0], [0.5, -1]]).double()
W_V = torch.tensor([[1, 2.5], [-0.5, -2], [0, -1]]).double()
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


def close(found: Tensor, expected: list[list[float]]) -> None:
    """Equal to every digit that the source gives."""
    for row, wanted in zip(found.tolist(), expected, strict=True):
        for number, digits in zip(row, wanted, strict=True):
            last = Decimal(1).scaleb(Decimal(repr(digits)).as_tuple().exponent)
            assert abs(Decimal(number) - Decimal(repr(digits))) <= last * Decimal("0.51")


def test_practical_10_question_1_scaled_dot_product() -> None:
    score = ScaledDotScore(query_dim=3, key_dim=3, attention_dim=3).double()
    nn.init.zeros_(score.query.bias)
    score.query.weight.data = score.key.weight.data = torch.eye(3).double()
    query = torch.tensor([[[-2, 1, -1]]]).double()
    scores = score(query, score.project(X[None]))
    weights = masked_softmax(scores)
    close(scores[0, 0], [[2.59807621, 0, 2.59807621, 0]])
    close(weights[0, 0], [[0.46536883, 0.03463117, 0.46536883, 0.03463117]])
    close(average(weights, X[None])[0], [[-1.66342208, 0.8961065, 0.03463117]])


def in_heads(heads: int) -> Attention:
    """The practical's projections; a second head has all ones."""
    attention = Attention(
        score="scaled_dot",
        query_dim=3,
        key_dim=3,
        attention_dim=2 * heads,
        value_dim=2 * heads,
        heads=heads,
    ).double()
    score = attention.score
    assert isinstance(score, ProductScore)
    nn.init.zeros_(score.query.bias)
    nn.init.zeros_(attention.value.bias)
    for part, matrix in ((score.query, W_Q), (score.key, W_K), (attention.value, W_V)):
        ones = torch.ones(3, 2 * (heads - 1), dtype=torch.float64)
        part.weight.data = torch.cat([matrix, ones], dim=1).T.contiguous()
    return attention


def test_practical_10_question_1_self_attention() -> None:
    attention = in_heads(1)
    context, weights = attention(X[None], attention.project(X[None]))
    close(weights[0, :, 0], P)
    close(context[0], Z)


def test_practical_10_question_1_two_heads() -> None:
    attention = in_heads(2)
    context, weights = attention(X[None], attention.project(X[None]))
    close(weights[0, :, 0], P)
    close(weights[0, :, 1], P2)
    output = torch.tensor([[-1, 1.5, 2], [0, -1, -2], [1, -1.5, 0], [2, 0, 1]]).double()
    expected = [
        [-6.04664898, 3.77781072, -0.75731086],
        [8.28741825, 0.14750295, 10.57968068],
        [-7.3905735, 5.09982766, -0.01158073],
        [-8.25045389, 4.87428797, -1.50140321],
    ]
    close(context[0] @ output, expected)


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
    whole = masked_softmax(scores, full(4, 4))
    torch.testing.assert_close(whole, expected, rtol=0, atol=5e-5)
    torch.testing.assert_close(masked_softmax(scores), whole)
    seen = masked_softmax(scores, causal(4, 4))
    torch.testing.assert_close(seen.sum(-1), torch.ones(4))
    assert seen.triu(1).count_nonzero() == 0
    # What may be seen keeps its proportions.
    torch.testing.assert_close(seen, (whole.tril().T / whole.tril().sum(-1)).T)


def test_masks_by_their_rule() -> None:
    assert causal(2, 3).tolist() == [[True, True, False], [True, True, True]]
    for i, row in enumerate(local(5, 5, delta=1).tolist()):
        assert row == [abs(i - j) <= 1 for j in range(5)]
    assert local(2, 2, delta=0).tolist() == [[True, False], [False, True]]
    assert full(2, 3).tolist() == [[True] * 3] * 2
    with pytest.raises(ConfigError, match="3 queries"):
        causal(3, 2)
    with pytest.raises(ConfigError, match="delta -1"):
        local(2, 2, delta=-1)


def built(name: str, heads: int = 1) -> Attention:
    torch.manual_seed(0)
    return Attention(score=name, value_dim=8, heads=1 if name == "none" else heads, **SIZES)


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("name", SCORES)
def test_keys_with_values_are_a_set_and_queries_a_list(name: str, heads: int) -> None:
    """ "13.2. Attention Mechanisms" (Geneva): invariant to one order, equivariant to the other."""
    attention = built(name, heads)
    cells, queries = torch.randn(2, 9, 8), torch.randn(2, 5, 8)
    context, weights = attention(queries, attention.project(cells))
    assert weights.shape == (2, 5, attention.score.heads, 9)
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    cell_order, query_order = torch.randperm(9), torch.randperm(5)
    moved, moved_weights = attention(
        queries[:, query_order], attention.project(cells[:, cell_order])
    )
    torch.testing.assert_close(moved, context[:, query_order], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(moved_weights, weights[:, query_order][..., cell_order])


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("name", SCORES)
def test_only_no_attention_ignores_the_query(name: str, heads: int) -> None:
    attention = built(name, heads)
    grid = attention.project(torch.randn(1, 9, 8))
    _, weights = attention(torch.randn(1, 2, 8), grid)
    assert torch.equal(weights[0, 0], weights[0, 1]) == (name == "none")
    if name == "none":
        torch.testing.assert_close(weights, torch.full_like(weights, 1 / 9))


def test_the_sum_is_the_concatenated_form() -> None:
    """W_k k + W_q q is one matrix over both in one vector (Bahdanau et al. 2015)."""
    score = AdditiveScore(query_dim=4, key_dim=6, attention_dim=5)
    keys, queries = torch.randn(2, 7, 6), torch.randn(2, 3, 4)
    whole = torch.cat([score.query.weight, score.key.weight], dim=1)
    pairs = torch.cat(
        [queries[:, :, None].expand(-1, -1, 7, -1), keys[:, None].expand(-1, 3, -1, -1)], dim=-1
    )
    expected = score.score(torch.tanh(F.linear(pairs, whole, score.key.bias))).squeeze(-1)
    found = score(queries, score.project(keys)).squeeze(2)
    torch.testing.assert_close(found.softmax(-1), expected.softmax(-1))


@pytest.mark.parametrize("heads", [1, 5])
def test_slopes_are_those_of_the_formula(heads: int) -> None:
    """v . tanh(W_k k + W_q q), left to automatic differentiation, has the same slopes."""
    score = AdditiveScore(key_dim=6, query_dim=4, attention_dim=10, heads=heads)
    features, query = torch.randn(2, 7, 6, requires_grad=True), torch.randn(2, 3, 4)
    wanted = torch.randn(2, 3, heads, 7)
    inputs = (query.requires_grad_(), features, *score.parameters())

    hidden = torch.tanh(score.key(features).unsqueeze(1) + score.query(query).unsqueeze(2))
    parts = (hidden * score.score.weight.squeeze(0)).view(2, 3, 7, heads, -1)
    plain = parts.sum(-1).transpose(2, 3)
    # A part that is the same for every cell differs: the softmax cannot tell.
    expected = torch.autograd.grad((plain.softmax(-1) * wanted).sum(), inputs)
    ours = score(query, score.project(features))
    found = torch.autograd.grad((ours.softmax(-1) * wanted).sum(), inputs)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_softmax_of_squared_distances_is_nadaraya_watson() -> None:
    """Scores -(x - x_i)^2 w / 2: "Attention and Transformers" (Pavia)."""
    x, points, heights, w = torch.linspace(0, 5, 7), torch.rand(9) * 5, torch.randn(9), 1.7
    scores = -((x[:, None] - points) ** 2) * w / 2
    found = average(masked_softmax(scores)[None, :, None], heights[None, :, None])
    for place, height in zip(x.tolist(), found.flatten().tolist(), strict=True):
        kernel = [math.exp(-w * (place - p) ** 2 / 2) for p in points.tolist()]
        weighted = sum(k * y for k, y in zip(kernel, heights.tolist(), strict=True))
        assert height == pytest.approx(weighted / sum(kernel), abs=1e-5)


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
        queries,
        keys,
        values,
        attn_mask=None if mask is None else ~mask,
        average_attn_weights=False,
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
            found = together[image, hypothesis, 0].tolist()
            assert found == pytest.approx(expected, abs=1e-6)


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


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"score": "dotty"}, r"'dotty'.*additive, multiplicative, dot, scaled_dot, none"),
        ({"score": "dot", "query_dim": 6}, r"a query of 6 numbers with a key of 8.*scaled_dot"),
        ({"heads": 5}, r"heads 5 do not divide attention_dim 12 into equal parts: 4 and 6 would"),
        (
            {"score": "dot", "heads": 3},
            r"heads 3 do not divide query_dim 8 into equal parts: 2 and 4 would",
        ),
        ({"heads": 3}, r"heads 3 do not divide value_dim 8 into equal parts: 2 and 4 would"),
        ({"heads": 0}, r"heads 0"),
        ({"score": "none", "heads": 2}, r"the same mean"),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, int | str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Attention(**{"score": "additive", **SIZES, **changes})
