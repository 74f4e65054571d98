"""The straightforward way to caption: what Captioner is measured against.

Beam search as the usual tutorials of Show, Attend and Tell write it (caption.py of "a PyTorch
Tutorial to Image Captioning"): one image at a time, the grid copied for every beam, and the
attention projecting those copies again at every step. Nothing else is slower than it has to be: the
copies are made once, the search keeps to tensors, and nothing is recorded for a gradient.

The formulas are written out here, on the decoder's weights, so that what makes captioner faster
does not make this faster or slower too, and so that equal sentences say something.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from captioner.model.lstm import LSTMDecoder
from captioner.model.scores import AdditiveScore
from captioner.vocabulary import END, PAD, START, UNK


class Sentence(NamedTuple):
    """The likeliest sentence of one image.

    tokens: its words, without <end>; score: log-probability, <end> included; attention: (words, L),
    which captioner gives with every word too.
    """

    tokens: list[int]
    score: float
    attention: Tensor


class Step(NamedTuple):
    """What one word gives: logs (beam, words), attention (beam, L), hidden and cell (beam, n)."""

    logs: Tensor
    attention: Tensor
    hidden: Tensor
    cell: Tensor


@torch.inference_mode()
def search(
    decoder: LSTMDecoder,
    grid: Tensor,
    *,
    beam: int,
    words: int,
    start: int = START,
    until_end: bool = False,
) -> Sentence:
    """Search for the likeliest sentence of one grid (1, L, D), of exactly `words` words.

    With `until_end` until every beam has said <end>, as the tutorial does, and after `words` words
    at the latest: a beam that ends leaves, and the search goes on with one less.
    """
    copies = grid.expand(beam, -1, -1).contiguous()
    mean = copies.mean(dim=1)
    hidden = torch.tanh(decoder.initial_hidden(mean))
    cell = torch.tanh(decoder.initial_cell(mean))
    tokens, totals = torch.full((beam,), start), torch.zeros(beam)
    sequences = torch.zeros(beam, 0, dtype=torch.long)
    attention = torch.zeros(beam, 0, grid.shape[1])
    ended: list[Sentence] = []
    for position in range(words + 1):
        step = advance(decoder, copies, tokens, hidden, cell)
        scores = totals.unsqueeze(1) + step.logs
        scores[:, [PAD, START, UNK]] = -torch.inf
        if position == words:  # <end> is forced, and counts
            scores[:, :END] = scores[:, END + 1 :] = -torch.inf
        elif not until_end:
            scores[:, END] = -torch.inf
        # All beams are the same at first, so the first one alone has something to say.
        totals, flat = (scores[0] if position == 0 else scores.flatten()).topk(len(tokens))
        parents, tokens = flat // scores.shape[1], flat % scores.shape[1]
        sequences = torch.cat([sequences[parents], tokens.unsqueeze(1)], dim=1)
        attention = torch.cat([attention[parents], step.attention[parents].unsqueeze(1)], dim=1)
        for number in (tokens == END).nonzero().flatten().tolist():
            said = sequences[number, :-1].tolist()
            ended.append(Sentence(said, float(totals[number]), attention[number, :-1]))
        alive = (tokens != END).nonzero().flatten()
        if not len(alive):
            break
        tokens, totals = tokens[alive], totals[alive]
        sequences, attention, copies = sequences[alive], attention[alive], copies[parents[alive]]
        hidden, cell = step.hidden[parents[alive]], step.cell[parents[alive]]
    return max(ended, key=lambda sentence: sentence.score)


def advance(
    decoder: LSTMDecoder, grid: Tensor, tokens: Tensor, hidden: Tensor, cell: Tensor
) -> Step:
    """Read the tokens (beam,), looking at the grid's copies (beam, L, D)."""
    word = decoder.embedding(tokens)
    context, weights = attend(decoder, grid, hidden)
    context = torch.sigmoid(decoder.gate(hidden)) * context
    gates = decoder.word_gates(word) + decoder.context_gates(context) + decoder.hidden_gates(hidden)
    input_, forget, output, candidate = gates.chunk(4, dim=1)
    cell = torch.sigmoid(forget) * cell + torch.sigmoid(input_) * torch.tanh(candidate)
    hidden = torch.sigmoid(output) * torch.tanh(cell)
    deep = word + decoder.deep_hidden(hidden) + decoder.deep_context(context)
    logits = F.linear(deep, decoder.embedding.weight, decoder.output_bias)
    return Step(logits.log_softmax(dim=1), weights, hidden, cell)


def attend(decoder: LSTMDecoder, grid: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Project the grid (beam, L, D), then look: context (beam, V), attention (beam, L)."""
    attention = decoder.attention
    score = attention.score
    if not isinstance(score, AdditiveScore):
        raise TypeError(f"the straightforward way has additive attention, not {type(score)}")
    keys, values = score.key(grid), attention.value(grid)
    scores = score.score(torch.tanh(keys + score.query(hidden).unsqueeze(1))).squeeze(2)
    weights = scores.softmax(dim=1)
    return torch.bmm(weights.unsqueeze(1), values).squeeze(1), weights
