"""Generation without a search: greedy, sampling, and self-critical training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from captioner.generation.beam_search import OPTIONAL, Sentences, sync_interval
from captioner.generation.config import GenerationConfig
from captioner.generation.constraints import Constraints
from captioner.model.decoder import StepDecoder, log_probabilities
from captioner.vocabulary import END


def roll_out(
    decoder: StepDecoder,
    features: Tensor,
    *,
    count: int,
    constraints: Constraints,
    choose: Callable[[Tensor], Tensor],
    starts: Tensor,
    checks: bool = True,
) -> Sentences:
    """Generate `count` hypotheses for each of the grids (B, L, D) until all have ended.

    Args:
        decoder, features, starts, constraints, checks: as for `beam_search`.
        count: K, hypotheses per image.
        choose: maps log-probabilities (B, K, words), -inf for forbidden words, to words (B, K).

    Returns "tokens", "log_probabilities" and the optional parts of `read_sentences`. Values after a
    hypothesis's first <end> are arbitrary.
    """
    state = decoder.start(features).expand(count)
    tokens = starts.unsqueeze(1).expand(-1, count)
    ended = torch.zeros_like(tokens, dtype=torch.bool)
    words = tokens.new_zeros(*tokens.shape, 0)
    steps: dict[str, list[Tensor]] = {"log_probabilities": []}
    interval = sync_interval(features.device)
    for step in range(constraints.maximum_length + 1):
        output = decoder.step(tokens, state)
        logs = log_probabilities(output.logits)
        tokens, state = choose(constraints.apply(logs, words)), output.state
        words = torch.cat([words, tokens.unsqueeze(-1)], dim=-1)
        steps["log_probabilities"].append(logs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1))
        for name in OPTIONAL:
            if (part := getattr(output, name)) is not None:
                steps.setdefault(name, []).append(part)
        ended |= tokens == END
        if checks and (step + 1) % interval == 0 and bool(ended.all()):
            break
    return {"tokens": words, **{name: torch.stack(parts, dim=2) for name, parts in steps.items()}}


def score_sentences(sentences: Sentences, *, length_penalty: float) -> Sentences:
    """Add "length" and "score" (see Hypothesis) to the result of `roll_out`."""
    is_end = sentences["tokens"] == END
    length = is_end.int().argmax(dim=-1)
    totals = sentences["log_probabilities"].cumsum(dim=-1).gather(-1, length.unsqueeze(-1))
    score = totals.squeeze(-1) / (length + 1) ** length_penalty
    # Only NaN prevents the <end> at the maximum length.
    score = score.where(is_end.any(dim=-1), torch.nan)
    return {**sentences, "length": length, "score": score}


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """Samples words by their probability.

    temperature: below 1 sharpens the distribution, above 1 flattens it.
    top_k, top_p: see `filter_top`.
    generator: a generator on the decoder's device; None: torch's default.
    shared: the same random numbers for every image, so that samples do not depend on the batch.
    """

    temperature: float
    top_k: int = 0
    top_p: float = 1.0
    generator: torch.Generator | None = None
    shared: bool = False

    @classmethod
    def seeded(cls, config: GenerationConfig, device: torch.device) -> Sampler:
        """Make the sampler of a configuration; without a seed it differs every time."""
        generator, seed = torch.Generator(device), config.seed
        if seed is None:
            generator.seed()
        else:
            generator.manual_seed(seed)
        return cls(
            temperature=config.temperature,
            top_k=config.top_k,
            top_p=config.top_p,
            generator=generator,
            shared=seed is not None,
        )

    def __call__(self, logs: Tensor) -> Tensor:
        """Choose a word for each row of log-probabilities (B, K, words): (B, K)."""
        # The most probable word stays at 0, even at the lowest temperature.
        below = logs - logs.amax(dim=-1, keepdim=True)
        scaled = below / max(self.temperature, torch.finfo(logs.dtype).tiny)
        kept = filter_top(scaled, top_k=self.top_k, top_p=self.top_p)
        return draw(kept.softmax(dim=-1), generator=self.generator, shared=self.shared)


def draw(
    probabilities: Tensor, *, generator: torch.Generator | None = None, shared: bool = False
) -> Tensor:
    """Sample a word for each row of probabilities (..., words), by inverting their cumulative sum.

    Probabilities are float32 or float64 and need not sum to 1. Words of probability 0 are never
    drawn, unless all are 0. (torch.multinomial draws a number per word, which is slow on a CPU.)
    """
    sums = probabilities.cumsum(dim=-1)
    total = sums[..., -1:]
    shape = (1, *total.shape[1:]) if shared else total.shape
    chance = torch.rand(shape, generator=generator, device=total.device, dtype=total.dtype)
    # chance * total may round up to total, beyond the last word.
    chosen = torch.searchsorted(
        sums, torch.minimum(chance * total, total.nextafter(-total)), right=True
    )
    # Sums of NaN give an index beyond the end. They are found in `read_sentences`, or in the loss.
    return chosen.squeeze(-1).clamp(max=sums.shape[-1] - 1)


def filter_top(logits: Tensor, *, top_k: int, top_p: float) -> Tensor:
    """Set the logits of all but the most probable words to -inf; at least one word is kept.

    Args:
        logits: (..., words).
        top_k: keep the k most probable words (Fan et al. 2018); 0: all.
        top_p: keep the fewest words whose probabilities sum to p (Holtzman et al. 2020).
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
