"""Constraints on the next word: lengths, repetitions, and tokens that are never generated."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from captioner.vocabulary import END, PAD, START, UNK


class Constraints:
    """Constraints on the next word of hypotheses.

    Args:
        maximum_length: the number of words after which only <end> is allowed.
        minimum_length: the number of words before which <end> is forbidden.
        no_repeat_ngram: the length n of n-grams that must not occur twice; 0: no limit.
        no_repeat_word: whether a positive `no_repeat_ngram` also forbids a word twice in a row;
            False for vocabularies of characters.
        no_repeat_around: a token that must not have the same word on both sides, such as "and";
            <unk>: no such token.
        never_generated: tokens that are never generated, besides <unk>.
        must_end: whether `maximum_length` is enforced; False: the caller cuts hypotheses.
        device: the device of the log-probabilities.
    """

    def __init__(
        self,
        *,
        maximum_length: int,
        minimum_length: int = 0,
        no_repeat_ngram: int = 0,
        no_repeat_word: bool = True,
        no_repeat_around: int = UNK,
        never_generated: Sequence[int] = (PAD, START),
        must_end: bool = True,
        device: torch.device | None = None,
    ) -> None:
        self.maximum_length, self.minimum_length = maximum_length, minimum_length
        self.no_repeat_ngram, self.must_end = no_repeat_ngram, must_end
        self.no_repeat_word, self.no_repeat_around = no_repeat_word, no_repeat_around
        self._never = torch.tensor([END, *never_generated, UNK]).to(device, non_blocking=True)

    def apply(self, logs: Tensor, history: Tensor) -> Tensor:
        """Return the log-probabilities with -inf for forbidden words.

        Args:
            logs: (B, K, words), log-probabilities of the next word.
            history: (B, K, t), the words so far.
        """
        if history.shape[-1] >= self.maximum_length and self.must_end:
            only_end = torch.full_like(logs, -torch.inf)
            only_end[..., END] = logs[..., END]
            return only_end
        return restrict(logs, self.forbidden(history))

    def forbidden(self, history: Tensor) -> Tensor:
        """Return the forbidden words (B, K, F) after histories (B, K, t), padded with <pad>.

        The maximum length is not enforced here.
        """
        step = history.shape[-1]
        never = self._never if step < self.minimum_length else self._never[1:]
        forbidden = [never.expand(*history.shape[:2], -1)]
        if self.no_repeat_ngram:
            forbidden.append(_repetitions(history, self.no_repeat_ngram))
            if self.no_repeat_word:
                forbidden.append(history[..., -1:])
        if self.no_repeat_around != UNK and step >= 2:
            before, last = history[..., -2:-1], history[..., -1:]
            forbidden.append(before.where(last == self.no_repeat_around, PAD))
        return torch.cat(forbidden, dim=-1)


def restrict(logs: Tensor, forbidden: Tensor) -> Tensor:
    """Set the log-probabilities (B, K, words) of forbidden words (B, K, F) to -inf.

    A hypothesis without an allowed word may end.
    """
    allowed = logs.scatter(-1, forbidden, -torch.inf)
    stuck = torch.isneginf(allowed.amax(dim=-1))
    allowed[..., END] = torch.where(stuck, logs[..., END], allowed[..., END])
    return allowed


def _repetitions(history: Tensor, n: int) -> Tensor:
    """Return the words that would repeat an n-gram of the history (B, K, t)."""
    if history.shape[-1] < n:
        return history[..., :0]
    grams = history.unfold(-1, n, 1)  # (B, K, t - n + 1, n)
    present = history[..., history.shape[-1] - n + 1 :].unsqueeze(2)
    repeats = (grams[..., :-1] == present).all(dim=-1)
    return grams[..., -1].where(repeats, PAD)
