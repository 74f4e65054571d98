"""What every objective is: a loss of how the model reads captions, teacher-forced.

A new one is a file with a subclass of Objective, or of DrawingObjective where it draws captions
itself, and a line in a stage of the recipe:

    objectives: {my_package.my_file:MyTerm: 0.5}
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from captioner.decoders.decoder import Decoder, DecoderOutput
from captioner.vocabulary import PAD
from captioner_training.data.corpus import Corpus
from captioner_training.data.dataset import Batch
from captioner_training.recipe import Recipe

__all__ = ["Captions", "Counts", "DrawingObjective", "Objective", "Reading", "count"]

_AT_ONCE = 512  # targets; numbers of all words for each, 20 MB with COCO's vocabulary


class Counts(NamedTuple):
    """What a loss is averaged over: tokens and captions, of every process and part of a batch."""

    tokens: Tensor
    captions: Tensor


class Captions(NamedTuple):
    """What the model is to say of B images.

    tokens: (B, K, T + 1), the start first; targets: (B, K, T), the same shifted by one, on the CPU,
    so that no GPU need be waited for; <pad> does not count. Of captions that were drawn, weights:
    (B, K), their advantages; reward: the sum of their rewards.
    """

    tokens: Tensor
    targets: Tensor
    weights: Tensor | None = None
    reward: Tensor | None = None


def count(targets: Tensor) -> Counts:
    """Count the targets (B, K, T) that are not padding, and the captions that have any."""
    counted = targets != PAD
    return Counts(counted.sum(), counted.any(dim=-1).sum())


class Reading:
    """A teacher-forced pass over captions, which are the whole batch or a part of it.

    Args:
        decoder: that has read them.
        output: of the pass: B images with K captions of T tokens.
        captions: that were read.
        counts: of the whole batch; by default of these captions.
        positions: (B,), of the images in the training data.

    Attributes:
        index: (N,), where the N tokens that count are in the flattened (B, K, T).
        targets: (N,), those tokens.
        mask: (B, K, T), whether a token counts.
        tokens, count: how many tokens and captions the whole batch has.
    """

    def __init__(
        self, decoder: Decoder, output: DecoderOutput, captions: Captions, *,
        counts: Counts | None = None, positions: Tensor | None = None,
    ) -> None:  # fmt: skip
        device, counted = output.deep.device, captions.targets != PAD
        self.decoder, self.output, self.captions, self.positions = (
            decoder, output, captions, positions,
        )  # fmt: skip
        self.tokens, self.count = (
            number.to(device, non_blocking=True) for number in counts or count(captions.targets)
        )
        # Indices, since a boolean mask on a GPU would make the CPU wait for it.
        index = counted.flatten().nonzero().squeeze(1)
        self.targets = captions.targets.flatten()[index].to(device, non_blocking=True)
        self.index = index.to(device, non_blocking=True)
        self.mask = counted.to(device, non_blocking=True)

    @cached_property
    def logits(self) -> Tensor:
        """The scores of all words (N, words), only where there is a target."""
        return self.decoder.logits(self.output.deep.flatten(0, 2)[self.index])

    @cached_property
    def log_probabilities(self) -> tuple[Tensor, Tensor]:
        """The log-probabilities (N,) of the targets, and the mean (N,) of all words', float32.

        Taken of some targets at a time: the way back needs three times the numbers that it is of.
        """
        deep = self.output.deep.flatten(0, 2)[self.index]
        said, means = [], []
        parts = (torch.split(each, _AT_ONCE) for each in (deep, self.targets))
        for some, targets in zip(*parts, strict=True):
            logs = self.decoder.logits(some).log_softmax(dim=-1, dtype=torch.float32)
            said.append(logs.gather(1, targets.unsqueeze(1)).squeeze(1))
            means.append(logs.mean(dim=-1))
        return torch.cat(said), torch.cat(means)

    def nats(self) -> Tensor:
        """Give the plain cross-entropy, in nats a token; the parts of a batch add up."""
        return -self.log_probabilities[0].detach().sum() / self.tokens


class Objective(ABC):
    """A term of what a stage minimises. Its setting in the recipe is usually its weight."""

    of_data: ClassVar[bool] = False
    """Whether it reads the captions of the data also where the stage draws captions of its own."""
    note: str = ""
    """What a run says of it when it begins."""

    def __init__(self, setting: Any) -> None:
        self.weight = float(setting)

    @classmethod
    def build(cls, setting: Any, recipe: Recipe, corpus: Corpus) -> Self:  # noqa: ARG003
        """Make it for a run; by default of its setting alone.

        Raises CaptionerError: the recipe or the data are not as it needs them.
        """
        return cls(setting)

    @abstractmethod
    def loss(self, reading: Reading) -> Tensor:
        """Give this part's share of the term, weighed: a scalar.

        It is a sum divided by `reading.tokens` or `reading.count`, so that the shares of all parts
        and processes add up to the mean over the batch. A decoder without attention has
        `reading.output.attention` None, of which nothing can be asked.
        """


class DrawingObjective(Objective):
    """An objective that draws the captions which its stage learns from.

    The stage drops out no units: the captions are read by the policy that drew them.
    """

    @abstractmethod
    def draw(self, decoder: Decoder, features: Tensor, batch: Batch) -> Captions:
        """Draw captions for the grids (B, L, D) of a batch, without a gradient."""
