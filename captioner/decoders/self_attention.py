"""Words that read each other, all at once or one after the other (Vaswani et al. 2017)."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from captioner.attention.attention import Attention, attend_fused
from captioner.attention.scores import ProductScore
from captioner.decoders.product import Product, by_columns

__all__ = ["SelfAttention"]


class SelfAttention(Attention):
    """Scaled dot products, with queries, keys and values of the same words.

    Args:
        dim: n, the numbers of a word.
        heads: H, which share them.

    """

    def __init__(self, *, dim: int, heads: int) -> None:
        super().__init__(
            score="scaled_dot",
            query_dim=dim,
            key_dim=dim,
            attention_dim=dim,
            value_dim=dim,
            heads=heads,
        )
        self.together = Product()

    @torch.no_grad()
    def tabulate(self) -> None:
        """Put the matrices of queries, keys and values below each other, as one, for use."""
        query, query_bias, key, value, value_bias = weights = self._weights()
        scale = cast(ProductScore, self.score).scale
        matrix = torch.cat([scale * query, key, value])
        bias = torch.cat([scale * query_bias, torch.zeros_like(query_bias), value_bias])
        self.together.make(by_columns(matrix), bias, of=weights)

    def read_newest(
        self, words: Tensor, before: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Let the newest words read themselves and those before them.

        Args:
            words: (B, K, n), the newest of each hypothesis.
            before: (B, S, 2n), keys and values of the words that any hypothesis has said.
            mask: (B, K, S + K), 0 where a word is of the hypothesis, -inf elsewhere; None: all are.

        Returns:
            The context (B, K, n), and keys and values with the newest (B, S + K, 2n).

        """
        queries, newest = self._asked_and_said(words)
        said = torch.cat([before, newest], dim=1)
        keys, values = said.chunk(2, dim=-1)
        return attend_fused(queries, keys, values, heads=self.score.heads, mask=mask), said

    def _asked_and_said(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """Give queries (B, K, n), and keys with values (B, K, 2n)."""
        made = self.together.get(self._weights())
        if made is None:
            queries = cast(ProductScore, self.score).project_query(words)
            return queries, torch.cat(self.project(words), dim=-1)
        queries, newest = F.linear(words, *made).tensor_split([words.shape[-1]], dim=-1)
        return queries, newest

    def _weights(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        score = cast(ProductScore, self.score)
        query, key, value = (cast(nn.Linear, part) for part in (score.query, score.key, self.value))
        return query.weight, query.bias, key.weight, value.weight, value.bias
