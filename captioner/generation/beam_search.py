"""Beam search for many images at once; each leaves as soon as it has its sentences."""

from __future__ import annotations

import torch
from torch import Tensor

from captioner.decoders.state import StepDecoder, check_numbers, sync_interval
from captioner.generation.config import GenerationConfig
from captioner.generation.constraints import Constraints
from captioner.generation.hypothesis import Hypothesis
from captioner.generation.step import BeamStep, Step
from captioner.generation.trace import Ends, Trace

__all__ = ["beam_search"]

_OPEN = 0.75  # finished images are dropped once no more than this share is still open


class _Search:
    """The unfinished hypotheses of B images, K each, and the finished ones.

    numbers: the image of each row, since finished ones are dropped; tokens: (B, K), the last words;
    totals: (B, K), log-probabilities of the words so far; closed: (B,), images that are finished;
    broken: (1,), whether any score was not a number.
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
        self.pool = Ends.nowhere(count, config.captions, device)
        self.numbers = torch.arange(count)
        self.found: list[list[Hypothesis]] = [[] for _ in range(count)]

    def advance(self, step: int) -> None:
        """Find the K best ways to go on with `step` words, and those that end with them."""
        forbidden = self.constraints.forbidden(self.trace.words)
        beam = self.config.beam_size
        found = self.step(self.tokens, self.totals, forbidden, self.state, beam=beam)
        self.broken |= torch.isnan(found.end_logs).any()
        if step == self.config.maximum_length:
            found = found.over(self.totals)
        self._finish(found, step)
        self.tokens, self.totals, self.state = found.tokens, found.totals, found.state
        self._close()
        self.trace.add(found.output, found.parents, found.tokens, found.logs)

    def _finish(self, found: Step, step: int) -> None:
        """Put the hypotheses that end after `step` words into the pools of images still open."""
        self.pool = self.pool.best_of(
            Ends(
                found.ending.masked_fill(self.closed.unsqueeze(1), -torch.inf)
                / (step + 1) ** self.config.length_penalty,
                torch.full_like(found.ended, step),
                found.ended,
                found.end_logs.gather(1, found.ended),
            )
        )

    def _close(self) -> None:
        """Close the images whose unfinished hypotheses cannot enter the pool any longer.

        At best, every word to come has the probability 1 and the caption gets the maximum length.
        """
        longest = self.config.maximum_length + 1
        bound = self.totals[:, 0] / longest**self.config.length_penalty
        self.closed |= bound <= self.pool.score[:, -1]

    def collect(self) -> bool:
        """Read the closed images and drop them, where it is worth it; say whether any is left."""
        answer = torch.cat([self.closed, self.broken]).cpu()  # all that is asked, at once
        check_numbers(bool(answer[-1]))
        closed = answer[:-1]
        open_ = int((~closed).sum())
        if open_ > _OPEN * len(closed):
            return True
        rows = closed.nonzero().squeeze(1).to(self.closed.device, non_blocking=True)
        ends = Ends(*(part[rows, : self.config.captions] for part in self.pool))
        captions = self.trace.read(rows, ends)
        for number, hypotheses in zip(self.numbers[closed].tolist(), captions, strict=True):
            self.found[number] = hypotheses
        if open_:
            left = (~closed).nonzero().squeeze(1)
            self._keep(left.to(self.closed.device, non_blocking=True))
            self.numbers = self.numbers[~closed]
        return open_ > 0

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
    """Keep the K best unfinished hypotheses an image; finished ones leave into a pool.

    The pool holds as many as are returned. An image is finished when none of its hypotheses can
    enter its pool any longer. It therefore gets the captions of a search to the maximum length, and
    the same captions alone as in a batch.

    Args:
        decoder: scores the words.
        features: (B, L, D), the grids of B images.
        config: how many hypotheses are kept and returned.
        constraints: on what may be said, as long as the configuration lets it be.
        starts: (B,), the token that each image's captions begin with.

    Raises GenerationError: the decoder's scores are not numbers.
    """
    search = _Search(decoder, features, config, constraints, starts)
    every = sync_interval(features.device)
    for step in range(config.maximum_length + 1):
        search.advance(step)
        asked = (step + 1) % every == 0 or step == config.maximum_length
        if asked and not search.collect():
            break
    return search.found
