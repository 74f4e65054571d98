"""What a hypothesis may say next: lengths, repetitions, and words that are never said."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from captioner.vocabulary import END, PAD, START, UNK

__all__ = ["Constraints"]


class Constraints:
    """Rules over the log-probabilities of the next word.

    A hypothesis that no word is left for may always end, so that every hypothesis finishes.

    Args:
        maximum_length: words, after which only <end> may come.
        minimum_length: words, before which <end> may not come.
        no_repeat_ngram: no n words stand twice in this order, and no word twice in a row; 0 allows
            both.
        no_repeat_word: False allows the same token twice in a row all the same, where tokens are
            characters: languages repeat those within words.
        conjunction: the number of a word that has no word on both sides, such as "and"; <unk>,
            which is never said, allows it.
        silent: tokens that stand for no word; neither they nor <unk> are said.
        must_end: False lets a hypothesis go on after `maximum_length` words, for those who would
            rather cut it there than have it end with a word that it has not chosen.

    """

    def __init__(
        self,
        *,
        maximum_length: int,
        minimum_length: int = 0,
        no_repeat_ngram: int = 0,
        no_repeat_word: bool = True,
        conjunction: int = UNK,
        silent: Sequence[int] = (PAD, START),
        must_end: bool = True,
    ) -> None:
        self.maximum_length, self.minimum_length = maximum_length, minimum_length
        self.no_repeat_ngram, self.must_end = no_repeat_ngram, must_end
        self.no_repeat_word, self.conjunction = no_repeat_word, conjunction
        self._never_said = [*silent, UNK]

    def apply(self, logs: Tensor, history: Tensor) -> Tensor:
        """Set what is not allowed to -inf.

        Args:
            logs: (B, K, words), log-probabilities of the next word.
            history: (B, K, t), the words so far.

        """
        step = history.shape[-1]
        if step >= self.maximum_length and self.must_end:
            only_end = torch.full_like(logs, -torch.inf)
            only_end[..., END] = logs[..., END]
            return only_end
        allowed = logs.clone()
        allowed[..., self._never_said] = -torch.inf
        if step < self.minimum_length:
            allowed[..., END] = -torch.inf
        if self.no_repeat_ngram:
            _block_repetition(allowed, history, self.no_repeat_ngram)
            if self.no_repeat_word:
                _block_last(allowed, history)
        if self.conjunction != UNK and step >= 2:
            _block_pair(allowed, history, self.conjunction)
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


def _block_last(allowed: Tensor, history: Tensor) -> None:
    """Forbid the last word of the history (B, K, t)."""
    allowed.scatter_(-1, history[..., -1:], -torch.inf)


def _block_pair(allowed: Tensor, history: Tensor, conjunction: int) -> None:
    """Forbid the word before the conjunction, where that is the last of the history (B, K, t)."""
    before, last = history[..., -2:-1], history[..., -1:]
    penalty = torch.zeros_like(last, dtype=allowed.dtype)
    allowed.scatter_add_(-1, before, penalty.masked_fill(last == conjunction, -torch.inf))
