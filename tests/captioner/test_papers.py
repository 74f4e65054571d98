"""The decoders against their papers: torch's own layers, and equations written out here.

Weights are copied by their names in the state_dict. All is float64, so that it agrees to 1e-10;
the sines alone are computed in float32.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from captioner.model.attention import Attention
from captioner.model.config import DecoderConfig
from captioner.model.decoder import Decoder, build_decoder
from captioner.model.layers import Layer
from captioner.model.scores import build_score

B, K, T, L, D, WORDS = 2, 3, 5, 9, 10, 11
close = partial(torch.testing.assert_close, rtol=0, atol=1e-10)
roughly = partial(torch.testing.assert_close, rtol=0, atol=1e-6)


def made(*, grid_dim: int = D, **settings: Any) -> Decoder:
    torch.manual_seed(0)
    sizes = {"embedding_dim": 5, "hidden_dim": 8, "attention_dim": 8, "dropout": 0.0}
    config = DecoderConfig(**{**sizes, **settings})
    decoder = build_decoder(config, grid_dim=grid_dim, vocabulary_size=WORDS).double().eval()
    for parameter in decoder.parameters():  # no bias is 0, no norm does nothing
        nn.init.normal_(parameter, std=0.7)
    return decoder


def given() -> tuple[Tensor, Tensor]:
    """The grids of two images, and three captions of each."""
    torch.manual_seed(1)
    return torch.randn(B, L, D).double(), torch.randint(0, WORDS, (B, K, T))


def linear(weights: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def softmax_of_additive(
    weights: dict[str, Tensor], query: Tensor, cells: Tensor, heads: int = 1
) -> Tensor:
    """v . tanh(W_k a_i + W_q h), and its softmax over the cells: (B, K, H, L)."""
    key = linear(weights, "attention.score.key", cells)[:, None]
    asked = linear(weights, "attention.score.query", query)[:, :, None]
    scores = torch.tanh(key + asked) * weights["attention.score.score.weight"]
    return scores.unflatten(-1, (heads, -1)).sum(-1).transpose(2, 3).softmax(-1)


def averaged(alphas: Tensor, values: Tensor) -> Tensor:
    """Each head's mean (B, K, H, L) of its own part of the values (B, L, V), side by side."""
    parts = values.chunk(alphas.shape[2], dim=-1)
    return beside(*(alphas[:, :, head] @ part for head, part in enumerate(parts)))


def torchs_cell(*parts: Tensor, hidden: Tensor, bias: Tensor) -> nn.LSTMCell:
    """torch's LSTM with these matrices; its gates stand as i, f, g, o, ours as i, f, o, g."""
    into = torch.cat(parts, dim=1)
    n = hidden.shape[1]
    order = torch.cat([torch.arange(2 * n), torch.arange(3 * n, 4 * n), torch.arange(2 * n, 3 * n)])
    cell = nn.LSTMCell(into.shape[1], n).double()
    with torch.no_grad():
        cell.weight_ih.copy_(into[order])
        cell.weight_hh.copy_(hidden[order])
        cell.bias_ih.copy_(bias[order])
        cell.bias_hh.zero_()
    return cell


