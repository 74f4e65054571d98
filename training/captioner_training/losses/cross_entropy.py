"""The training loss: label-smoothed cross-entropy, and what is asked of the attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from captioner.decoders.decoder import Decoder, DecoderOutput
from captioner.vocabulary import PAD, START, UNK

__all__ = ["CaptionLoss", "Captions", "Counts", "LossTerms", "caption_loss", "count"]


class Counts(NamedTuple):
    """What a loss is averaged over: tokens and captions, of every process and part of a batch."""

    tokens: Tensor
    captions: Tensor


class Captions(NamedTuple):
    """What the model is to say of B images.

    tokens: (B, K, T), <start> first; targets: (B, K, T - 1), the same shifted by one, on the CPU;
    weights: (B, K), what a caption is worth, or None where all are worth the same; reward: the sum
    of the rewards of captions that were drawn; looks: (B, K, T - 1, L), where each word is to look,
    see losses/supervision.py.
    """

    tokens: Tensor
    targets: Tensor
    weights: Tensor | None = None
    reward: Tensor | None = None
    looks: Tensor | None = None


class CaptionLoss(NamedTuple):
    """total: what is minimised; cross_entropy: nats a token, without smoothing and weights."""

    total: Tensor
    cross_entropy: Tensor


class LossTerms(NamedTuple):
    """What the loss asks for, and how much each term weighs.

    label_smoothing: the share of probability that is spread over all words (Szegedy et al. 2016).
    doubly_stochastic: of (1 - sum_t alpha_ti)^2, averaged over cells and captions, which asks the
    words of a caption to look at every cell in turn (Xu et al. 2015, equation 14).
    attention_entropy: of the entropy of the attention weights, in nats, averaged over tokens. Every
    cell of a deep CNN knows something of the whole image, so that a plain mean of the grid serves
    the words nearly as well as looking: without this the attention stays all but uniform. Alone,
    from the first step, it froze on one cell for all words, and with the doubly stochastic term
    beside it, it did not (docs/results.md).
    attention_supervision: of the cross-entropy, in nats, between where words are told to look and
    the attention weights, averaged over all tokens (Liu et al. 2017, equation 8).
    """

    label_smoothing: float = 0.0
    doubly_stochastic: float = 0.0
    attention_entropy: float = 0.0
    attention_supervision: float = 0.0


def count(targets: Tensor) -> Counts:
    """Count the targets (B, K, T) that are not padding, and the captions that have any."""
    counted = targets != PAD
    return Counts(counted.sum(), counted.any(dim=-1).sum())


def caption_loss(
    decoder: Decoder,
    output: DecoderOutput,
    targets: Tensor,
    terms: LossTerms,
    *,
    counts: Counts | None = None,
    weights: Tensor | None = None,
    temperature: float = 1.0,
    silent: Sequence[int] = (PAD, START),
    looks: Tensor | None = None,
) -> CaptionLoss:
    """Compare a teacher-forced pass with the tokens that follow.

    Words are scored only where there is a target: padding costs no output layer.

    Args:
        decoder: whose output layer scores the words.
        output: of B images with K captions of T tokens. Nothing is asked of an attention that it
            does not have.
        targets: (B, K, T), the tokens shifted by one; <pad> does not count. On the CPU a GPU need
            not be waited for.
        terms: what is asked, and how much it weighs.
        counts: what is averaged over, where these captions are a part of a batch. The losses of
            the parts then add up to the loss of the batch.
        weights: (B, K), what a caption's log-probability is worth: its advantage in self-critical
            training. Then nothing is smoothed, and the probabilities are those that `draw_captions`
            draws from.
        temperature: of those probabilities.
        silent: tokens that stand for no word, and are not drawn.
        looks: (B, K, T, L), a map that sums to 1 for every word that is told where to look, and 0
            everywhere for the others.

    """
    device = output.deep.device
    counted = targets != PAD
    counts = count(targets) if counts is None else counts
    tokens, captions = (number.to(device, non_blocking=True) for number in counts)
    # Indices, since a boolean mask on a GPU would make the CPU wait for it.
    index = counted.flatten().nonzero().squeeze(1)
    wanted = targets.flatten()[index].to(device, non_blocking=True)
    index = index.to(device, non_blocking=True)
    logits = decoder.logits(output.deep.flatten(0, 2)[index])
    if weights is None:
        losses, nll = _token_losses(logits, wanted, terms.label_smoothing)
    else:
        losses, nll = _token_losses(_as_drawn(logits, temperature, silent), wanted, 0.0)
        losses = losses * weights.to(device).unsqueeze(-1).expand(targets.shape).flatten()[index]
    total = losses.sum() / tokens
    if output.attention is not None:
        mask = counted.to(device, non_blocking=True)
        counts = Counts(tokens, captions)
        total = total + _of_attention(output.attention, terms, looks, mask, index, counts)
    return CaptionLoss(total, nll.sum() / tokens)


def _of_attention(
    attention: Tensor,
    terms: LossTerms,
    looks: Tensor | None,
    mask: Tensor,
    index: Tensor,
    counts: Counts,
) -> Tensor:
    """Add up what is asked of the attention; looks are those of caption_loss.

    Args:
        attention: (B, K, T, L).
        terms: how much each weighs.
        looks: (B, K, T, L), or None.
        mask: (B, K, T), what counts.
        index: (N,), where that is in the flattened mask.
        counts: what is averaged over.

    """
    total = torch.zeros((), device=attention.device)
    if terms.doubly_stochastic > 0:
        missed = _missed(attention, mask).sum() / counts.captions
        total = total + terms.doubly_stochastic * missed
    if terms.attention_entropy > 0:
        entropy = _entropy(attention.flatten(0, 2)[index]) / counts.tokens
        total = total + terms.attention_entropy * entropy
    if terms.attention_supervision > 0 and looks is not None:
        logs = attention.float().clamp(min=1e-8).log()
        total = (
            total
            - terms.attention_supervision * (looks.to(logs.device) * logs).sum() / counts.tokens
        )
    return total


def _as_drawn(logits: Tensor, temperature: float, silent: Sequence[int]) -> Tensor:
    """Give the logits (N, words) that `draw_captions` draws from.

    What is never drawn must have no probability: else all of it flees there from the words that
    are punished, and nothing punishes it.
    """
    never = torch.tensor([*silent, UNK], device=logits.device)
    return logits.index_fill(-1, never, -torch.inf) / temperature


def _entropy(attention: Tensor) -> Tensor:
    """Add up the entropies, in nats, of attention weights (N, L)."""
    # Clamped, since the slope is infinite at a weight of 0.
    return cast(Tensor, torch.special.entr(attention.clamp(min=1e-8)).sum())


def _missed(attention: Tensor, mask: Tensor) -> Tensor:
    """Mean over cells of (1 - sum_t alpha_ti)^2 (B, K), 0 for captions without a word.

    Args:
        attention: (B, K, T, L).
        mask: (B, K, T), what counts.

    """
    looked = (attention * mask.unsqueeze(-1)).sum(dim=2)
    return (1 - looked).square().mean(dim=-1) * mask.any(dim=-1)


def _token_losses(logits: Tensor, wanted: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Score N tokens: label-smoothed cross-entropy (N,), and the plain one, without a slope."""
    logs = logits.log_softmax(dim=-1, dtype=torch.float32)
    nll = -logs.gather(1, wanted.unsqueeze(1)).squeeze(1)
    losses = torch.lerp(nll, -logs.mean(dim=-1), smoothing) if smoothing > 0 else nll
    return losses, nll.detach()
