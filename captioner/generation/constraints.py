"""What a hypothesis may say next: lengths, repetitions, and words that are never said."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from captioner.vocabulary import END, PAD, START, UNK

if TYPE_CHECKING:
    from captioner.generation.config import GenerationConfig

__all__ = ["Constraints", "filter_top"]


class Constraints:
    """Rules over the log-probabilities of the next word.

    A hypothesis that no word is left for may always end, so that every hypothesis finishes.
    """

    def __init__(self, config: GenerationConfig) -> None:
        self.config = config

    def apply(self, logs: Tensor, history: Tensor | None, step: int) -> Tensor:
        """Set what is not allowed to -inf.

        Args:
            logs: (B, K, words), log-probabilities of the next word.
            history: (B, K, t), the words so far; None before the first.
            step: how many words there are already.

        """
        if step >= self.config.maximum_length:
            only_end = torch.full_like(logs, -torch.inf)
            only_end[..., END] = logs[..., END]
            return only_end
        allowed = logs.clone()
        allowed[..., [PAD, START, UNK]] = -torch.inf
        if step < self.config.minimum_length:
            allowed[..., END] = -torch.inf
        if history is not None and self.config.no_repeat_ngram:
            _block_repetition(allowed, history, self.config.no_repeat_ngram)
        stuck = torch.isneginf(allowed.amax(dim=-1))
        allowed[..., END] = torch.where(stuck, logs[..., END], allowed[..., END])
        return allowed


def _block_repetition(allowed: Tensor, history: Tensor, n: int) -> None:
    """Forbid every word that would complete an n-gram which stands in the history (B, K, t)."""
    if history.shape[-1] < n:
        return
    grams = history.unfold(-1, n, 1)  # (B, K, t - n + 1, n)
    present = history[..., history.shape[-1] - n + 1 :].unsqueeze(2)
    repeats = (grams[..., :-1] == present).all(dim=-1)
    # -inf where the n-gram would repeat, 0 elsewhere; a word may stand in several n-grams.
    penalty = torch.zeros_like(repeats, dtype=allowed.dtype).masked_fill(repeats, -torch.inf)
    allowed.scatter_add_(-1, grams[..., -1], penalty)


def filter_top(logits: Tensor, *, top_k: int, top_p: float) -> Tensor:
    """Leave only the words to draw from; the likeliest always stays.

    Args:
        logits: (..., words).
        top_k: keep the k likeliest (Fan et al. 2018); 0 keeps all.
        top_p: keep the likeliest words whose probabilities reach p (Holtzman et al. 2020).

    """
    if 0 < top_k < logits.shape[-1]:
        least = logits.topk(top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True)
        probabilities = ordered.softmax(dim=-1)
        before = probabilities.cumsum(dim=-1) - probabilities
        ordered = ordered.masked_fill(before >= top_p, -torch.inf)
        logits = torch.full_like(logits, -torch.inf).scatter(-1, order, ordered)
    return logits
