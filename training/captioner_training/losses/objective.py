"""What an objective is: a loss over teacher-forced captions.

A new one is a file with a subclass of Objective, or of SamplingObjective where it samples captions
itself, and a line in a stage of the recipe:

    objectives: {my_package.my_file:MyTerm: 0.5}
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from captioner.decoders.decoder import Decoder, DecoderOutput
from captioner.vocabulary import PAD
from captioner_training.data.corpus import Corpus
from captioner_training.data.dataset import Batch
from captioner_training.recipe import Recipe

__all__ = ["Captions", "Counts", "Objective", "SamplingObjective", "TeacherForcedOutput"]

_CHUNK = 512  # targets whose logits are in memory at once on a CPU


class Counts(NamedTuple):
    """What losses are averaged over: all tokens and captions of a batch."""

    tokens: Tensor
    captions: Tensor

    @classmethod
    def of(cls, tokens: Tensor) -> Counts:
        """Count the targets in tokens (B, K, T + 1), and the captions that have any."""
        counted = tokens[..., 1:] != PAD
        return cls(counted.sum(), counted.any(dim=-1).sum())


class Captions(NamedTuple):
    """The captions of B images that a loss is taken of, on the device.

    tokens: (B, K, T + 1), start first, padded with <pad>; counts: of the whole batch, in all its
    parts and processes; advantages: (B, K), of sampled captions.
    """

    tokens: Tensor
    counts: Counts
    advantages: Tensor | None = None


class TeacherForcedOutput:
    """A teacher-forced pass over captions: what every objective reads.

    Args:
        decoder: of the model.
        output: of the pass: B images with K captions of T tokens.
        captions: the whole batch or a part of it.
        dense: whether padding is computed too, which keeps shapes fixed and never makes the CPU
            wait for a GPU. Otherwise the N tokens that count are picked, and logits are computed
            in chunks.

    Attributes:
        mask: (B, K, T), whether a token counts.
        targets: (N,), the next tokens; all B * K * T where dense.
        tokens, count: the number of tokens and captions in the whole batch.
    """

    def __init__(
        self, decoder: Decoder, output: DecoderOutput, captions: Captions, *, dense: bool = False
    ) -> None:
        targets = captions.tokens[..., 1:]
        self.decoder, self.output, self.captions = decoder, output, captions
        self.mask = targets != PAD
        self.tokens, self.count = captions.counts
        self._index = None if dense else self.mask.flatten().nonzero().squeeze(1)
        self.targets = self.pick(targets)
        self._log_probabilities: tuple[Tensor, Tensor] | None = None

    def pick(self, values: Tensor) -> Tensor:
        """Return the values (B, K, T, ...) of the tokens that count: (N, ...)."""
        flat = values.flatten(0, 2)
        return flat if self._index is None else flat[self._index]

    def sum(self, values: Tensor) -> Tensor:
        """Sum values (N, ...) over the tokens that count."""
        if self._index is None:
            counted = self.mask.flatten().reshape(-1, *[1] * (values.ndim - 1))
            values = values.where(counted, 0)
        return values.sum()

    @property
    def logits(self) -> Tensor:
        """The scores of all words, (N, words)."""
        return self.decoder.logits(self.pick(self.output.deep))

    @property
    def log_probabilities(self) -> tuple[Tensor, Tensor]:
        """The log-probabilities (N,) of the targets, and the mean (N,) over all words; float32."""
        # Not functools.cached_property: its lock breaks a compiled graph in two.
        if self._log_probabilities is None:
            self._log_probabilities = self._score_targets()
        return self._log_probabilities

    def _score_targets(self) -> tuple[Tensor, Tensor]:
        deep = self.pick(self.output.deep)
        size = len(deep) if self._index is None else _CHUNK
        of_targets, means = [], []
        for rows, targets in zip(
            *(torch.split(part, size) for part in (deep, self.targets)), strict=True
        ):
            logs = self.decoder.logits(rows).log_softmax(dim=-1, dtype=torch.float32)
            of_targets.append(logs.gather(1, targets.unsqueeze(1)).squeeze(1))
            means.append(logs.mean(dim=-1))
        return torch.cat(of_targets), torch.cat(means)

    def cross_entropy(self) -> Tensor:
        """Return the plain cross-entropy in nats per token; the parts of a batch add up."""
        return -self.sum(self.log_probabilities[0].detach()) / self.tokens


class Objective(ABC):
    """A term of the loss of a stage. Its setting in the recipe is usually its weight."""

    of_data: ClassVar[bool] = False
    """Whether it reads the data's captions even in a stage that samples captions."""
    note: str = ""
    """Printed when a run begins."""

    def __init__(self, setting: Any) -> None:
        self.weight = float(setting)

    @classmethod
    def build(cls, setting: Any, recipe: Recipe, corpus: Corpus) -> Self:  # noqa: ARG003
        """Make it for a run; by default from its setting alone.

        Raises CaptionerError: the recipe or the data do not fit it.
        """
        return cls(setting)

    @abstractmethod
    def loss(self, forced: TeacherForcedOutput) -> Tensor:
        """Return this part's share of the weighted term, a scalar.

        It is a sum divided by `forced.tokens` or `forced.count`, so that the shares of all parts
        and processes add up to the mean over the batch. `forced.output.attention` is None for a
        decoder without attention.
        """


class SamplingObjective(Objective):
    """An objective that samples the captions that its stage learns from.

    The stage uses no dropout: the policy that is improved is the one that was sampled from.
    """

    @abstractmethod
    def sample(self, decoder: Decoder, features: Tensor, batch: Batch) -> tuple[Tensor, ...]:
        """Sample captions for the grids (B, L, D) of a batch, without a gradient.

        Returns:
            tokens (B, K, T + 1) and advantages (B, K) on the device, and the sum of the rewards.
        """
