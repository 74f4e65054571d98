"""Attention against numbers worked by hand, in lecture notes, and by PyTorch's own attention."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from captioner import ConfigError
from captioner.attention.attention import Attention, causal, full, local, masked_softmax
from captioner.attention.positions import (
    POSITIONS,
    Positions,
    binary,
    grid_places,
    sine,
    word_places,
)
from captioner.attention.scores import SCORES, AdditiveScore, ProductScore

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


def close(found: Tensor, expected: list[list[float]]) -> None:
    """Equal to every digit that the source gives."""
    for row, wanted in zip(found.tolist(), expected, strict=True):
        for number, digits in zip(row, wanted, strict=True):
            last = Decimal(1).scaleb(Decimal(repr(digits)).as_tuple().exponent)
            assert abs(Decimal(number) - Decimal(repr(digits))) <= last * Decimal("0.51")


def test_practical_10_question_1_two_heads() -> None:
    """The second head's projections are all ones."""
    attention = Attention(
        score="scaled_dot", query_dim=3, key_dim=3, attention_dim=4, value_dim=4, heads=2
    ).double()
    score = attention.score
    assert isinstance(score, ProductScore)
    nn.init.zeros_(score.query.bias)
    nn.init.zeros_(attention.value.bias)
    for part, matrix in ((score.query, W_Q), (score.key, W_K), (attention.value, W_V)):
        part.weight.data = torch.cat([matrix, torch.ones(3, 2).double()], dim=1).T.contiguous()
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


def test_a_row_that_may_see_nothing_has_weights_of_zero() -> None:
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
        ({"heads": 5}, r"heads 5 do not divide attention_dim 12 into equal parts: 4 or 6 would"),
        (
            {"score": "dot", "heads": 3},
            r"heads 3 do not divide query_dim 8 into equal parts: 2 or 4 would",
        ),
        ({"heads": 3}, r"heads 3 do not divide value_dim 8 into equal parts: 2 or 4 would"),
        ({"heads": 0}, r"heads 0"),
        ({"score": "none", "heads": 2}, r"the same mean"),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, int | str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Attention(**{"score": "additive", **SIZES, **changes})


# Positions


def test_sines_are_the_papers() -> None:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos of the same (Vaswani et al.)."""
    code = sine(torch.tensor([0, 7]), 6)
    assert code[0].tolist() == [0, 1, 0, 1, 0, 1]
    for i in range(3):
        angle = 7 / 10000 ** (2 * i / 6)
        assert code[1, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
        assert code[1, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


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
    grid = positions(torch.ones(2, 25, 8))
    assert grid.shape == (2, 25, positions.output_dim)
    assert len(grid[0].unique(dim=0)) == (1 if kind == "none" else 25)
    words = Positions(kind=kind, dim=6, axes=1, length=5)(torch.ones(3, 4, 5, 6))
    assert len(words[1, 2].unique(dim=0)) == (1 if kind == "none" else 5)


@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize("kind", POSITIONS[1:])
def test_positions_begin_as_loud_as_what_they_place_and_learn(kind: str, axes: int) -> None:
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


def test_a_word_is_told_its_place_whatever_stands_beside_it() -> None:
    positions = Positions(kind="sine", dim=8, axes=1, length=9)
    words = torch.randn(2, 9, 8)
    torch.testing.assert_close(positions(words[:, 4:5], first=4), positions(words)[:, 4:5])


@pytest.mark.parametrize("kind", ["learned", "binary"])
def test_a_place_beyond_the_length_is_refused(kind: str) -> None:
    positions = Positions(kind=kind, dim=4, axes=1, length=3)
    assert positions(torch.zeros(1, 2, 4), first=1).shape[1] == 2
    with pytest.raises(ConfigError, match=f"place 3 has no {kind} position: there are 3"):
        positions(torch.zeros(1, 2, 4), first=2)
    with pytest.raises(ConfigError, match=f"place 3 has no {kind} position: there are 3"):
        Positions(kind=kind, dim=4, axes=2, length=3)(torch.zeros(1, 16, 4))


def test_sines_leave_what_is_left_over() -> None:
    code = Positions(kind="sine", dim=7, axes=2, length=3, scaled=False)(torch.zeros(1, 9, 7))
    assert code[..., 4:].count_nonzero() == 0
    torch.testing.assert_close(code[0, 5, :4], sine(torch.tensor([1, 2]), 2).flatten())
