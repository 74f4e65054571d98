"""One step of beam search: the module that the search runs, and that `captioner export` exports."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from captioner.decoders.state import State, StepDecoder, StepOutput, log_probabilities
from captioner.generation.constraints import restrict
from captioner.vocabulary import END

__all__ = ["BeamStep", "Step"]


class Step(NamedTuple):
    """What a step of B images with K hypotheses leads to: K' that go on, and those that end.

    tokens, parents: (B, K'), what each says, and which hypothesis it follows; logs: of these words;
    totals: (B, K'), log-probabilities of all words so far, the best first.
    ending: (B, K'), the totals of those that end here, -inf where one does not; ended: (B, K'),
    which hypotheses they are; end_logs: (B, K), of <end> after every hypothesis.
    output: what the decoder said of the K before; state: of the K' that go on.
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

    def over(self, totals: Tensor) -> Step:
        """End all K hypotheses, whose totals (B, K) came in: no word more may be said."""
        everyone = torch.arange(totals.shape[1], device=totals.device)
        return self._replace(
            totals=torch.full_like(self.totals, -torch.inf),
            ending=totals + self.end_logs,
            ended=everyone.expand_as(totals),
        )


class BeamStep(nn.Module):
    """Finds the best ways to go on with the hypotheses of B images."""

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
        """Read the last words, and keep the best that follow.

        Args:
            tokens: (B, K), the last words.
            totals: (B, K), log-probabilities of the words so far.
            forbidden: (B, K, F), words that each may not say.
            state: of the decoder.
            beam: K', how many are kept.
        """
        output = self.decoder.step(tokens, state)
        logs = log_probabilities(output.logits)
        words = logs.shape[-1]
        sums = (totals.unsqueeze(-1) + restrict(logs, forbidden)).flatten(1)
        best, flat = sums.topk(torch.sym_min(2 * beam, sums.shape[1]), dim=1)
        parents, chosen = flat // words, flat % words
        ends = chosen == END
        # A hypothesis ends only if that is among the K best ways to go on.
        ending, ended = torch.where(ends, best, -torch.inf)[:, :beam], parents[:, :beam]
        going_on = best.masked_fill(ends, -torch.inf)
        kept, alive = going_on.topk(torch.sym_min(beam, best.shape[1]), dim=1)
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
