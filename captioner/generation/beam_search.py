"""Beam search over a batch of images; each image leaves the batch when it is finished."""

from __future__ import annotations

import torch
from torch import Tensor

from captioner.decoders.state import StepDecoder, check_numbers, sync_interval
from captioner.generation.config import GenerationConfig
from captioner.generation.constraints import Constraints
from captioner.generation.hypothesis import Hypothesis
from captioner.generation.packed import PackedHypotheses
from captioner.generation.step import BeamStep, Step
from captioner.generation.trace import Ends, Trace

__all__ = ["beam_search", "whole_search"]

_OPEN = 0.75  # finished images are removed when at most this share is unfinished


class _Search:
    """The state of a search: B images with K unfinished hypotheses each, and the finished ones.

    numbers: (B,), the index of each row's image in the batch.
    tokens: (B, K), the last words.
    totals: (B, K), the summed log-probabilities of the words so far, best first.
    closed: (B,), whether an image is finished.
    broken: (1,), whether any score was NaN.
    pool: the best finished hypotheses of each image.
    """

    def __init__(
        self,
        decoder: StepDecoder,
        features: Tensor,
        config: GenerationConfig,
        constraints: Constraints,
        starts: Tensor,
    ) -> None:
        count, device = features.shape[0], features.device
        self.step, self.config, self.constraints = BeamStep(decoder), config, constraints
        self.state = decoder.start(features)
        self.tokens = starts.unsqueeze(1)
        self.trace = Trace(self.tokens.new_zeros(count, 1, 0))
        self.totals = torch.zeros(count, 1, device=device)
        self.closed = torch.zeros(count, dtype=torch.bool, device=device)
        self.broken = torch.zeros(1, dtype=torch.bool, device=device)
        self.pool = Ends.empty(count, config.captions, device)
        self.numbers = torch.arange(count)
        self.results: list[list[Hypothesis]] = [[] for _ in range(count)]

    def advance(self, step: int) -> None:
        """Extend hypotheses of `step` words by one word, or end them."""
        forbidden = self.constraints.forbidden(self.trace.words)
        beam = self.config.beam_size
        extended = self.step(self.tokens, self.totals, forbidden, self.state, beam=beam)
        self.broken |= torch.isnan(extended.end_logs).any()
        if step == self.config.maximum_length:
            extended = extended.end_all(self.totals)
        self._finish(extended, step)
        self.tokens, self.totals, self.state = extended.tokens, extended.totals, extended.state
        self._close()
        self.trace.add(extended.output, extended.parents, extended.tokens, extended.logs)

    def _finish(self, extended: Step, step: int) -> None:
        """Add hypotheses that end after `step` words to the pools.

        The pool of a finished image keeps its scores, because no later score exceeds the bound.
        """
        self.pool = self.pool.best_of(
            Ends(
                extended.ending / (step + 1) ** self.config.length_penalty,
                torch.full_like(extended.ended, step),
                extended.ended,
                extended.end_logs.gather(1, extended.ended),
            )
        )

    def _close(self) -> None:
        """Close images whose unfinished hypotheses cannot enter the pool any more.

        The upper bound of a score assumes that all further words, up to the maximum length, have
        probability 1.
        """
        longest = self.config.maximum_length + 1
        bound = self.totals[:, 0] / longest**self.config.length_penalty
        self.closed |= bound <= self.pool.score[:, -1]

    def collect(self) -> bool:
        """Remove closed images once enough are closed; return whether any is unfinished."""
        flags = torch.cat([self.closed, self.broken]).cpu()  # one copy from the device
        check_numbers(bool(flags[-1]))
        closed = flags[:-1]
        unfinished = int((~closed).sum())
        if unfinished > _OPEN * len(closed):
            return True
        rows = closed.nonzero().squeeze(1).to(self.closed.device, non_blocking=True)
        captions = self.pack(rows).read()
        for number, hypotheses in zip(self.numbers[closed].tolist(), captions, strict=True):
            self.results[number] = hypotheses
        if unfinished:
            left = (~closed).nonzero().squeeze(1)
            self._keep(left.to(self.closed.device, non_blocking=True))
            self.numbers = self.numbers[~closed]
        return unfinished > 0

    def pack(self, rows: Tensor) -> PackedHypotheses:
        """Return the finished hypotheses of these images, still on the device."""
        ends = Ends(*(part[rows, : self.config.captions] for part in self.pool))
        return self.trace.pack(rows, ends)

    def _keep(self, rows: Tensor) -> None:
        self.tokens, self.totals = self.tokens[rows], self.totals[rows]
        self.closed, self.pool = self.closed[rows], self.pool.take(rows)
        self.state, self.trace = self.state.take(rows), self.trace.take(rows)


def beam_search(
    decoder: StepDecoder,
    features: Tensor,
    config: GenerationConfig,
    constraints: Constraints,
    starts: Tensor,
) -> list[list[Hypothesis]]:
    """Keep the K best unfinished hypotheses of each image, and a pool of the best finished ones.

    The pool has `config.captions` places. An image is finished when no unfinished hypothesis can
    enter its pool. So stopping before the maximum length does not change the captions, and they do
    not depend on the batch.

    Args:
        decoder: scores the words.
        features: (B, L, D), the grids.
        config: beam size, captions, length penalty.
        constraints: the constraints on the words, with the maximum length of `config`.
        starts: (B,), the first token of each image's captions.

    Returns the hypotheses of each image, best first.

    Raises GenerationError: a score is NaN.
    """
    search = _Search(decoder, features, config, constraints, starts)
    interval = sync_interval(features.device)
    for step in range(config.maximum_length + 1):
        search.advance(step)
        is_sync = (step + 1) % interval == 0 or step == config.maximum_length
        if is_sync and not search.collect():
            break
    return search.results


def whole_search(
    decoder: StepDecoder,
    features: Tensor,
    starts: Tensor,
    *,
    config: GenerationConfig,
    constraints: Constraints,
) -> tuple[PackedHypotheses, Tensor]:
    """Search like `beam_search`, but without reading from the device, for a CUDA graph.

    It always takes all steps up to the maximum length. The result is the same.

    Returns the hypotheses, and whether a score is NaN: (1,) bool.
    """
    search = _Search(decoder, features, config, constraints, starts)
    for step in range(config.maximum_length + 1):
        search.advance(step)
    rows = torch.arange(len(features), device=features.device)
    return search.pack(rows), search.broken
