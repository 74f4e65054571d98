"""Losses on the attention weights."""

from __future__ import annotations

import torch
from torch import Tensor

from captioner_training.losses.objective import Objective, TeacherForcedOutput


def _by_head(forced: TeacherForcedOutput) -> Tensor | None:
    """Return the attention of each head, (B, K, T, H, L); None without attention."""
    output = forced.output
    if output.heads is not None or output.attention is None:
        return output.heads
    return output.attention.unsqueeze(-2)


class DoublyStochastic(Objective):
    """Spreads the attention of a caption over all cells (Xu et al. 2015, equation 14).

    The loss is (1 - sum_t alpha_ti)^2, averaged over cells, heads and captions. Each head must
    cover all cells.
    """

    def loss(self, forced: TeacherForcedOutput) -> Tensor:
        """Return the mean over captions; captions without words are ignored."""
        attention, mask = _by_head(forced), forced.mask
        if attention is None:
            return torch.zeros((), device=mask.device)
        totals = (attention * mask[..., None, None]).sum(dim=2)  # (B, K, H, L)
        errors = (1 - totals).square().mean(dim=(-2, -1)) * mask.any(dim=-1)
        return self.weight * errors.sum() / forced.count


class AttentionEntropy(Objective):
    """Makes the attention of each word sharp. The loss is the entropy of its weights, in nats.

    Each head has its own entropy, so that heads may attend to different cells. Without this loss,
    attention stays almost uniform: every cell of a deep CNN describes the whole image, so the mean
    of all cells serves nearly as well.
    """

    def loss(self, forced: TeacherForcedOutput) -> Tensor:
        """Return the mean over tokens and heads."""
        attention = _by_head(forced)
        if attention is None:
            return torch.zeros((), device=forced.mask.device)
        # Clamped: the gradient is infinite at a weight of 0.
        entropy = torch.special.entr(forced.pick(attention).clamp(min=1e-8))
        return self.weight * forced.sum(entropy) / (forced.tokens * attention.shape[-2])
