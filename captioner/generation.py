"""Generation: greedy, sampling and beam search over the decoder's `start` and `step`.

Every method works on B images x K hypotheses at once, on the decoder's device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from captioner.beam_search import beam_search
from captioner.constraints import Constraints, filter_top
from captioner.decoder import StepDecoder
from captioner.errors import ConfigError
from captioner.hypothesis import Hypothesis, Trace
from captioner.vocabulary import END, START

__all__ = ["GenerationConfig", "Hypothesis", "generate"]

_WIDEST_BEAM = 500  # a wider one finds no better sentences, and takes all memory


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """How sentences are made from scores of words."""

    beam_size: int = 5  # hypotheses kept an image; 1 is greedy
    captions: int = 1  # how many of the best are returned
    length_penalty: float = 0.5  # a in sum / length^a: 0 prefers short captions, 1 takes the mean
    no_repeat_ngram: int = 2  # no n words stand twice in this order; 0 allows it
    minimum_length: int = 1  # words, before <end> may come
    maximum_length: int = 24  # words; then <end> must come
    sample: bool = False  # draw words at random instead of searching for the likeliest
    temperature: float = 1.0  # below 1 sharpens, above 1 flattens what is drawn from
    top_k: int = 0  # draw from the k likeliest words only; 0: from all
    top_p: float = 1.0  # draw from the likeliest words that together have this probability
    seed: int | None = None  # of sampling; None draws anew every time

    def __post_init__(self) -> None:
        beam = self.beam_size if not self.sample else self.captions
        checks = {
            "beam_size": 1 <= self.beam_size <= _WIDEST_BEAM,
            "captions": 1 <= self.captions <= beam,
            "length_penalty": 0 <= self.length_penalty < 10,
            "no_repeat_ngram": self.no_repeat_ngram >= 0,
            "maximum_length": self.maximum_length >= 1,
            "minimum_length": 0 <= self.minimum_length <= self.maximum_length,
            "temperature": 0 < self.temperature < float("inf"),
            "top_k": self.top_k >= 0,
            "top_p": 0 < self.top_p <= 1,
        }
        for name, good in checks.items():
            if not good:
                hint = {
                    "beam_size": f": it is 1 to {_WIDEST_BEAM}",
                    "captions": f"; it is at most beam_size, {beam}",
                }.get(name, "")
                raise ConfigError(f"{name} {getattr(self, name)} is out of range{hint}")


@torch.inference_mode()
def generate(
    decoder: StepDecoder, features: Tensor, config: GenerationConfig
) -> list[list[Hypothesis]]:
    """Write captions for the grids (B, L, D) of B images.

    Returns for each image `config.captions` hypotheses, the best first (sampling: as drawn).
    Fewer come back only where so few sentences exist under the constraints.

    Raises:
        GenerationError: the decoder's scores are not numbers.

    """
    if config.sample:
        generator = torch.Generator(features.device)
        if config.seed is None:
            generator.seed()
        else:
            generator.manual_seed(config.seed)
        return _roll_out(decoder, features, config, generator)
    if config.beam_size == 1:
        return _roll_out(decoder, features, config, None)
    return beam_search(decoder, features, config)


def _roll_out(
    decoder: StepDecoder,
    features: Tensor,
    config: GenerationConfig,
    generator: torch.Generator | None,
) -> list[list[Hypothesis]]:
    """Follow `captions` hypotheses an image, each taking the likeliest word, or drawing one."""
    count = config.captions
    state, grid = decoder.start(features)
    state = state.expand(count)
    tokens = torch.full(state.hidden.shape[:2], START, device=features.device)
    same = torch.arange(count, device=features.device).expand_as(tokens)
    ended = torch.zeros_like(tokens, dtype=torch.bool)
    constraints, trace = Constraints(config), Trace()
    lengths = torch.full_like(tokens, config.maximum_length)
    for step in range(config.maximum_length + 1):
        output = decoder.step(tokens, state, grid)
        logs = output.log_probabilities()
        allowed = constraints.apply(logs, trace.words, step)
        if generator is None:
            tokens = allowed.argmax(dim=-1)
        else:
            drawn = filter_top(allowed / config.temperature, top_k=config.top_k, top_p=config.top_p)
            flat = drawn.softmax(dim=-1).flatten(0, 1)
            tokens = torch.multinomial(flat, 1, generator=generator).view_as(tokens)
        trace.add(output, same, tokens, logs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1))
        lengths = torch.where((tokens == END) & ~ended, step, lengths)
        ended |= tokens == END
        state = output.state
        if ended.all():
            break
    trace = trace.cpu()
    return [
        [
            trace.read(image, length, k, float(trace.log_probabilities[length][image, k]))
            for k, length in enumerate(row)
        ]
        for image, row in enumerate(lengths.tolist())
    ]
