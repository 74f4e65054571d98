"""Losses on the attention: where the words look, beside what they are."""

from __future__ import annotations

import torch
from torch import Tensor

from captioner_training.losses.objective import Objective, TeacherForcedOutput

__all__ = ["AttentionEntropy", "DoublyStochastic"]


def _by_head(forced: TeacherForcedOutput) -> Tensor | None:
    """Return the attention of each head, (B, K, T, H, L); None without attention."""
    output = forced.output
    if output.heads is not None or output.attention is None:
        return output.heads
    return output.attention.unsqueeze(-2)


class DoublyStochastic(Objective):
    """Asks the words of a caption to look at every cell in turn (Xu et al. 2015, equation 14).

    (1 - sum_t alpha_ti)^2, averaged over cells, heads and captions: each head is asked, so that one
    may not leave a cell to another.
    """

    def loss(self, forced: TeacherForcedOutput) -> Tensor:
        """Average over captions; one without a word counts for nothing."""
        attention, mask = _by_head(forced), forced.mask
        if attention is None:
            return torch.zeros((), device=mask.device)
        looked = (attention * mask[..., None, None]).sum(dim=2)  # (B, K, H, L)
        missed = (1 - looked).square().mean(dim=(-2, -1)) * mask.any(dim=-1)
        return self.weight * missed.sum() / forced.count


class AttentionEntropy(Objective):
    """Asks every word to look at few cells: the entropy of its weights, in nats, mean of heads.

    Heads may disagree: two that are sharp on different cells cost nothing, where the entropy of
    their mean would be 0.69.

    Every cell of a deep CNN carries information about the whole image, so that a plain mean of the
    grid serves nearly as well as attention: without this term attention stays almost uniform.
    """

    def loss(self, forced: TeacherForcedOutput) -> Tensor:
        """Average over tokens and heads."""
        attention = _by_head(forced)
        if attention is None:
            return torch.zeros((), device=forced.mask.device)
        # Clamped, since the slope is infinite at a weight of 0.
        entropy = torch.special.entr(forced.pick(attention).clamp(min=1e-8))
        return self.weight * forced.sum(entropy) / (forced.tokens * attention.shape[-2])
