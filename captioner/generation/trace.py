"""The trace of a search, from which finished sentences are read.

The attention and the gate of a step are stored at the index of the hypothesis that computed them.
To read a sentence, its parents are followed back through the steps, so it never gets the attention
of another hypothesis. This runs on the device, and all sentences are copied to the CPU at once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from captioner.decoders.state import StepOutput
from captioner.generation.hypothesis import Hypothesis
from captioner.vocabulary import END

__all__ = ["Ends", "Trace"]

_OPTIONAL = ("attention", "gate", "heads")  # optional outputs of a step


class Ends(NamedTuple):
    """The ends of C hypotheses of each of B images.

    score: (B, C), the ranking score; -inf for entries without a hypothesis.
    step: (B, C), the number of words before <end>.
    hypothesis: (B, C), the index of the hypothesis at that step.
    log_probability: (B, C), the log-probability of <end>.
    """

    score: Tensor
    step: Tensor
    hypothesis: Tensor
    log_probability: Tensor

    @classmethod
    def empty(cls, images: int, count: int, device: torch.device) -> Ends:
        """Return ends without hypotheses: all scores are -inf."""
        zeros = torch.zeros(images, count, dtype=torch.long, device=device)
        return cls(zeros.float() - torch.inf, zeros, zeros, zeros.float())

    def best_of(self, other: Ends) -> Ends:
        """Return the C best ends of both."""
        both = [torch.cat(pair, dim=1) for pair in zip(self, other, strict=True)]
        best = both[0].topk(self.score.shape[1], dim=1).indices
        return Ends(*(part.gather(1, best) for part in both))

    def take(self, rows: Tensor) -> Ends:
        """Return the ends of these images only."""
        return Ends(*(part[rows] for part in self))


class Trace:
    """The tokens, log-probabilities, attention and parents of every step of B images.

    Args:
        words: (B, K, 0) before the first step; then (B, K, t), the words of the hypotheses.
    """

    def __init__(self, words: Tensor) -> None:
        self.words = words
        # (B, K), indices into the hypotheses of the step before; None: the same index.
        self._parents: list[Tensor | None] = []
        self._tokens: list[Tensor] = []  # (B, K)
        self._logs: list[Tensor] = []  # (B, K)
        # (B, K, ...), computed by the hypotheses of the step before.
        self._outputs: dict[str, list[Tensor]] = {}

    def add(self, output: StepOutput, parents: Tensor | None, tokens: Tensor, logs: Tensor) -> None:
        """Add a step.

        Args:
            output: the output of the decoder.
            parents: (B, K), the index of the hypothesis that each one extends; None: its own index.
            tokens: (B, K), the new words.
            logs: (B, K), their log-probabilities.
        """
        self._parents.append(parents)
        self._tokens.append(tokens)
        self._logs.append(logs)
        for name in _OPTIONAL:
            if (part := getattr(output, name)) is not None:
                self._outputs.setdefault(name, []).append(part)
        last = tokens.unsqueeze(-1)
        if parents is not None:
            index = parents.unsqueeze(-1).expand(-1, -1, self.words.shape[-1])
            self.words = self.words.gather(1, index)
        self.words = torch.cat([self.words, last], dim=-1)

    def take(self, rows: Tensor) -> Trace:
        """Return the trace of these images only."""
        taken = Trace(self.words[rows])
        taken._parents = [None if step is None else step[rows] for step in self._parents]
        taken._tokens = [step[rows] for step in self._tokens]
        taken._logs = [step[rows] for step in self._logs]
        taken._outputs = {
            name: [step[rows] for step in steps] for name, steps in self._outputs.items()
        }
        return taken

    def read_all(self, *, length_penalty: float) -> list[list[Hypothesis]]:
        """Read every hypothesis of a trace without parents, up to its first <end>.

        Its score is the summed log-probability / length^length_penalty, where both include <end>.
        """
        steps = (self.words == END).int().argmax(dim=-1)
        all_logs, last = torch.stack(self._logs, dim=-1), steps.unsqueeze(-1)
        logs = all_logs.gather(-1, last).squeeze(-1)
        totals = all_logs.cumsum(dim=-1).gather(-1, last).squeeze(-1)
        images, count = steps.shape
        numbers = torch.arange(max(images, count), device=steps.device)
        scores = totals / (steps + 1) ** length_penalty
        ends = Ends(scores, steps, numbers[:count].expand_as(steps), logs)
        return self.read(numbers[:images], ends)

    def read(self, images: Tensor, ends: Ends) -> list[list[Hypothesis]]:
        """Return the hypotheses of each image in the order of `ends`; skip scores of -inf.

        Args:
            images: (B,), the index of each image in the trace.
            ends: (B, C), see Ends.
        """
        words, parents = self._follow(images, ends)
        parts = {"score": ends.score, "step": ends.step, "end": ends.log_probability}
        parts["tokens"] = _pick(self._tokens, images, words)
        parts["logs"] = _pick(self._logs, images, words)
        parts |= {name: _pick(steps, images, parents) for name, steps in self._outputs.items()}
        parts = _to_cpu(parts)
        return [
            [
                _hypothesis({name: part[image, k] for name, part in parts.items()})
                for k in range(ends.score.shape[1])
                if parts["score"][image, k] > -torch.inf
            ]
            for image in range(len(images))
        ]

    def _follow(self, images: Tensor, ends: Ends) -> tuple[list[Tensor], list[Tensor]]:
        """Follow the parents back from the ends.

        Returns, for each step, the hypotheses (B, C) on the paths and their parents, which computed
        the attention. Values after the end of a sentence are arbitrary.
        """
        at, on_path, before = ends.hypothesis, [], []
        for step in range(len(self._parents) - 1, -1, -1):
            on_path.append(at)
            if (parents := self._parents[step]) is not None:
                at = torch.where(ends.step > step, parents[images].gather(1, at), at)
            before.append(at)
        return on_path[::-1], before[::-1]


def _pick(steps: list[Tensor], images: Tensor, chosen: list[Tensor]) -> Tensor:
    """Gather hypotheses (B, C) of the images from each step (., K, ...): (B, C, T, ...)."""
    rows, before = [], 0
    for step, index in zip(steps, chosen, strict=True):
        rows.append(before + images.unsqueeze(1) * step.shape[1] + index)
        before += step.shape[0] * step.shape[1]
    return torch.cat([step.flatten(0, 1) for step in steps])[torch.stack(rows, dim=-1)]


def _to_cpu(parts: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors (B, C, ...) to the CPU at once, as float32, which is exact for tokens."""
    flat = [part.float().reshape(*part.shape[:2], -1) for part in parts.values()]
    together = torch.split(torch.cat(flat, dim=-1).cpu(), [part.shape[-1] for part in flat], dim=-1)
    return {
        name: packed.reshape(part.shape)
        for (name, part), packed in zip(parts.items(), together, strict=True)
    }


def _hypothesis(parts: dict[str, Tensor]) -> Hypothesis:
    """Make one hypothesis, cut at its end."""
    length = int(parts["step"])
    logs = torch.cat([parts["logs"][:length], parts["end"].unsqueeze(0)])
    return Hypothesis(
        parts["tokens"][:length].long().tolist(),
        float(parts["score"]),
        logs,
        # Views would keep the whole batch in memory.
        **{name: parts[name][:length].clone() for name in _OPTIONAL if name in parts},
    )
