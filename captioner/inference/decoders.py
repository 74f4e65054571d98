"""Stand-ins for recurrent decoders: the same numbers up to rounding, in less time.

- Tables: the product of every word's embedding with the next layer is computed once. A step looks
  it up (float32, one photo, CPU: 62.7 instead of 77.7 ms a caption).
- Folding: a matrix after the context is linear. It is multiplied with the values of the grid, once
  per image, instead of with the context of every step.
- Packing: oneDNN reorders a matrix at every call. It is reordered once (62.7 instead of 84.8 ms).
  The layers of all decoders are packed.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from captioner.model.attention import maps
from captioner.model.decoder import (
    Decoder,
    DecoderOutput,
    State,
    StepOutput,
    WordDecoder,
    advance,
)
from captioner.model.lstm import LSTMDecoder
from captioner.model.top_down import TopDownDecoder

_PACK, _MULTIPLY = "_reorder_linear_weight", "_linear_pointwise"  # operations of oneDNN
_ROWS = 5  # rows that the packed layout is optimised for; other numbers work too


def fast_decoder(decoder: Decoder, *, tables: bool = True) -> Decoder:
    """Return the stand-in of a decoder; the decoder itself if there is none.

    The decoder's weights must not change afterwards. `tables` take three times the memory.
    """
    if type(decoder) is LSTMDecoder:
        return FastLSTM(decoder, tables=tables)
    return FastTopDown(decoder, tables=tables) if type(decoder) is TopDownDecoder else decoder


class FastDecoder(Decoder):
    """A recurrent decoder with folded values and a table of the words' gates.

    Args:
        plain: the decoder, which also runs teacher forcing.
        layer: its layer after the embedding.
        matrix: (F, V), its matrix after the context.
        tables: compute the layer of all words.
    """

    matrix: Tensor

    def __init__(
        self, plain: WordDecoder, layer: nn.Linear, matrix: Tensor, *, tables: bool
    ) -> None:
        super().__init__()
        self.plain = plain
        # A second name of the matrix would double it in an exported model.
        self.output: nn.Linear | None = None
        self.word_gates: nn.Module = nn.Sequential(plain.embedding, layer)
        if tables:
            weight = plain.embedding.weight
            with torch.no_grad():
                products = layer(weight)
            rows, columns = products.shape
            self.word_gates = nn.Embedding(rows, columns, _weight=products, _freeze=True)
            self.output = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
            self.output.weight, self.output.bias = weight, plain.output_bias
        self.register_buffer("matrix", matrix.detach())

    def forward(self, features: Tensor, tokens: Tensor) -> DecoderOutput:
        """Run teacher forcing; see `Decoder.forward`."""
        return cast(DecoderOutput, self.plain(features, tokens))

    def logits(self, deep: Tensor) -> Tensor:
        """Return logits (..., words) of the deep output (..., m)."""
        return self.plain.logits(deep) if self.output is None else cast(Tensor, self.output(deep))

    def start(self, features: Tensor) -> State:
        """Return the first state, with folded values."""
        state = self.plain.start(features)
        values = fold(state.image["values"], self.matrix, heads=self.plain.config.heads)
        return state._replace(image=state.image | {"values": values})


class FastLSTM(FastDecoder):
    """Stands in for an LSTMDecoder."""

    plain: LSTMDecoder

    def __init__(self, plain: LSTMDecoder, *, tables: bool = True) -> None:
        matrices = [plain.deep_context.weight]
        if plain.config.query == "previous":
            matrices.insert(0, plain.context_gates.weight)
        super().__init__(plain, plain.word_gates, torch.cat(matrices), tables=tables)

    def step(self, tokens: Tensor, state: State) -> StepOutput:
        """Read the tokens (B, K) and score their successors."""
        plain, grid = self.plain, state.image
        hidden, cell = state.hypothesis["hidden"], state.hypothesis["cell"]
        gates, beta = self.word_gates(tokens), None
        if plain.config.query == "current":
            hidden, cell = advance(gates + plain.hidden_gates(hidden), cell)
            weights = plain.attention.weigh(hidden, grid["keys"])
            deep_context = average_folded(weights, grid["values"])
        else:
            weights = plain.attention.weigh(hidden, grid["keys"])
            beta = torch.sigmoid(plain.gate(hidden))
            # beta_t multiplies the weights, which are fewer numbers than the context.
            context = average_folded(beta.unsqueeze(-1) * weights, grid["values"])
            sizes = [gates.shape[-1], plain.config.embedding_dim]
            context_gates, deep_context = torch.split(context, sizes, dim=-1)
            hidden, cell = advance(gates + context_gates + plain.hidden_gates(hidden), cell)
            beta = beta.squeeze(-1)
        deep = plain.deep_output(plain.embed(tokens), hidden, deep_context)
        following = State(grid, {"hidden": hidden, "cell": cell})
        attention, heads = maps(weights)
        return StepOutput(self.logits(deep), following, attention, beta, heads)


class FastTopDown(FastDecoder):
    """Stands in for a TopDownDecoder (float32, one photo, CPU: a third of its search is saved)."""

    plain: TopDownDecoder

    def __init__(self, plain: TopDownDecoder, *, tables: bool = True) -> None:
        matrix = plain.language_lstm_context.weight
        super().__init__(plain, plain.attention_lstm_word, matrix, tables=tables)

    def step(self, tokens: Tensor, state: State) -> StepOutput:
        """Read the tokens (B, K) and score their successors."""
        hidden, cell = self.plain.attention_step(self.word_gates(tokens), state)
        weights = self.plain.attention.weigh(hidden, state.image["keys"])
        context_gates = average_folded(weights, state.image["values"])
        state = self.plain.language_step(context_gates, hidden, cell, state)
        attention, heads = maps(weights)
        logits = self.logits(self.plain.deep_hidden(state.hypothesis["language_hidden"]))
        return StepOutput(logits, state, attention, None, heads)


def fold(values: Tensor, matrix: Tensor, *, heads: int) -> Tensor:
    """Multiply values (B, L, V) by a matrix (F, V), for `average_folded`: (B, L, H, F).

    Each of H heads has a block of V / H numbers, and the corresponding columns of the matrix.
    """
    if heads == 1:
        return F.linear(values, matrix).unsqueeze(2)
    parts = zip(values.chunk(heads, dim=-1), matrix.chunk(heads, dim=-1), strict=True)
    return torch.stack([F.linear(part, columns) for part, columns in parts], dim=2)


def average_folded(weights: Tensor, folded: Tensor) -> Tensor:
    """Return the context of weights (B, K, H, L), times the matrix of `fold`: (B, K, F)."""
    rows = weights.transpose(2, 3).flatten(2).to(folded.dtype)  # (B, K, L * H)
    return torch.bmm(rows, folded.flatten(1, 2))


class PackedLinear(nn.Linear):
    """A float32 linear layer for inference on a CPU; shares `weight` (F, D) and `bias` (F,)."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight.shape[1], weight.shape[0], bias=False, device="meta")
        self.weight, self.bias = cast(nn.Parameter, weight), cast(nn.Parameter, bias)
        self._pack()

    def _pack(self) -> None:
        self._packed = getattr(torch.ops.mkldnn, _PACK)(self.weight.detach(), _ROWS)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the packed weights, which cannot be pickled or copied."""
        return {name: part for name, part in vars(self).items() if name != "_packed"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Pack the weights again."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._pack()

    def forward(self, rows: Tensor) -> Tensor:
        """Return (..., F) for rows (..., D)."""
        multiply = getattr(torch.ops.mkldnn, _MULTIPLY)
        product: Tensor = multiply(rows, self._packed, self.bias, "none", [], "")
        return product


def can_pack() -> bool:
    """Whether torch has oneDNN for this processor."""
    operations = torch.ops.mkldnn
    return torch._C._has_mkldnn and all(hasattr(operations, name) for name in (_PACK, _MULTIPLY))


def pack_linear(root: nn.Module) -> None:
    """Pack all linear layers below `root`."""
    for parent in list(root.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Linear:
                setattr(parent, name, PackedLinear(child.weight, child.bias))
