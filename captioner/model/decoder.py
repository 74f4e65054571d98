"""The interface of a decoder: single steps for generation, one pass for training.

`WordDecoder` and `RecurrentDecoder` contain the code that decoders share. `build_decoder` makes the
decoder that a configuration names.

Shapes: B images, K hypotheses or captions per image, T tokens, L grid cells, H heads; m is the size
of a word embedding, n the size of a hidden state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple, TypeGuard, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from captioner.inference.packed import PackedLinear, pack_linear
from captioner.model.attention import Attention
from captioner.model.config import DECODERS, DecoderConfig
from captioner.model.layers import grid_layers
from captioner.model.positions import GRID_SIDE, Positions
from captioner.model.state import State, StepOutput

FusedLayers = Callable[[Tensor], list[Tensor]]
"""Applies several layers to the same input (B, K, n)."""


class DecoderOutput(NamedTuple):
    """The output of a teacher-forced pass over T tokens.

    deep: (B, K, T, m), the input of `Decoder.logits`.
    attention: (B, K, T, L); None if the decoder has no attention.
    gate: (B, K, T); None if the decoder has no gate.
    heads: (B, K, T, H, L), whose mean is `attention`; None if there is one head.
    """

    deep: Tensor
    attention: Tensor | None = None
    gate: Tensor | None = None
    heads: Tensor | None = None


class Decoder(nn.Module, ABC):
    """Scores the next word of a caption, given a grid and the words so far.

    Subclasses are listed in captioner.model.config.DECODERS. Their constructors take `config`,
    `grid_dim` and `vocabulary_size`.
    """

    @abstractmethod
    def start(self, features: Tensor) -> State:
        """Return the state of one empty hypothesis (K = 1) for each of the grids (B, L, D)."""

    @abstractmethod
    def step(self, tokens: Tensor, state: State) -> StepOutput:
        """Read the tokens (B, K) and score their successors."""

    @abstractmethod
    def forward(self, features: Tensor, tokens: Tensor) -> DecoderOutput:
        """Read the tokens (B, K, T) of K captions for each of the grids (B, L, D).

        The output at position t scores the successor of tokens[..., t].
        """

    @abstractmethod
    def logits(self, deep: Tensor) -> Tensor:
        """Return logits (..., words) of the deep output (..., m)."""

    def word_attention(self, features: Tensor, tokens: Tensor) -> Tensor | None:  # noqa: ARG002
        """Return the self-attention (B, K, H, T, T) of tokens (B, K, T).

        Rows are queries, columns are keys. Decoders without self-attention return None. Arguments
        as for `forward`.
        """
        return None

    def tabulate(self) -> None:
        """Precompute everything that depends only on the weights, which must not change later."""

    def pack(self) -> None:
        """Pack the weights of linear layers for inference in float32 on a CPU."""
        pack_linear(self)


class WordDecoder(Decoder):
    """A decoder whose output layer shares the matrix of the word embeddings (tied weights).

    `tabulate` multiplies every word's embedding by the adjacent matrices once. Steps then look up
    the products.
    """

    def __init__(self, config: DecoderConfig, *, vocabulary_size: int) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(vocabulary_size, config.embedding_dim)
        self.output_bias = nn.Parameter(torch.zeros(vocabulary_size))
        self.dropout = nn.Dropout(config.dropout)
        # The matrix also computes the logits. Rows of unit variance would make them too large.
        nn.init.normal_(self.embedding.weight, std=config.embedding_dim**-0.5)
        self.words_in: Tensor | None
        self.words_out: Tensor | None
        self.words_bias: Tensor | None
        for name in ("words_in", "words_out", "words_bias"):  # set by `tabulate`, not saved
            self.register_buffer(name, None, persistent=False)
        self.packed_output: PackedLinear | None = None

    def pack(self) -> None:
        """Pack the output layer too; see `Decoder.pack`."""
        super().pack()
        self.packed_output = PackedLinear(self.embedding.weight, self.output_bias)

    def logits(self, deep: Tensor) -> Tensor:
        """Return logits (..., words) of the deep output (..., m)."""
        if self.packed_output is not None:
            return cast(Tensor, self.packed_output(deep))
        return F.linear(deep, self.embedding.weight, self.output_bias)

    @torch.no_grad()
    def _tabulate(self, *, first: nn.Linear, last: nn.Linear | None = None) -> None:
        """Precompute the products of all words with two layers.

        Args:
            first: the layer after the embedding.
            last: the layer that makes the deep output, if nothing is added to its result.
        """
        words = self.embedding.weight
        self.words_in = first(words)
        if last is not None:
            self.words_out = words @ last.weight
            self.words_bias = torch.addmv(self.output_bias, words, last.bias)

    def _embed(self, tokens: Tensor) -> Tensor:
        return cast(Tensor, self.dropout(self.embedding(tokens)))

    def _first_layer(self, tokens: Tensor, first: nn.Linear) -> Tensor:
        """Embed the tokens (B, K) of a step and apply the first layer: (B, K, E)."""
        if self.words_in is None:
            return cast(Tensor, first(self._embed(tokens)))
        return F.embedding(tokens, self.words_in)

    def _last_layer(self, hidden: Tensor, last: nn.Linear) -> Tensor:
        """Return the logits (B, K, words) of a step from the last layer's input (B, K, n)."""
        if self.words_out is None:
            return self.logits(self.dropout(last(hidden)))
        return F.linear(hidden, self.words_out, self.words_bias)