def advance(cell: nn.LSTMCell, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """One step of (B, K, ...)."""
    h, c = cell(x.flatten(0, 1), (h.flatten(0, 1), c.flatten(0, 1)))
    return h.unflatten(0, (B, K)), c.unflatten(0, (B, K))


def beside(*parts: Tensor) -> Tensor:
    return torch.cat(parts, dim=-1)


def scored(weights: dict[str, Tensor], deep: Tensor) -> Tensor:
    """The words' own matrix scores them."""
    return deep @ weights["embedding.weight"].T + weights["output_bias"]


SQUARES = [[row, column] for row in range(3) for column in range(3)]
recurrent = pytest.mark.parametrize(
    ("value_dim", "positions", "heads"),
    [
        (None, "none", 1),
        (7, "none", 1),
        (7, "sine", 1),
        (None, "learned", 1),
        (None, "binary", 1),
        (6, "none", 2),
    ],
)


def sines(place: int, dim: int) -> list[float]:
    """Vaswani et al. 2017, section 3.5."""
    waves = [place / 10_000 ** (2 * i / dim) for i in range(dim // 2)]
    return [turn(angle) for angle in waves for turn in (math.sin, math.cos)]


def told_places(
    kind: str, weights: dict[str, Tensor], name: str, features: Tensor, places: list[list[int]]
) -> Tensor:
    """Features (..., L, D), each told its place: a number in a sentence, two in a grid."""
    axes, dim = len(places[0]), features.shape[-1]
    if kind == "none":
        return features
    # As loud as the word, or the cells of an image on average, times a learned number.
    norms = features.square().sum(-1, keepdim=True).sqrt()
    loud = weights[f"{name}.scale"] * (norms if axes == 1 else norms.mean(-2, keepdim=True))
    if kind == "sine":
        waves = dim // (2 * axes) * 2
        told = [[x for at in place for x in sines(at, waves)] for place in places]
        code = F.pad(torch.tensor(told).double(), (0, dim - len(told[0])))
        return features + loud * code / math.sqrt(axes * waves / 2)
    if kind == "learned":
        tables = [weights[f"{name}.tables.{axis}"] for axis in range(axes)]
        code = sum(table[[place[axis] for place in places]] for axis, table in enumerate(tables))
        return features + loud * code / math.sqrt(axes)
    bits = 6 if axes == 2 else 9  # of 64 rows and columns, of 512 words
    told = [[at >> bit & 1 for at in place for bit in range(bits)] for place in places]
    code = torch.tensor(told).double().expand(*features.shape[:-1], -1)
    return beside(features, loud * code / math.sqrt(axes * bits / 2))


@recurrent
def test_lstm_is_show_attend_and_tell(value_dim: int | None, positions: str, heads: int) -> None:
    """Xu et al. 2015, equations 1 to 9, with the gate beta of section 4.2.1."""
    decoder, (a, tokens) = made(value_dim=value_dim, positions=positions, heads=heads), given()
    same = roughly if positions == "sine" else close
    w = decoder.state_dict()
    cells = told_places(positions, w, "positions", a, SQUARES)
    whole, state = decoder(a, tokens), decoder.start(a).expand(K)
    lstm = torchs_cell(
        w["word_gates.weight"], w["context_gates.weight"],
        hidden=w["hidden_gates.weight"], bias=w["word_gates.bias"],
    )  # fmt: skip
    values = cells if value_dim is None else linear(w, "attention.value", cells)
    h = linear(w, "initial_hidden", a.mean(1)).tanh()[:, None].expand(-1, K, -1)
    c = linear(w, "initial_cell", a.mean(1)).tanh()[:, None].expand(-1, K, -1)
    for t in range(T):
        output = decoder.step(tokens[..., t], state)
        state = output.state
        word = w["embedding.weight"][tokens[..., t]]
        alphas = softmax_of_additive(w, h, cells, heads)
        alpha = alphas.mean(2)
        beta = linear(w, "gate", h).sigmoid()
        z = beta * averaged(alphas, values)
        h, c = advance(lstm, beside(word, z), h, c)
        deep = word + linear(w, "deep_hidden", h) + linear(w, "deep_context", z)
        for attention, gate in (
            (output.attention, output.gate),
            (whole.attention[:, :, t], whole.gate[:, :, t]),
        ):
            same(attention, alpha)
            same(gate, beta.squeeze(-1))
        same(state.hypothesis["hidden"], h)
        same(state.hypothesis["cell"], c)
        same(whole.deep[:, :, t], deep)
        same(output.logits, scored(w, deep))
        same(decoder.logits(whole.deep[:, :, t]), scored(w, deep))


def test_current_lstm_is_luongs_global_attention() -> None:
    """Luong et al. 2015, section 3: h_t looks; W_c [z_t; h_t] under a tanh says the word."""
    decoder, (a, tokens) = made(query="current"), given()
    w = decoder.state_dict()
    whole, state = decoder(a, tokens), decoder.start(a).expand(K)
    lstm = torchs_cell(
        w["word_gates.weight"], hidden=w["hidden_gates.weight"], bias=w["word_gates.bias"]
    )
    h = linear(w, "initial_hidden", a.mean(1)).tanh()[:, None].expand(-1, K, -1)
    c = linear(w, "initial_cell", a.mean(1)).tanh()[:, None].expand(-1, K, -1)
    combine = beside(w["deep_context.weight"], w["deep_hidden.weight"])
    for t in range(T):
        output = decoder.step(tokens[..., t], state)
        state = output.state
        h, c = advance(lstm, w["embedding.weight"][tokens[..., t]], h, c)
        alpha = softmax_of_additive(w, h, a)[:, :, 0]
        z = alpha @ a
        s = torch.tanh(beside(z, h) @ combine.T + w["deep_hidden.bias"])
        assert output.gate is whole.gate is None
        close(output.attention, alpha)
        close(whole.attention[:, :, t], alpha)
        close(state.hypothesis["hidden"], h)
        close(state.hypothesis["cell"], c)
        close(whole.deep[:, :, t], s)
        close(output.logits, scored(w, s))


@recurrent
def test_top_down_is_bottom_up_and_top_down_attention(
    value_dim: int | None, positions: str, heads: int
) -> None:
    """Anderson et al. 2018, section 3.2: equations 1 to 5."""
    decoder = made(kind="top_down", value_dim=value_dim, positions=positions, heads=heads)
    same = roughly if positions == "sine" else close
    w, (a, tokens) = decoder.state_dict(), given()
    v = told_places(positions, w, "positions", a, SQUARES)
    whole, state = decoder(a, tokens), decoder.start(a).expand(K)
    attending = torchs_cell(
        w["attention_lstm_language.weight"], w["attention_lstm_mean.weight"],
        w["attention_lstm_word.weight"],
        hidden=w["attention_lstm_hidden.weight"], bias=w["attention_lstm_word.bias"],
    )  # fmt: skip
    speaking = torchs_cell(
        w["language_lstm_context.weight"], w["language_lstm_attention.weight"],
        hidden=w["language_lstm_hidden.weight"], bias=w["language_lstm_attention.bias"],
    )  # fmt: skip
    values = v if value_dim is None else linear(w, "attention.value", v)
    mean = values.mean(1)[:, None].expand(-1, K, -1)
    h1 = c1 = h2 = c2 = torch.zeros(B, K, 8).double()
    for t in range(T):
        output = decoder.step(tokens[..., t], state)
        state = output.state
        word = w["embedding.weight"][tokens[..., t]]
        h1, c1 = advance(attending, beside(h2, mean, word), h1, c1)
        alphas = softmax_of_additive(w, h1, v, heads)
        alpha = alphas.mean(2)
        h2, c2 = advance(speaking, beside(averaged(alphas, values), h1), h2, c2)
        deep = linear(w, "deep_hidden", h2)
        same(output.attention, alpha)
        same(whole.attention[:, :, t], alpha)
        for name, number in (("attention", (h1, c1)), ("language", (h2, c2))):
            same(state.hypothesis[f"{name}_hidden"], number[0])
            same(state.hypothesis[f"{name}_cell"], number[1])
        same(whole.deep[:, :, t], deep)
        same(output.logits, scored(w, deep))


def torchs_attention(weights: dict[str, Tensor], name: str, heads: int) -> nn.MultiheadAttention:
    """Copy an attention; a key has no bias, which the softmax could not tell."""
    parts = ("score.query", "score.key", "value")
    query, key, value = (weights[f"{name}.{part}.weight"] for part in parts)
    n, entering = len(query), key.shape[1]
    biases = weights[f"{name}.score.query.bias"], torch.zeros(n), weights[f"{name}.value.bias"]
    theirs = nn.MultiheadAttention(
        n, heads, kdim=entering, vdim=entering, batch_first=True
    ).double()
    output = f"{name}_output"
    with torch.no_grad():
        if entering == n:
            theirs.in_proj_weight.copy_(torch.cat([query, key, value]))
        else:
            for into, matrix in (("q", query), ("k", key), ("v", value)):
                getattr(theirs, f"{into}_proj_weight").copy_(matrix)
        theirs.in_proj_bias.copy_(torch.cat(biases))
        theirs.out_proj.weight.copy_(weights[f"{output}.weight"])
        theirs.out_proj.bias.copy_(weights[f"{output}.bias"])
    return theirs


def torchs_layer(weights: dict[str, Tensor], layer: str, heads: int, norm: str) -> nn.Module:
    theirs = nn.TransformerDecoderLayer(
        8, heads, dim_feedforward=16, dropout=0.0, batch_first=True, norm_first=norm == "pre"
    ).double()
    copied = {
        **{
            f"linear{number + 1}.{part}": weights[f"{layer}.feed_forward.{2 * number}.{part}"]
            for number in range(2)
            for part in ("weight", "bias")
        },
        **{
            f"norm{number + 1}.{part}": weights[f"{layer}.norms.{number}.{part}"]
            for number in range(3)
            for part in ("weight", "bias")
        },
    }
    assert not theirs.load_state_dict(copied, strict=False).unexpected_keys
    theirs.self_attn = torchs_attention(weights, f"{layer}.self_attention", heads)
    theirs.multihead_attn = torchs_attention(weights, f"{layer}.cross_attention", heads)
    return theirs.eval()


@pytest.mark.parametrize("positions", ["none", "sine", "learned", "binary"])
@pytest.mark.parametrize(("norm", "heads"), [("pre", 1), ("pre", 2), ("post", 2)])
def test_transformer_is_torchs(norm: str, heads: int, positions: str) -> None:
    decoder, (a, tokens) = (
        made(
            kind="transformer", score="scaled_dot", norm=norm, heads=heads, positions=positions,
            layers=2,
        ),
        given(),
    )  # fmt: skip
    w = decoder.state_dict()
    words = linear(w, "word_projection", w["embedding.weight"][tokens])
    words = told_places(positions, w, "word_positions", words, [[place] for place in range(T)])
    if positions == "binary":
        words = linear(w, "position_projection", words)
    cells = linear(w, "grid_projection", a)
    cells = told_places(positions, w, "grid_positions", cells, SQUARES)
    x, grid = words.flatten(0, 1), cells.repeat_interleave(K, dim=0)
    looked: list[Tensor] = []
    read: list[Tensor] = []
    after = nn.Transformer.generate_square_subsequent_mask(T).double()
    for number in range(2):
        layer = torchs_layer(w, f"layers.{number}", heads, norm)
        entering = layer.norm1(x) if norm == "pre" else x
        seen = layer.self_attn(
            entering, entering, entering, attn_mask=after, average_attn_weights=False
        )
        read.append(seen[1].unflatten(0, (B, K)))

        def listen(look: nn.Module, asked: Any, _: object) -> None:
            weights = nn.MultiheadAttention.forward(look, *asked, need_weights=True)[1]
            looked.append(weights.unflatten(0, (B, K)))

        layer.multihead_attn.register_forward_hook(listen)
        x = layer(x, grid, tgt_mask=after)
    if norm == "pre":
        x = F.layer_norm(x, (8,), w["final_norm.weight"], w["final_norm.bias"])
    deep = linear(w, "deep_hidden", x).unflatten(0, (B, K))

    same = roughly if positions == "sine" else close
    whole, state = decoder(a, tokens), decoder.start(a).expand(K)
    same(decoder.word_attention(a, tokens), read[-1])
    same(whole.deep, deep)
    same(whole.attention, looked[-1])
    for t in range(T):
        output = decoder.step(tokens[..., t], state)
        state = output.state
        same(output.logits, scored(w, deep[:, :, t]))
        same(output.attention, looked[-1][:, :, t])


@pytest.mark.parametrize("positions", ["none", "sine", "learned", "binary"])
@pytest.mark.parametrize(("norm", "heads"), [("pre", 1), ("pre", 2), ("post", 2)])
@pytest.mark.parametrize("kind", ["lstm", "top_down", "transformer"])
def test_layers_over_the_grid_are_torchs_encoder(
    kind: str, norm: str, heads: int, positions: str
) -> None:
    """A decoder with them does what one without does with what torch's encoder makes of a grid."""
    sizes = {"kind": kind, "norm": norm, "heads": heads, "value_dim": 8, "score": "scaled_dot"}
    decoder = made(**sizes, positions=positions, encoder_layers=2)
    (a, tokens), w = given(), decoder.state_dict()
    cells = linear(w, "grid_layers.input_projection", a)
    cells = told_places(positions, w, "grid_layers.positions", cells, SQUARES)
    if positions == "binary":
        cells = linear(w, "grid_layers.position_projection", cells)
    for number in range(2):
        name = f"grid_layers.layers.{number}"
        theirs = nn.TransformerEncoderLayer(
            8, heads, dim_feedforward=16, dropout=0.0, batch_first=True, norm_first=norm == "pre"
        ).double()
        copied = {
            f"{ours}.{part}": w[f"{name}.{own}.{part}"]
            for ours, own in (
                ("linear1", "feed_forward.0"), ("linear2", "feed_forward.2"),
                ("norm1", "norms.0"), ("norm2", "norms.1"),
            )
            for part in ("weight", "bias")
        }  # fmt: skip
        assert not theirs.load_state_dict(copied, strict=False).unexpected_keys
        theirs.self_attn = torchs_attention(w, f"{name}.self_attention", heads)
        cells = theirs.train()(cells)  # in `eval` torch takes another way, without our matrices
    if norm == "pre":
        cells = F.layer_norm(cells, (8,), w["grid_layers.norm.weight"], w["grid_layers.norm.bias"])
    same = roughly if positions == "sine" else close
    same(decoder.grid_layers(a), cells)
    # Behind them is the decoder of a grid of 8 numbers, whose cells need no places any more.
    if kind != "transformer" or positions == "none":
        plain = made(**sizes, grid_dim=8)
        plain.load_state_dict({k: v for k, v in w.items() if not k.startswith("grid_layers.")})
        whole, expected = decoder(a, tokens), plain(cells, tokens)
        same(whole.deep, expected.deep)
        same(whole.attention, expected.attention)


@pytest.mark.parametrize(
    ("score", "times"), [("multiplicative", 1.0), ("dot", 1.0), ("scaled_dot", 8**-0.5)]
)
def test_products_are_their_formulas(score: str, times: float) -> None:
    torch.manual_seed(0)
    made = build_score(score, query_dim=6, key_dim=6, attention_dim=8)
    w = {name: part.double() for name, part in made.double().state_dict().items()}  # type: ignore[attr-defined]
    q, k = torch.randn(B, K, 6).double(), torch.randn(B, L, 6).double()
    asked = q if score == "dot" else q @ w["query.weight"].T
    asked = asked + w["query.bias"] if score == "scaled_dot" else asked
    keys = k if score == "dot" else k @ w["key.weight"].T
    close(made(q, made.project(k))[:, :, 0], times * asked @ keys.transpose(1, 2))
    assert len(w) == {"dot": 0, "multiplicative": 2, "scaled_dot": 3}[score]


@pytest.mark.parametrize("score", ["additive", "multiplicative", "dot", "scaled_dot"])
def test_heads_are_one_head_each_side_by_side(score: str) -> None:
    """Each with its part of the rows of W_q, W_k, v and the values' matrix."""
    heads, sizes = 3, {"query_dim": 12, "key_dim": 7, "score": score}
    torch.manual_seed(0)
    many = Attention(**sizes, attention_dim=12, value_dim=12, heads=heads).double()
    query, cells = torch.randn(B, K, 12).double(), torch.randn(B, L, 7).double()
    context, weights = many(query, many.project(cells))
    contexts = []
    for head in range(heads):
        mine = slice(4 * head, 4 * head + 4)
        asked = query[..., mine] if score == "dot" else query
        one = Attention(
            score=score, query_dim=asked.shape[-1], key_dim=7, attention_dim=4, value_dim=4
        ).double()
        own = one.state_dict()
        for name, part in many.state_dict().items():
            own[name].copy_(part[:, mine] if name == "score.score.weight" else part[mine])
        alone, looked = one(asked, one.project(cells))
        close(weights[:, :, head], looked[:, :, 0])
        contexts.append(alone)
    close(context, beside(*contexts))


@pytest.mark.parametrize("kind", ["lstm", "top_down", "transformer"])
def test_words_are_dropped_out_in_training(kind: str) -> None:
    """Units of a word that are left are scaled up; another draw leaves others."""
    decoder, (a, tokens) = made(kind=kind, dropout=0.5), given()
    assert 0.3 < (decoder.train()(a, tokens).deep == 0).double().mean() < 0.7
    for layer in decoder.modules():
        if isinstance(layer, Layer):
            residual = layer.residual(torch.zeros(B, 99, 8), torch.ones(B, 99, 8), 0)
            assert residual.unique().tolist() == [0, 2]
    before: list[Tensor] = []
    first = {
        "lstm": "word_gates", "top_down": "attention_lstm_word", "transformer": "word_projection",
    }  # fmt: skip
    layer = decoder.get_submodule(first[kind])
    layer.register_forward_hook(lambda _, given, __: before.append(given[0]))
    for training in (False, True, True):
        decoder.train(training)(a, tokens)
    plain, one, other = before
    for dropped in (one, other):
        left = dropped != 0
        assert 0.3 < left.double().mean() < 0.7
        close(dropped[left], 2 * plain[left])
    assert not torch.equal(one, other)
