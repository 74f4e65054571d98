"""The state of a decoder between steps, and the output of a step.

Tensors have the shape (B, K, ...): B images with K hypotheses each. K is the number of captions of
an image in training, the beam size in beam search, and the number of samples in sampling. Tensors
of an image have the shape (B, L, ...) and are shared by its hypotheses without a copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from captioner.errors import GenerationError


class State(NamedTuple):
    """The state of B images with K hypotheses each.

    image: tensors (B, L, ...) of the images, with a row for each of the L grid cells, so
        cells can be removed or replaced in the same way for every decoder.
    hypothesis: tensors (B, K, ...) of the hypotheses.
    words: tensors (B, S, ...) of all words of all hypotheses of an image. They are not moved
        when hypotheses are replaced: `hypothesis` holds the indices of each hypothesis's words.

    The names of the tensors are private to the decoder.
    """

    image: dict[str, Tensor]
    hypothesis: dict[str, Tensor]
    words: Mapping[str, Tensor] = MappingProxyType({})

    def expand(self, hypotheses: int) -> State:
        """Repeat each image's only hypothesis K times, without a copy."""
        return self._replace(
            hypothesis={
                name: part.expand(-1, hypotheses, *part.shape[2:])
                for name, part in self.hypothesis.items()
            }
        )

    def select(self, parents: Tensor) -> State:
        """Replace hypothesis k of image b by hypothesis parents[b, k]; parents are (B, K)."""
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
        """Return the state of these images only."""
        return State(
            {name: part[rows] for name, part in self.image.items()},
            {name: part[rows] for name, part in self.hypothesis.items()},
            {name: part[rows] for name, part in self.words.items()},
        )


class StepOutput(NamedTuple):
    """One step of B images with K hypotheses each.

    logits: (B, K, words).
    state: the state after the step.
    attention: (B, K, L), sums to 1; None if the decoder has no attention.
    gate: (B, K), 0 to 1; None if the decoder has no gate.
    heads: (B, K, H, L), the attention of each head; None if there is one head.
    """

    logits: Tensor
    state: State
    attention: Tensor | None = None
    gate: Tensor | None = None
    heads: Tensor | None = None


def log_probabilities(logits: Tensor) -> Tensor:
    """Turn logits (..., words) into log-probabilities of the same shape, float32.

    They are finite. -inf is reserved for words that the constraints forbid.
    """
    return logits.float().log_softmax(dim=-1).clamp(min=-1e4)


def check_numbers(broken: bool) -> None:
    """Raise GenerationError if any score is NaN.

    One NaN or infinite logit makes all log-probabilities of its hypothesis NaN, so checking one
    word of each hypothesis is enough.
    """
    if broken:
        raise GenerationError(
            "the model scored words with NaN or infinity: use float32, or another checkpoint if "
            "its weights are damaged"
        )


def sync_interval(device: torch.device) -> int:
    """Return after how many steps to check whether all hypotheses have ended.

    On a GPU every check waits for the queued work, which costs more than a few superfluous steps.
    """
    return 1 if device.type == "cpu" else 4


class StepDecoder(Protocol):
    """The part of a decoder that generation needs."""

    def start(self, features: Tensor) -> State:
        """Return the state of one empty hypothesis (K = 1) for each of the grids (B, L, D)."""

    def step(self, tokens: Tensor, state: State) -> StepOutput:
        """Read the tokens (B, K) and score their successors."""
