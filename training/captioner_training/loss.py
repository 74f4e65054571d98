"""The training loss: label-smoothed cross-entropy, and what is asked of the attention."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from captioner.decoder import Decoder, DecoderOutput
from captioner.vocabulary import PAD

__all__ = ["CaptionLoss", "caption_loss"]


class CaptionLoss(NamedTuple):
    """total: what is minimised; cross_entropy: nats a token, without smoothing; tokens: counted."""

    total: Tensor
    cross_entropy: Tensor
    tokens: int


def caption_loss(
    decoder: Decoder,
    output: DecoderOutput,
    targets: Tensor,
    *,
    label_smoothing: float,
    doubly_stochastic: float,
    attention_entropy: float,
) -> CaptionLoss:
    """Compare a teacher-forced pass with the tokens that follow.

    Words are scored only where there is a target: padding costs no output layer.

    Args:
        decoder: whose output layer scores the words.
        output: of B images with K captions of T tokens.
        targets: (B, K, T), the tokens shifted by one; <pad> does not count.
        label_smoothing: the share of probability that is spread over all words
            (Szegedy et al. 2016).
        doubly_stochastic: the weight of (1 - sum_t alpha_ti)^2, averaged over cells and captions,
            which asks the words of a caption to look at every cell in turn (Xu et al. 2015,
            equation 14).
        attention_entropy: the weight of the entropy of the attention weights, in nats, averaged
            over tokens. Every cell of a deep CNN knows something of the whole image, so that a
            plain mean of the grid serves the words nearly as well as looking: without this the
            attention stays all but uniform.
    """
    counted = targets != PAD
    logits = decoder.logits(output.deep[counted]).float()
    wanted = targets[counted]
    log_probabilities = logits.log_softmax(dim=-1)
    cross_entropy = F.nll_loss(log_probabilities, wanted)
    smooth = -log_probabilities.mean()
    total = (1 - label_smoothing) * cross_entropy + label_smoothing * smooth
    if doubly_stochastic > 0:
        looked = (output.attention * counted.unsqueeze(-1)).sum(dim=2)  # (B, K, L)
        captions = counted.any(dim=-1)
        total = total + doubly_stochastic * (1 - looked[captions]).square().mean()
    if attention_entropy > 0:
        # Clamped, since the slope of the entropy is infinite at a weight of 0.
        weights = output.attention[counted].clamp(min=1e-8)
        entropy = torch.special.entr(weights).sum(dim=-1).mean()
        total = total + attention_entropy * entropy
    return CaptionLoss(total, cross_entropy.detach(), int(torch.count_nonzero(counted)))
