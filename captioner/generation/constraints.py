"""What a hypothesis may say next: lengths, repetitions, and words that are never said."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from captioner.vocabulary import END, PAD, START, UNK

__all__ = ["Constraints", "restrict"]


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
        device: where the words are.
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
        device: torch.device | None = None,
    ) -> None:
        self.maximum_length, self.minimum_length = maximum_length, minimum_length
        self.no_repeat_ngram, self.must_end = no_repeat_ngram, must_end
        self.no_repeat_word, self.conjunction = no_repeat_word, conjunction
        self._never = torch.tensor([END, *silent, UNK]).to(device, non_blocking=True)

    def apply(self, logs: Tensor, history: Tensor) -> Tensor:
        """Set what is not allowed to -inf.

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
        """Give the words that each hypothesis may not say after its history (B, K, t): (B, K, F).

        <pad>, which is never said, stands where there is none. That a sentence is long enough is
        not in it.
        """
        step = history.shape[-1]
        never = self._never if step < self.minimum_length else self._never[1:]
        found = [never.expand(*history.shape[:2], -1)]
        if self.no_repeat_ngram:
            found.append(_repetitions(history, self.no_repeat_ngram))
            if self.no_repeat_word:
                found.append(history[..., -1:])
        if self.conjunction != UNK and step >= 2:
            before, last = history[..., -2:-1], history[..., -1:]
            found.append(before.where(last == self.conjunction, PAD))
        return torch.cat(found, dim=-1)


def restrict(logs: Tensor, forbidden: Tensor) -> Tensor:
    """Set log-probabilities (B, K, words) of words that may not be said (B, K, F) to -inf.

    A hypothesis that no word is left for may end.
    """
    allowed = logs.scatter(-1, forbidden, -torch.inf)
    stuck = torch.isneginf(allowed.amax(dim=-1))
    allowed[..., END] = torch.where(stuck, logs[..., END], allowed[..., END])
    return allowed


def _repetitions(history: Tensor, n: int) -> Tensor:
    """Give every word that would complete an n-gram which stands in the history (B, K, t)."""
    if history.shape[-1] < n:
        return history[..., :0]
    grams = history.unfold(-1, n, 1)  # (B, K, t - n + 1, n)
    present = history[..., history.shape[-1] - n + 1 :].unsqueeze(2)
    repeats = (grams[..., :-1] == present).all(dim=-1)
    return grams[..., -1].where(repeats, PAD)