class RecurrentDecoder(WordDecoder):
    """A decoder whose hidden state (B, K, n) attends over the grid at every step."""

    def __init__(self, config: DecoderConfig, *, grid_dim: int, vocabulary_size: int) -> None:
        super().__init__(config, vocabulary_size=vocabulary_size)
        self.grid_layers, self.grid_dim, positions = grid_layers(config, grid_dim=grid_dim)
        self.positions = Positions(
            kind=positions, dim=self.grid_dim, axes=2, length=GRID_SIDE,
            scaled=config.scaled_positions,
        )  # fmt: skip
        self.attention = Attention(
            score=config.score,
            key_dim=self.positions.output_dim,
            query_dim=config.hidden_dim,
            attention_dim=config.attention_dim,
            value_dim=config.value_dim,
            heads=config.heads,
        )


def advance(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Advance an LSTM cell by one step (Xu et al. 2015, equations 1 to 3).

    Args:
        gates: (..., 4n), the values of input gate, forget gate, output gate and candidate before
            their nonlinearities.
        cell: (..., n), the cell state.

    Returns:
        The new hidden state and cell state, both (..., n).
    """
    size = cell.shape[-1]
    opened, candidate = torch.split(gates, [3 * size, size], dim=-1)
    input_, forget, output = opened.sigmoid().chunk(3, dim=-1)
    cell = forget * cell + input_ * candidate.tanh()  # equation 2
    return output * cell.tanh(), cell  # equation 3


def fuse_layers(*layers: nn.Module, dtype: torch.dtype | None = None) -> FusedLayers:
    """Return a function that applies layers to the same input.

    Args:
        layers: any modules.
        dtype: the linear layers, if there are two or more, become one matrix product of this dtype.
            This pays for many calls. None: every layer is called.
    """
    linear = [layer for layer in layers if _is_plain(layer)]
    if dtype is None or len(linear) < 2:
        return lambda rows: [layer(rows) for layer in layers]
    sizes = [layer.out_features for layer in linear]
    weight = torch.cat([layer.weight.to(dtype) for layer in linear])
    biases = [
        layer.weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias
        for layer in linear
    ]
    bias = torch.cat([part.to(dtype) for part in biases])

    def apply(rows: Tensor) -> list[Tensor]:
        parts = iter(torch.split(F.linear(rows, weight, bias), sizes, dim=-1))
        return [next(parts) if layer in linear else layer(rows) for layer in layers]

    return apply


def _is_plain(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether a layer is linear, without hooks, and its `forward` is not replaced."""
    hooks = (
        layer._forward_hooks,
        layer._forward_pre_hooks,
        layer._backward_hooks,
        layer._backward_pre_hooks,
    )
    return type(layer) is nn.Linear and not any(hooks) and "forward" not in vars(layer)


def build_decoder(config: DecoderConfig, *, grid_dim: int, vocabulary_size: int) -> Decoder:
    """Make the decoder that the configuration names, with random weights.

    Args:
        config: the kind and the sizes of the decoder.
        grid_dim: D, the number of features of a grid cell.
        vocabulary_size: the number of words and special tokens.

    Raises ConfigError: the sizes do not fit together.
    """
    module, name = DECODERS[config.kind].split(":")
    decoder = getattr(import_module(module), name)
    return cast(Decoder, decoder(config, grid_dim=grid_dim, vocabulary_size=vocabulary_size))
