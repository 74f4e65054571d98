"""What is asked of the attention: where the words look, beside what they are."""

from __future__ import annotations

import torch
from torch import Tensor

from captioner_training.losses.objective import Objective, Reading

__all__ = ["AttentionEntropy", "DoublyStochastic"]


def _by_head(reading: Reading) -> Tensor | None:
    """Give the attention of each head, (B, K, T, H, L); None where the decoder does not attend."""
    output = reading.output
    if output.heads is not None or output.attention is None:
        return output.heads
    return output.attention.unsqueeze(-2)


class DoublyStochastic(Objective):
    """Asks the words of a caption to look at every cell in turn (Xu et al. 2015, equation 14).

    (1 - sum_t alpha_ti)^2, averaged over cells, heads and captions: each head is asked, so that one
    may not leave a cell to another.
    """

    def loss(self, reading: Reading) -> Tensor:
        """Average over captions; one without a word counts for nothing."""
        attention, mask = _by_head(reading), reading.mask
        if attention is None:
            return torch.zeros((), device=mask.device)
        looked = (attention * mask[..., None, None]).sum(dim=2)  # (B, K, H, L)
        missed = (1 - looked).square().mean(dim=(-2, -1)) * mask.any(dim=-1)
        return self.weight * missed.sum() / reading.count


class AttentionEntropy(Objective):
    """Asks every word to look at few cells: the entropy of its weights, in nats, mean of heads.

    Heads may disagree: two that are sharp on different cells cost nothing, where the entropy of
    their mean would be 0.69.

    Every cell of a deep CNN knows something of the whole image, so that a plain mean of the grid
    serves the words nearly as well as looking: without this the attention stays all but uniform.
    Alone, from the first step, it froze on one cell for all words, and with the doubly stochastic
    term beside it, it did not (docs/results.md).
    """

    def loss(self, reading: Reading) -> Tensor:
        """Average over tokens and heads."""
        attention = _by_head(reading)
        if attention is None:
            return torch.zeros((), device=reading.mask.device)
        # Clamped, since the slope is infinite at a weight of 0.
        entropy: Tensor = torch.special.entr(attention.flatten(0, 2)[reading.index].clamp(min=1e-8))
        return self.weight * entropy.sum() / (reading.tokens * attention.shape[-2])
