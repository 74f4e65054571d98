"""What every decoder does with words: embed them, and score them with the same matrix."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from captioner.decoders.config import DecoderConfig
from captioner.decoders.decoder import Decoder
from captioner.decoders.product import Product, by_columns, lay_out

__all__ = ["WordDecoder"]

_FEW_ROWS = 8  # of a step; with more of them the gain is gone


class WordDecoder(Decoder):
    """A decoder whose deep output layer has the matrix of the embedded words (tied weights).

    Its subclasses say in `tabulate` which of their matrices words meet first and last: what these
    make of each word is worked out once, which spares every step their products.
    """

    def __init__(self, config: DecoderConfig, *, vocabulary_size: int) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(vocabulary_size, config.embedding_dim)
        self.output_bias = nn.Parameter(torch.zeros(vocabulary_size))
        self.dropout = nn.Dropout(config.dropout)
        # The matrix also scores words: rows of unit variance would start with huge logits.
        nn.init.normal_(self.embedding.weight, std=config.embedding_dim**-0.5)
        self.words_in, self.words_out = Product(), Product()

    def logits(self, deep: Tensor) -> Tensor:
        """Score every word from the deep output (..., m): (..., words)."""
        return F.linear(deep, self.embedding.weight, self.output_bias)

    @torch.no_grad()
    def _tabulate(self, *, first: nn.Linear, last: nn.Linear | None = None) -> None:
        """Work out what each word is behind the first matrix, and before the last.

        Args:
            first: what embedded words (..., m) meet.
            last: what makes the deep output (..., m), where nothing else adds to it.

        """
        lay_out(self)
        words = self.embedding.weight
        self.words_in.make(first(words), of=self._weights_in(first))
        if last is not None:
            bias = torch.addmv(self.output_bias, words, last.bias)
            scoring = by_columns(words @ last.weight)
            self.words_out.make(scoring, bias, of=self._weights_out(last))

    def _weights_in(self, first: nn.Linear) -> tuple[Tensor, ...]:
        return self.embedding.weight, first.weight, first.bias

    def _weights_out(self, last: nn.Linear) -> tuple[Tensor, ...]:
        return self.embedding.weight, self.output_bias, last.weight, last.bias

    def _embed(self, tokens: Tensor) -> Tensor:
        return cast(Tensor, self.dropout(self.embedding(tokens)))

    def _enter(self, tokens: Tensor, first: nn.Linear, *, words: Tensor | None = None) -> Tensor:
        """Bring tokens (...) through the first matrix (E, m): (..., E).

        Args:
            tokens: of one step.
            first: the matrix.
            words: (..., m), the tokens embedded, where the caller has them.

        """
        made = self.words_in.get(self._weights_in(first))
        if made is not None:
            return F.embedding(tokens, made.matrix)
        return cast(Tensor, first(self._embed(tokens) if words is None else words))

    def _leave(self, hidden: Tensor, last: nn.Linear) -> Tensor:
        """Score the words from what the last matrix takes (B, K, n), of one step."""
        made = self.words_out.get(self._weights_out(last))
        if made is None:
            return self._step_logits(self.dropout(last(hidden)))
        return F.linear(hidden, *made)

    def _step_logits(self, deep: Tensor) -> Tensor:
        """Do as `logits` does, for the rows (B, K, m) of one step."""
        rows = deep.flatten(0, 1)
        if len(rows) > _FEW_ROWS or deep.dtype is not torch.float32:
            return self.logits(deep)
        # With the rows of a single beam, a CPU's BLAS takes half the time when the matrix is first.
        scores = torch.addmm(self.output_bias.unsqueeze(1), self.embedding.weight, rows.T)
        return scores.T.reshape(*deep.shape[:2], -1)
