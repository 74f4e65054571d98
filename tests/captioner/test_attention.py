"""Attention against PyTorch's own: masks, widths, half precision; its scores are in test_papers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from captioner import ConfigError
from captioner.attention.attention import Attention, causal, full, local, masked_softmax
from captioner.attention.positions import POSITIONS, Positions, grid_places
from captioner.attention.scores import SCORES

SIZES = {"query_dim": 8, "key_dim": 8, "attention_dim": 12}


def test_a_mask_keeps_the_proportions_of_what_may_be_seen() -> None:
    scores = torch.randn(4, 4)
    whole, seen = masked_softmax(scores, full(4, 4)), masked_softmax(scores, causal(4, 4))
    torch.testing.assert_close(whole, scores.softmax(-1))
    torch.testing.assert_close(masked_softmax(scores), whole)
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
        (
            {"score": "dot", "heads": 3},
            r"heads 3 do not divide query_dim 8 into equal parts: 2 or 4 would",
        ),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, int | str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Attention(**{"score": "additive", **SIZES, **changes})


# Positions


def test_a_grid_with_places_is_square() -> None:
    with pytest.raises(ConfigError, match="12 cells is not square"):
        grid_places(12)


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
