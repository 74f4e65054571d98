"""Objective: the base class of losses over teacher-forced captions.

To add a loss, write a subclass of Objective, or of SamplingObjective if it samples captions. Then
name the class in a stage of the recipe:

    objectives: {my_package.my_file:MyTerm: 0.5}
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from captioner.model.decoder import Decoder, DecoderOutput
from captioner.vocabulary import PAD
from captioner_training.data.batches import Batch
from captioner_training.data.captions import Corpus
from captioner_training.recipe import Recipe

_CHUNK = 512  # targets whose logits are computed at once on a CPU


class Counts(NamedTuple):
    """The number of tokens and captions in a whole batch, which losses are averaged over."""

    tokens: Tensor
    captions: Tensor

    @classmethod
    def of(cls, tokens: Tensor) -> Counts:
        """Count the targets in tokens (B, K, T + 1), and the captions that have any."""
        counted = tokens[..., 1:] != PAD
        return cls(counted.sum(), counted.any(dim=-1).sum())


class Captions(NamedTuple):
    """The captions of B images, on the device.

    tokens: (B, K, T + 1), start token first, padded with <pad>.
    counts: the counts of the whole batch, over all parts and processes.
    advantages: (B, K), the advantages of sampled captions; None for captions of the data.
    """

    tokens: Tensor
    counts: Counts
    advantages: Tensor | None = None


class TeacherForcedOutput:
    """The output of a teacher-forced pass over captions, the input of every objective.

    Args:
        decoder: the model's decoder.
        output: the decoder's output for B images with K captions of T tokens.
        captions: the captions of the whole batch, or of a part of it.
        dense: compute padding too. Shapes are then fixed, and the CPU never waits for a GPU.
            Otherwise only the N tokens that count are computed, and their logits in chunks.

    Attributes:
        mask: (B, K, T), whether the next token counts, that is, is not <pad>.
        targets: (N,), the next tokens; N is B * K * T if dense.
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
        """Scores of all words, (N, words)."""
        return self.decoder.logits(self.pick(self.output.deep))

    @property
    def log_probabilities(self) -> tuple[Tensor, Tensor]:
        """The log-probability of each target, and the mean of those of all words: (N,), float32."""
        # Not functools.cached_property: its lock breaks the compiled graph.
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
        """Return this part's share of the cross-entropy of the batch, in nats per token."""
        return -self.sum(self.log_probabilities[0].detach()) / self.tokens


class Objective(ABC):
    """A term of the loss of a stage. Its setting in the recipe is usually its weight."""

    uses_references: ClassVar[bool] = False
    """Whether the loss reads the data's captions even in a stage that samples captions."""

    def __init__(self, setting: Any) -> None:
        self.weight = float(setting)

    @classmethod
    def build(cls, setting: Any, recipe: Recipe, corpus: Corpus) -> Self:  # noqa: ARG003
        """Build the objective of a run, by default from its setting.

        Raises CaptionerError: the recipe or the data do not fit the objective.
        """
        return cls(setting)

    @abstractmethod
    def loss(self, forced: TeacherForcedOutput) -> Tensor:
        """Return the loss of the captions in `forced`, times `self.weight`: a scalar.

        `forced` may be a part of a batch. So divide the sum of the losses by `forced.tokens` or
        `forced.count`, which count the whole batch; the results of all parts and processes then add
        up to the mean. `forced.output.attention` is None for a decoder without attention.
        """


class CrossEntropy(Objective):
    """Cross-entropy of the data's captions with label smoothing (Szegedy et al. 2016).

    `label_smoothing` is the share of probability spread over all words.
    """

    uses_references = True

    def __init__(self, weight: float = 1.0, *, label_smoothing: float = 0.0) -> None:
        super().__init__(weight)
        self.label_smoothing = label_smoothing

    @classmethod
    def build(cls, setting: Any, recipe: Recipe, corpus: Corpus) -> Self:  # noqa: ARG003
        """Use the label smoothing of the recipe."""
        return cls(setting, label_smoothing=recipe.label_smoothing)

    def loss(self, forced: TeacherForcedOutput) -> Tensor:
        """Return the mean over tokens."""
        losses = -torch.lerp(*forced.log_probabilities, self.label_smoothing)
        return self.weight * forced.sum(losses) / forced.tokens


class SamplingObjective(Objective):
    """An objective that samples the captions that a stage learns from.

    The stage uses no dropout, so that samples come from the policy that is trained.
    """

    @abstractmethod
    def sample(self, decoder: Decoder, features: Tensor, batch: Batch) -> tuple[Tensor, ...]:
        """Sample captions for the grids (B, L, D) of a batch, without a gradient.

        Returns tokens (B, K, T + 1) and advantages (B, K) on the device, and the sum of rewards.
        """
