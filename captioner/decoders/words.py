"""What every decoder does with words: embed them, and score them with the same matrix."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from captioner.decoders.config import DecoderConfig
from captioner.decoders.decoder import Decoder

__all__ = ["WordDecoder"]

_FEW_ROWS = 8  # of a step; with more of them the gain is gone


class WordDecoder(Decoder):
    """A decoder whose deep output layer has the matrix of the embedded words (tied weights)."""

    def __init__(self, config: DecoderConfig, *, vocabulary_size: int) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(vocabulary_size, config.embedding_dim)
        self.output_bias = nn.Parameter(torch.zeros(vocabulary_size))
        self.dropout = nn.Dropout(config.dropout)
        # The matrix also scores words: rows of unit variance would start with huge logits.
        nn.init.normal_(self.embedding.weight, std=config.embedding_dim**-0.5)

    def logits(self, deep: Tensor) -> Tensor:
        """Score every word from the deep output (..., m): (..., words)."""
        return F.linear(deep, self.embedding.weight, self.output_bias)

    def _step_logits(self, deep: Tensor) -> Tensor:
        """Do as `logits` does, for the rows (B, K, m) of one step."""
        rows = deep.flatten(0, 1)
        if len(rows) > _FEW_ROWS or deep.dtype is not torch.float32:
            return self.logits(deep)
        # With the rows of a single beam, a CPU's BLAS takes half the time when the matrix is first.
        scores = torch.addmm(self.output_bias.unsqueeze(1), self.embedding.weight, rows.T)
        return scores.T.reshape(*deep.shape[:2], -1)

    def _embed(self, tokens: Tensor) -> Tensor:
        return cast(Tensor, self.dropout(self.embedding(tokens)))
