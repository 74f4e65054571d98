"""Generation: greedy, sampling and beam search over the decoder's `start` and `step`.

Every method works on B images x K hypotheses at once, on the decoder's device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from captioner.decoders.state import StepDecoder
from captioner.generation.beam_search import beam_search
from captioner.generation.config import GenerationConfig
from captioner.generation.constraints import Constraints, filter_top
from captioner.generation.hypothesis import Ends, Hypothesis, Trace
from captioner.vocabulary import END, START

__all__ = ["generate"]


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
    state = decoder.start(features).expand(count)
    tokens = torch.full((len(features), count), START, device=features.device)
    same = torch.arange(count, device=features.device).expand_as(tokens)
    ended = torch.zeros_like(tokens, dtype=torch.bool)
    constraints, trace = Constraints(config), Trace()
    logs_of_tokens: list[Tensor] = []
    lengths = torch.full_like(tokens, config.maximum_length)
    for step in range(config.maximum_length + 1):
        output = decoder.step(tokens, state)
        logs = output.log_probabilities()
        allowed = constraints.apply(logs, trace.words, step)
        if generator is None:
            tokens = allowed.argmax(dim=-1)
        else:
            drawn = filter_top(allowed / config.temperature, top_k=config.top_k, top_p=config.top_p)
            flat = drawn.softmax(dim=-1).flatten(0, 1)
            tokens = torch.multinomial(flat, 1, generator=generator).view_as(tokens)
        logs_of_tokens.append(logs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1))
        trace.add(output, same, tokens, logs_of_tokens[-1])
        lengths = torch.where((tokens == END) & ~ended, step, lengths)
        ended |= tokens == END
        state = output.state
        if ended.all():
            break
    last = torch.stack(logs_of_tokens, dim=-1).gather(-1, lengths.unsqueeze(-1)).squeeze(-1)
    ends = Ends(torch.zeros_like(last), lengths, same, last)
    return trace.read(torch.arange(len(features), device=features.device), ends)
