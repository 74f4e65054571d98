"""The trace of a search, from which finished sentences are read.

The attention and the gate of a step are stored at the index of the hypothesis that computed them.
To read a sentence, its parents are followed back through the steps, so it never gets the attention
of another hypothesis. This runs on the device, and all sentences are copied to the CPU at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from captioner.decoders.state import StepOutput
from captioner.generation.hypothesis import Hypothesis
from captioner.generation.packed import OPTIONAL, PackedHypotheses
from captioner.vocabulary import END

__all__ = ["Ends", "Trace"]


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
        # (B, K), indices into the hypotheses of the step before; empty: always the same index.
        self._parents: list[Tensor] = []
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
        self._tokens.append(tokens)
        self._logs.append(logs)
        for name in OPTIONAL:
            if (part := getattr(output, name)) is not None:
                self._outputs.setdefault(name, []).append(part)
        last = tokens.unsqueeze(-1)
        if parents is not None:
            self._parents.append(parents)
            index = parents.unsqueeze(-1).expand(-1, -1, self.words.shape[-1])
            self.words = self.words.gather(1, index)
        self.words = torch.cat([self.words, last], dim=-1)

    def take(self, rows: Tensor) -> Trace:
        """Return the trace of these images only."""
        taken = Trace(self.words[rows])
        taken._parents = [step[rows] for step in self._parents]
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
        return self.pack(numbers[:images], ends).read()

    def pack(self, images: Tensor, ends: Ends) -> PackedHypotheses:
        """Gather the hypotheses of each image on the device, without synchronization.

        Args:
            images: (B,), the index of each image in the trace.
            ends: (B, C), see Ends.
        """
        words, parents = self._follow(images, ends)
        end = ends.log_probability.unsqueeze(-1)
        logs = torch.cat([_pick(self._logs, images, words), end], dim=-1)
        parts = {
            "score": ends.score,
            "length": ends.step,
            "tokens": _pick(self._tokens, images, words),
            "logs": logs.scatter(-1, ends.step.unsqueeze(-1), end),
            **{name: _pick(steps, images, parents) for name, steps in self._outputs.items()},
        }
        flat = [part.float().reshape(*ends.score.shape, -1) for part in parts.values()]
        shapes = {name: part.shape[2:] for name, part in parts.items()}
        return PackedHypotheses(torch.cat(flat, dim=-1), shapes)

    def _follow(self, images: Tensor, ends: Ends) -> tuple[Tensor, Tensor]:
        """Follow the parents back from the ends.

        Returns the hypotheses (B, C, T) on the paths and their parents, which computed the
        attention. Values after the end of a sentence are arbitrary.
        """
        if not self._parents:
            path = ends.hypothesis.unsqueeze(-1).expand(-1, -1, len(self._tokens))
            return path, path
        all_parents = _stack(self._parents)[:, images].unbind()
        numbers = torch.arange(len(all_parents), device=images.device)
        is_before_end = (ends.step > numbers.reshape(-1, 1, 1)).unbind()
        at, on_path, before = ends.hypothesis, [], []
        for parents, is_word in zip(all_parents[::-1], is_before_end[::-1], strict=True):
            on_path.append(at)
            at = torch.where(is_word, parents.gather(1, at), at)
            before.append(at)
        return torch.stack(on_path[::-1], dim=-1), torch.stack(before[::-1], dim=-1)


def _stack(steps: Sequence[Tensor]) -> Tensor:
    """Stack T tensors (B, K, ...) to (T, B, K, ...); K may be smaller in the first steps."""
    most = steps[-1].shape[1]
    return torch.stack(
        [
            step
            if step.shape[1] == most
            else pad(step, (0, 0) * (step.dim() - 2) + (0, most - step.shape[1]))
            for step in steps
        ]
    )


def _pick(steps: Sequence[Tensor], images: Tensor, chosen: Tensor) -> Tensor:
    """Gather hypotheses (B, C, T) of the images from T steps (., K, ...): (B, C, T, ...)."""
    numbers = torch.arange(len(steps), device=chosen.device)
    return _stack(steps)[numbers, images.reshape(-1, 1, 1), chosen]
