"""Generation: greedy, sampling and beam search over the decoder's `start` and `step`.

Every method works on B images x K hypotheses at once, on the decoder's device. A step's attention
and gate are stored where the step made them; each hypothesis finds its own by walking back through
its parents, so attention can never belong to another beam.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from captioner.attention import ProjectedGrid
from captioner.constraints import Constraints, filter_top
from captioner.decoder import DecoderState, StepOutput
from captioner.errors import ConfigError, GenerationError
from captioner.vocabulary import END, START

__all__ = ["GenerationConfig", "Hypothesis", "StepDecoder", "generate"]


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
            "beam_size": self.beam_size >= 1,
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
                hint = f"; it is at most beam_size, {beam}" if name == "captions" else ""
                raise ConfigError(f"{name} {getattr(self, name)} is out of range{hint}")


class StepDecoder(Protocol):
    """What generation needs of a decoder; a hand-made one is as good as a trained one."""

    def start(self, features: Tensor) -> tuple[DecoderState, ProjectedGrid]:
        """Begin one hypothesis an image (K = 1)."""

    def step(self, tokens: Tensor, state: DecoderState, grid: ProjectedGrid) -> StepOutput:
        """Read the tokens (B, K) and score the next ones."""


class Hypothesis(NamedTuple):
    """A finished sentence of T words.

    tokens: the words, without <end>.
    score: mean log-probability over the words and <end>.
    log_probabilities: (T + 1,), of the words and <end>.
    attention: (T, L); gate: (T,). All on the CPU, float32.
    """

    tokens: list[int]
    score: float
    log_probabilities: Tensor
    attention: Tensor
    gate: Tensor


class _Trace:
    """What every step produced, and from which hypothesis of the step before."""

    def __init__(self) -> None:
        self.words: Tensor | None = None  # (B, K, t), of the hypotheses of the last step
        self.parents: list[Tensor] = []  # a step's hypotheses (B, K) point into the step before
        self.tokens: list[Tensor] = []  # (B, K), chosen at that step
        self.log_probabilities: list[Tensor] = []  # (B, K), of those tokens
        self.attention: list[Tensor] = []  # (B, K of the step before, L)
        self.gate: list[Tensor] = []  # (B, K of the step before)

    def add(self, output: StepOutput, parents: Tensor, tokens: Tensor, logs: Tensor) -> None:
        self.parents.append(parents)
        self.tokens.append(tokens)
        self.log_probabilities.append(logs)
        self.attention.append(output.attention)
        self.gate.append(output.gate)
        last = tokens.unsqueeze(-1)
        if self.words is None:
            self.words = last
        else:
            index = parents.unsqueeze(-1).expand(-1, -1, self.words.shape[-1])
            self.words = torch.cat([self.words.gather(1, index), last], dim=-1)

    def to_cpu(self) -> None:
        for steps in (
            self.parents, self.tokens, self.log_probabilities, self.attention, self.gate
        ):  # fmt: skip
            steps[:] = [step.cpu() for step in steps]

    def read(self, image: int, step: int, hypothesis: int, last_log: float) -> Hypothesis:
        """Walk back from the hypothesis that said <end> after `step` words."""
        tokens, logs, attention, gate = [], [last_log], [], []
        at = hypothesis
        for t in range(step - 1, -1, -1):
            tokens.append(int(self.tokens[t][image, at]))
            logs.append(float(self.log_probabilities[t][image, at]))
            at = int(self.parents[t][image, at])
            attention.append(self.attention[t][image, at])
            gate.append(self.gate[t][image, at])
        log_probabilities = torch.tensor(logs[::-1])
        return Hypothesis(
            tokens[::-1],
            float(log_probabilities.mean()),
            log_probabilities,
            torch.stack(attention[::-1]).float() if step else torch.zeros(0, 0),
            torch.stack(gate[::-1]).float() if step else torch.zeros(0),
        )


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
    return _beam_search(decoder, features, config)


def _log_probabilities(output: StepOutput) -> Tensor:
    logs = output.logits.float().log_softmax(dim=-1)
    # One NaN or infinite logit makes its whole row NaN, so that a single column tells.
    if torch.isnan(logs[..., END]).any():
        raise GenerationError(
            "the model scored words with NaN or infinity: its weights are damaged, or the device "
            "overflowed; try float32, or another checkpoint"
        )
    # An impossible word stays finite: -inf is kept for what the constraints forbid, so that there
    # always is a hypothesis to return.
    return logs.clamp_(min=-1e4)


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
    constraints, trace = Constraints(config), _Trace()
    lengths = torch.full_like(tokens, config.maximum_length)
    for step in range(config.maximum_length + 1):
        output = decoder.step(tokens, state, grid)
        logs = _log_probabilities(output)
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
    trace.to_cpu()
    return [
        [
            trace.read(image, length, k, float(trace.log_probabilities[length][image, k]))
            for k, length in enumerate(row)
        ]
        for image, row in enumerate(lengths.tolist())
    ]


class _Pool(NamedTuple):
    """The best finished hypotheses of B images so far.

    normalized: (B, K), -inf where there is none yet; step and hypothesis: where its <end> was
    said; log_probability: of that <end>.
    """

    normalized: Tensor
    step: Tensor
    hypothesis: Tensor
    log_probability: Tensor

    def add(self, other: _Pool) -> _Pool:
        """Keep the K best of both."""
        count = self.normalized.shape[1]
        both = [torch.cat(pair, dim=1) for pair in zip(self, other, strict=True)]
        best = both[0].topk(count, dim=1).indices
        return _Pool(*(part.gather(1, best) for part in both))


def _beam_search(
    decoder: StepDecoder, features: Tensor, config: GenerationConfig
) -> list[list[Hypothesis]]:
    """Keep the K best unfinished hypotheses an image; finished ones leave into a pool of K."""
    images, beam = features.shape[0], config.beam_size
    device = features.device
    state, grid = decoder.start(features)
    tokens = torch.full((images, 1), START, device=device)
    totals = torch.zeros(images, 1, device=device)
    nothing = torch.zeros(images, beam, dtype=torch.long, device=device)
    pool = _Pool(
        torch.full((images, beam), -torch.inf, device=device), nothing, nothing, nothing.float()
    )
    constraints, trace = Constraints(config), _Trace()
    for step in range(config.maximum_length + 1):
        output = decoder.step(tokens, state, grid)
        logs = _log_probabilities(output)
        words = logs.shape[-1]
        sums = totals.unsqueeze(-1) + constraints.apply(logs, trace.words, step)
        # A hypothesis ends only if that is among the K best ways to go on.
        best, flat = sums.flatten(1).topk(min(2 * beam, sums[0].numel()), dim=1)
        parents, chosen = flat // words, flat % words
        ends = chosen == END
        ending = torch.where(ends, best, -torch.inf)[:, :beam]
        pool = pool.add(
            _Pool(
                ending / (step + 1) ** config.length_penalty,
                torch.full_like(parents[:, :beam], step),
                parents[:, :beam],
                logs[..., END].gather(1, parents[:, :beam]),
            )
        )
        totals, alive = best.masked_fill(ends, -torch.inf).topk(min(beam, best.shape[1]), dim=1)
        parents, tokens = parents.gather(1, alive), chosen.gather(1, alive)
        if _settled(pool, totals, step + 1, config):
            break
        trace.add(output, parents, tokens, logs.flatten(1).gather(1, parents * words + tokens))
        state = output.state.select(parents)
    trace.to_cpu()
    return _read_pool(pool, trace, config.captions)


def _settled(pool: _Pool, totals: Tensor, words: int, config: GenerationConfig) -> bool:
    """Whether no image has an unfinished hypothesis that still promises a place in its pool."""
    promise = totals[:, 0] / words**config.length_penalty
    return bool((promise <= pool.normalized[:, -1]).all())


def _read_pool(pool: _Pool, trace: _Trace, captions: int) -> list[list[Hypothesis]]:
    rows = zip(*(part.tolist() for part in pool), strict=True)
    return [
        [
            trace.read(image, step, hypothesis, last)
            for normalized, step, hypothesis, last in list(zip(*row, strict=True))[:captions]
            if normalized > -torch.inf
        ]
        for image, row in enumerate(rows)
    ]
