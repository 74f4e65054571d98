"""One step of beam search, as a module that `captioner export` can export."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from captioner.decoders.state import State, StepDecoder, StepOutput, log_probabilities
from captioner.generation.constraints import restrict
from captioner.vocabulary import END

__all__ = ["BeamStep", "Step"]


class Step(NamedTuple):
    """The result of a step of B images: K' extended hypotheses, and those that end.

    tokens: (B, K'), the new words.
    parents: (B, K'), the hypotheses that they extend.
    logs: (B, K'), the log-probabilities of the new words.
    totals: (B, K'), the summed log-probabilities of all words, best first.
    ending: (B, K'), the totals, including <end>, of hypotheses that end; -inf for unused entries.
    ended: (B, K'), the indices of the hypotheses that end.
    end_logs: (B, K), the log-probability of <end> after each hypothesis.
    output: the decoder's output for the K hypotheses before the step.
    state: the decoder's state for the K' hypotheses after the step.
    """

    tokens: Tensor
    parents: Tensor
    logs: Tensor
    totals: Tensor
    ending: Tensor
    ended: Tensor
    end_logs: Tensor
    output: StepOutput
    state: State

    def end_all(self, totals: Tensor) -> Step:
        """End all K hypotheses at the maximum length, given their totals (B, K) before the step."""
        hypotheses = torch.arange(totals.shape[1], device=totals.device)
        return self._replace(
            totals=torch.full_like(self.totals, -torch.inf),
            ending=totals + self.end_logs,
            ended=hypotheses.expand_as(totals),
        )


class BeamStep(nn.Module):
    """Extends the hypotheses of B images by one word."""

    def __init__(self, decoder: StepDecoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(
        self,
        tokens: Tensor,
        totals: Tensor,
        forbidden: Tensor,
        state: State,
        *,
        beam: int,
    ) -> Step:
        """Score all successors of K hypotheses per image and keep the K' best.

        Args:
            tokens: (B, K), the last words.
            totals: (B, K), the summed log-probabilities of the words so far.
            forbidden: (B, K, F), the words that each hypothesis must not use next.
            state: the decoder's state.
            beam: K'.
        """
        output = self.decoder.step(tokens, state)
        logs = log_probabilities(output.logits)
        words = logs.shape[-1]
        sums = (totals.unsqueeze(-1) + restrict(logs, forbidden)).flatten(1)
        best, flat = sums.topk(torch.sym_min(2 * beam, sums.shape[1]), dim=1)
        parents, chosen = flat // words, flat % words
        ends = chosen == END
        # A hypothesis ends only if <end> is among the K' best successors.
        ending, ended = torch.where(ends, best, -torch.inf)[:, :beam], parents[:, :beam]
        unfinished = best.masked_fill(ends, -torch.inf)
        kept, alive = unfinished.topk(torch.sym_min(beam, best.shape[1]), dim=1)
        following, next_tokens = parents.gather(1, alive), chosen.gather(1, alive)
        return Step(
            tokens=next_tokens,
            parents=following,
            logs=logs.flatten(1).gather(1, following * words + next_tokens),
            totals=kept,
            ending=ending,
            ended=ended,
            end_logs=logs[..., END],
            output=output,
            state=output.state.select(following),
        )
