"""The trace of a search, from which the finished sentences are read.

A step's attention and gate are stored where the step made them; each hypothesis finds its own by
walking back through its parents, so attention can never belong to another beam. The walk stays on
the device, and all sentences come to the CPU in one copy.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from captioner.decoders.state import StepOutput
from captioner.generation.hypothesis import Hypothesis
from captioner.vocabulary import END

__all__ = ["Ends", "Trace"]

_LOOKS = ("attention", "gate", "heads")  # what a step may tell beside the logits


class Ends(NamedTuple):
    """Where C hypotheses of each of B images said <end>.

    score: (B, C), what they are ordered by; -inf where there is no hypothesis.
    step: (B, C), how many words came before; hypothesis: (B, C), which of that step's it was.
    log_probability: (B, C), of that <end>.
    """

    score: Tensor
    step: Tensor
    hypothesis: Tensor
    log_probability: Tensor

    @classmethod
    def nowhere(cls, images: int, count: int, device: torch.device) -> Ends:
        """Hold nothing yet."""
        nothing = torch.zeros(images, count, dtype=torch.long, device=device)
        return cls(nothing.float() - torch.inf, nothing, nothing, nothing.float())

    def best_of(self, other: Ends) -> Ends:
        """Keep the C best of both."""
        both = [torch.cat(pair, dim=1) for pair in zip(self, other, strict=True)]
        best = both[0].topk(self.score.shape[1], dim=1).indices
        return Ends(*(part.gather(1, best) for part in both))

    def take(self, rows: Tensor) -> Ends:
        """Keep these images alone."""
        return Ends(*(part[rows] for part in self))


class Trace:
    """What every step of B images produced, and from which hypothesis of the step before.

    Args:
        words: (B, K, t), of the hypotheses of the last step; (B, K, 0) before the first.
    """

    def __init__(self, words: Tensor) -> None:
        self.words = words
        # A step's hypotheses (B, K) point into the step before; None: each follows itself.
        self._parents: list[Tensor | None] = []
        self._tokens: list[Tensor] = []  # (B, K), chosen at that step
        self._logs: list[Tensor] = []  # (B, K), log-probabilities of those tokens
        # Of the hypotheses of the step before, (B, K, ...): what the decoder gives of _LOOKS.
        self._looks: dict[str, list[Tensor]] = {}

    def add(self, output: StepOutput, parents: Tensor | None, tokens: Tensor, logs: Tensor) -> None:
        """Take down a step: tokens (B, K) chosen from the output, and their log-probabilities.

        Parents (B, K) say which hypothesis each follows; None: itself.
        """
        self._parents.append(parents)
        self._tokens.append(tokens)
        self._logs.append(logs)
        for name in _LOOKS:
            if (look := getattr(output, name)) is not None:
                self._looks.setdefault(name, []).append(look)
        last = tokens.unsqueeze(-1)
        if parents is not None:
            index = parents.unsqueeze(-1).expand(-1, -1, self.words.shape[-1])
            self.words = self.words.gather(1, index)
        self.words = torch.cat([self.words, last], dim=-1)

    def take(self, rows: Tensor) -> Trace:
        """Keep these images alone."""
        taken = Trace(self.words[rows])
        taken._parents = [None if step is None else step[rows] for step in self._parents]
        taken._tokens = [step[rows] for step in self._tokens]
        taken._logs = [step[rows] for step in self._logs]
        taken._looks = {name: [step[rows] for step in steps] for name, steps in self._looks.items()}
        return taken

    def read_all(self, *, length_penalty: float) -> list[list[Hypothesis]]:
        """Read every hypothesis of a trace without parents up to its first <end>.

        The length penalty is a in their score, sum / length^a.
        """
        steps = (self.words == END).int().argmax(dim=-1)
        every, last = torch.stack(self._logs, dim=-1), steps.unsqueeze(-1)
        logs = every.gather(-1, last).squeeze(-1)
        totals = every.cumsum(dim=-1).gather(-1, last).squeeze(-1)
        images, count = steps.shape
        numbers = torch.arange(max(images, count), device=steps.device)
        scores = totals / (steps + 1) ** length_penalty
        ends = Ends(scores, steps, numbers[:count].expand_as(steps), logs)
        return self.read(numbers[:images], ends)

    def read(self, images: Tensor, ends: Ends) -> list[list[Hypothesis]]:
        """Read the sentences that end there, of these images (B,) of the trace.

        Ends with a score of -inf are left out.
        """
        said, seen = self._follow(images, ends)
        parts = {"score": ends.score, "step": ends.step, "end": ends.log_probability}
        parts["tokens"] = _pick(self._tokens, images, said)
        parts["logs"] = _pick(self._logs, images, said)
        parts |= {name: _pick(steps, images, seen) for name, steps in self._looks.items()}
        here = _to_cpu(parts)
        return [
            [
                _hypothesis({name: part[image, k] for name, part in here.items()})
                for k in range(ends.score.shape[1])
                if here["score"][image, k] > -torch.inf
            ]
            for image in range(len(images))
        ]

    def _follow(self, images: Tensor, ends: Ends) -> tuple[list[Tensor], list[Tensor]]:
        """Walk back from the ends.

        Returns for each step the hypothesis (B, C) that an end came through, and that one's parent,
        which is the one that looked. Steps that came after an end give any hypothesis.
        """
        at, said, seen = ends.hypothesis, [], []
        for step in range(len(self._parents) - 1, -1, -1):
            said.append(at)
            if (parents := self._parents[step]) is not None:
                at = torch.where(ends.step > step, parents[images].gather(1, at), at)
            seen.append(at)
        return said[::-1], seen[::-1]


def _pick(steps: list[Tensor], images: Tensor, chosen: list[Tensor]) -> Tensor:
    """Take of each step (., K, ...) the chosen hypotheses (B, C) of the images: (B, C, T, ...)."""
    rows, before = [], 0
    for step, index in zip(steps, chosen, strict=True):
        rows.append(before + images.unsqueeze(1) * step.shape[1] + index)
        before += step.shape[0] * step.shape[1]
    return torch.cat([step.flatten(0, 1) for step in steps])[torch.stack(rows, dim=-1)]


def _to_cpu(parts: dict[str, Tensor]) -> dict[str, Tensor]:
    """Bring tensors (B, C, ...) to the CPU in one copy, as float32.

    The numbers of words are exact in it, up to 16 million.
    """
    flat = [part.float().reshape(*part.shape[:2], -1) for part in parts.values()]
    together = torch.split(torch.cat(flat, dim=-1).cpu(), [part.shape[-1] for part in flat], dim=-1)
    return {
        name: packed.reshape(part.shape)
        for (name, part), packed in zip(parts.items(), together, strict=True)
    }


def _hypothesis(parts: dict[str, Tensor]) -> Hypothesis:
    """Make one hypothesis of what was read, without what came after its end."""
    length = int(parts["step"])
    logs = torch.cat([parts["logs"][:length], parts["end"].unsqueeze(0)])
    return Hypothesis(
        parts["tokens"][:length].long().tolist(),
        float(parts["score"]),
        logs,
        # Copies, or each would keep the whole batch in memory.
        **{name: parts[name][:length].clone() for name in _LOOKS if name in parts},
    )
