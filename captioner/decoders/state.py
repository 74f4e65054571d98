"""What generation needs of a decoder: its state, one step, and where both come from.

Every tensor has the shape (B, K, ...): B images with K hypotheses each. K is the captions of an
image in training, the beam in beam search, the samples in sampling. What belongs to an image has
the shape (B, L, ...) instead, and is shared by the image's hypotheses without a copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from captioner.errors import GenerationError

__all__ = [
    "State",
    "StepDecoder",
    "StepOutput",
    "asked_every",
    "check_numbers",
    "log_probabilities",
]


class State(NamedTuple):
    """What one step hands to the next.

    image: what is known of an image, each (B, L, ...) with a row for each of the grid's L cells,
        so that cells can be left out or replaced whatever the decoder is.
    hypothesis: what is known of a hypothesis, each (B, K, ...).
    words: what is known of the words that any hypothesis of an image has said, each (B, S, ...).
        Hypotheses share it and it does not move when they follow their parents: `hypothesis` has
        which of the S words are whose.

    The names inside belong to the decoder; nobody else looks at them.
    """

    image: dict[str, Tensor]
    hypothesis: dict[str, Tensor]
    words: Mapping[str, Tensor] = MappingProxyType({})

    def expand(self, hypotheses: int) -> State:
        """Give every image K hypotheses like its only one, without a copy."""
        return self._replace(
            hypothesis={
                name: part.expand(-1, hypotheses, *part.shape[2:])
                for name, part in self.hypothesis.items()
            }
        )

    def select(self, parents: Tensor) -> State:
        """Let hypothesis k of image b follow hypothesis parents[b, k] (B, K)."""
        if not self.hypothesis:
            return self
        count = next(iter(self.hypothesis.values())).shape[1]
        first = torch.arange(parents.shape[0], device=parents.device).unsqueeze(1) * count
        rows = (first + parents).flatten()
        return self._replace(
            hypothesis={
                name: part.flatten(0, 1).index_select(0, rows).view(*parents.shape, *part.shape[2:])
                for name, part in self.hypothesis.items()
            }
        )

    def take(self, rows: Tensor) -> State:
        """Keep these images alone."""
        return State(
            {name: part[rows] for name, part in self.image.items()},
            {name: part[rows] for name, part in self.hypothesis.items()},
            {name: part[rows] for name, part in self.words.items()},
        )


class StepOutput(NamedTuple):
    """One step of B images with K hypotheses.

    logits: (B, K, words).
    attention: (B, K, L), sums to 1; None where the decoder does not attend.
    gate: (B, K), in 0..1; None where the decoder has none.
    heads: (B, K, H, L), the attention of each head; None where there is but one.
    """

    logits: Tensor
    state: State
    attention: Tensor | None = None
    gate: Tensor | None = None
    heads: Tensor | None = None


def log_probabilities(logits: Tensor) -> Tensor:
    """Turn logits (..., words) into log-probabilities of the same shape, float32.

    An impossible word stays finite: -inf is kept for what the constraints forbid, so that there
    always is a hypothesis to return.
    """
    return logits.float().log_softmax(dim=-1).clamp(min=-1e4)


def check_numbers(broken: bool) -> None:
    """Refuse scores of words that are not numbers.

    One NaN or infinite logit makes all log-probabilities of its hypothesis NaN: any word tells.

    Raises GenerationError: they are not.
    """
    if broken:
        raise GenerationError(
            "the model scored words with NaN or infinity: its weights are damaged, or the "
            "device overflowed; try float32, or another checkpoint"
        )


def asked_every(device: torch.device) -> int:
    """Say after how many steps a device is asked whether all is said.

    A CPU knows at once. A GPU computes what was queued while the next steps are; whoever asks waits
    for all of it, which costs more than the steps that nobody needed.
    """
    return 1 if device.type == "cpu" else 4


class StepDecoder(Protocol):
    """What generation needs of a decoder; a hand-made one is as good as a trained one."""

    def start(self, features: Tensor) -> State:
        """Begin one hypothesis (K = 1) for each of the grids (B, L, D)."""

    def step(self, tokens: Tensor, state: State) -> StepOutput:
        """Read the tokens (B, K) and score the next ones."""
