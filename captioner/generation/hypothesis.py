"""A finished sentence, and the trace of the search that it is read from.

A step's attention and gate are stored where the step made them; each hypothesis finds its own by
walking back through its parents, so attention can never belong to another beam.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from captioner.decoders.lstm import StepOutput

__all__ = ["Hypothesis", "Trace"]


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


class Trace:
    """What every step of B images produced, and from which hypothesis of the step before."""

    def __init__(self) -> None:
        self.words: Tensor | None = None  # (B, K, t), of the hypotheses of the last step
        self.parents: list[Tensor] = []  # a step's hypotheses (B, K) point into the step before
        self.tokens: list[Tensor] = []  # (B, K), chosen at that step
        self.log_probabilities: list[Tensor] = []  # (B, K), of those tokens
        self.attention: list[Tensor] = []  # (B, K of the step before, L)
        self.gate: list[Tensor] = []  # (B, K of the step before)

    def add(self, output: StepOutput, parents: Tensor, tokens: Tensor, logs: Tensor) -> None:
        """Take down a step: what the decoder said, and the tokens (B, K) chosen from that."""
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

    def take(self, rows: Tensor) -> Trace:
        """Keep these images alone."""
        return self._each(lambda step: step[rows])

    def cpu(self) -> Trace:
        """Bring everything to the CPU, where sentences are read."""
        return self._each(Tensor.cpu)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Trace:
        changed = Trace()
        changed.words = None if self.words is None else change(self.words)
        for name in ("parents", "tokens", "log_probabilities", "attention", "gate"):
            setattr(changed, name, [change(step) for step in getattr(self, name)])
        return changed

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
