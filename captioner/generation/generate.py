"""Generation with a decoder: beam search, greedy search or sampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from captioner.generation.beam_search import Hypothesis, beam_search, read_sentences
from captioner.generation.config import GenerationConfig
from captioner.generation.constraints import Constraints
from captioner.generation.sampling import Sampler, roll_out, score_sentences
from captioner.model.decoder import StepDecoder
from captioner.trust.consensus import Consensus
from captioner.vocabulary import Vocabulary

_LONGEST = 40  # words; a graph holds all steps up to the maximum length

Graphs = Callable[..., Any]
"""Runs a function of tensors, given a key of it; see captioner.inference.cuda_graphs."""


@torch.inference_mode()
def generate(
    decoder: StepDecoder,
    features: Tensor,
    config: GenerationConfig,
    *,
    vocabulary: Vocabulary | None = None,
    starts: Sequence[int] | None = None,
    consensus: Consensus | None = None,
    graphs: Graphs | None = None,
) -> list[list[Hypothesis]]:
    """Generate captions for the grids of B images.

    Args:
        decoder: scores the words.
        features: (B, L, D).
        config: method, beam size, constraints.
        vocabulary: the model's vocabulary; None: settings that name a word have no effect.
        starts: the first token of each image's captions; None: the start token of
            `config.style`.
        consensus: re-ranks the sentences of a beam, if the configuration allows it.
        graphs: runs the beam searches of this vocabulary on a GPU; None: they are run directly.

    Returns:
        For each image `config.captions` hypotheses, best first (samples in the order drawn). Fewer
        only if the constraints allow no more sentences.

    Raises:
        ConfigError: the vocabulary does not have the style.
        GenerationError: a score is NaN.
    """
    vocabulary = vocabulary or Vocabulary([])
    if starts is None:
        starts = [vocabulary.start(config.style)] * len(features)
    begin = torch.tensor(starts).to(features.device, non_blocking=True)
    constraints = Constraints(
        maximum_length=config.maximum_length,
        minimum_length=config.minimum_length,
        no_repeat_ngram=config.no_repeat_ngram,
        no_repeat_word=vocabulary.tokenizer != "characters",
        no_repeat_around=vocabulary.encode([config.no_repeat_around])[0],
        never_generated=vocabulary.never_generated,
        device=features.device,
    )
    if consensus is not None and config.uses_consensus:
        search = replace(config, captions=config.beam_size)
        beams = _search(decoder, features, begin, search, constraints, graphs)
        ranked = consensus.rank(features, beams, attrgetter("tokens"))
        return [beam[: config.captions] for beam in ranked]
    if config.uses_beam:
        return _search(decoder, features, begin, config, constraints, graphs)
    choose: Callable[[Tensor], Tensor] = partial(torch.argmax, dim=-1)
    if config.sample:
        choose = Sampler.seeded(config, features.device)
    sentences = roll_out(
        decoder,
        features,
        count=config.captions,
        constraints=constraints,
        choose=choose,
        starts=begin,
    )
    return read_sentences(score_sentences(sentences, length_penalty=config.length_penalty))


def _search(
    decoder: StepDecoder,
    features: Tensor,
    starts: Tensor,
    config: GenerationConfig,
    constraints: Constraints,
    graphs: Graphs | None,
) -> list[list[Hypothesis]]:
    """Run a beam search, on a GPU as a graph unless the captions may be very long."""
    run = partial(beam_search, decoder, config=config, constraints=constraints)
    if graphs is None or not features.is_cuda or config.maximum_length > _LONGEST:
        return read_sentences(run(features, starts))
    # Requests with the same search share a graph, whatever their other settings.
    key = replace(config, consensus=True, temperature=1.0, top_k=0, top_p=1.0, seed=None, style="")
    return read_sentences(graphs((decoder, key), partial(run, checks=False), features, starts))
