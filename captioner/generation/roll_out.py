"""One word after the other, without a search: greedy, sampling, and self-critical training."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from captioner.decoders.state import StepDecoder, check_numbers, log_probabilities, sync_interval
from captioner.generation.constraints import Constraints
from captioner.generation.trace import Trace
from captioner.vocabulary import END

__all__ = ["Sampler", "choose_likeliest", "draw", "filter_top", "roll_out"]


def roll_out(
    decoder: StepDecoder,
    features: Tensor,
    *,
    count: int,
    constraints: Constraints,
    choose: Callable[[Tensor], Tensor],
    starts: Tensor,
) -> Trace:
    """Follow `count` hypotheses for each of the grids (B, L, D) until all have said <end>.

    Args:
        decoder: scores the words.
        features: of B images.
        count: hypotheses an image.
        constraints: on what may be said.
        choose: takes a word (B, K) for each row of log-probabilities (B, K, words), of which those
            that may not be said are -inf.
        starts: (B,), the token that each image's hypotheses begin with.

    Returns:
        What was said and seen. After its first <end> a hypothesis says anything.

    Raises GenerationError: the decoder's scores are not numbers.
    """
    state = decoder.start(features).expand(count)
    tokens = starts.unsqueeze(1).expand(-1, count)
    ended = torch.zeros_like(tokens, dtype=torch.bool)
    trace = Trace(tokens.new_zeros(*tokens.shape, 0))
    every, broken = sync_interval(features.device), ended.new_zeros(())
    for step in range(constraints.maximum_length + 1):
        output = decoder.step(tokens, state)
        logs = log_probabilities(output.logits)
        broken |= torch.isnan(logs[..., END]).any()
        tokens = choose(constraints.apply(logs, trace.words))
        trace.add(output, None, tokens, logs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1))
        state = output.state
        ended |= tokens == END
        if (step + 1) % every == 0 or step == constraints.maximum_length:
            over, wrong = torch.stack([ended.all(), broken]).tolist()
            check_numbers(wrong)
            if over:
                break
    return trace


def choose_likeliest(logs: Tensor) -> Tensor:
    """Choose the likeliest word for each row of log-probabilities (B, K, words): greedy."""
    return logs.argmax(dim=-1)


class Sampler:
    """Draws a word by its probability.

    Args:
        temperature: below 1 sharpens, above 1 flattens what is drawn from.
        top_k: see filter_top.
        top_p: see filter_top.
        generator: on the device of the decoder; None: torch's own.
        shared: use the same random numbers for every image of a batch, so that what is drawn for
            an image does not depend on the others.
    """

    def __init__(
        self,
        *,
        temperature: float,
        top_k: int = 0,
        top_p: float = 1.0,
        generator: torch.Generator | None = None,
        shared: bool = False,
    ) -> None:
        self.temperature, self.top_k, self.top_p = temperature, top_k, top_p
        self.generator, self.shared = generator, shared

    def __call__(self, logs: Tensor) -> Tensor:
        """Choose a word for each row of log-probabilities (B, K, words): (B, K)."""
        # However low the temperature, the likeliest word stays at 0 while others fall to -inf.
        below = logs - logs.amax(dim=-1, keepdim=True)
        scaled = below / max(self.temperature, torch.finfo(logs.dtype).tiny)
        kept = filter_top(scaled, top_k=self.top_k, top_p=self.top_p)
        return draw(kept.softmax(dim=-1), generator=self.generator, shared=self.shared)


def draw(
    probabilities: Tensor, *, generator: torch.Generator | None = None, shared: bool = False
) -> Tensor:
    """Draw a word for each row of probabilities (..., words), by the inverse of their running sum.

    torch.multinomial draws a random number for every word: on a CPU, two fifths of the time of a
    step of the bundled model.

    Args:
        probabilities: float32 or finer, since a sum of thousands in half the bits loses most words.
            They need not sum to 1, but one must be above 0; a word of probability 0 is never drawn.
        generator: on their device; None: torch's own.
        shared: use the same random numbers along the first dimension.
    """
    sums = probabilities.cumsum(dim=-1)
    # Where a random number next to 1 is rounded up to the whole sum, there is no word.
    total = sums[..., -1:]
    shape = (1, *total.shape[1:]) if shared else total.shape
    chance = torch.rand(shape, generator=generator, device=total.device, dtype=total.dtype)
    chosen = torch.searchsorted(
        sums, torch.minimum(chance * total, total.nextafter(-total)), right=True
    )
    # NaN has no place among the sums; who asks for numbers hears of it (check_numbers).
    return chosen.squeeze(-1).clamp(max=sums.shape[-1] - 1)


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
