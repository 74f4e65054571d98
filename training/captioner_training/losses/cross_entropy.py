"""The cross-entropy of the data's captions, with labels smoothed (Szegedy et al. 2016)."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from captioner_training.data.corpus import Corpus
from captioner_training.losses.objective import Objective, Reading
from captioner_training.recipe import Recipe

__all__ = ["CrossEntropy"]


class CrossEntropy(Objective):
    """Asks for the words of people's captions.

    `label_smoothing` is the share of probability that is spread over all words.
    """

    of_data = True

    def __init__(self, weight: float = 1.0, *, label_smoothing: float = 0.0) -> None:
        super().__init__(weight)
        self.label_smoothing = label_smoothing

    @classmethod
    def build(cls, setting: Any, recipe: Recipe, corpus: Corpus) -> Self:  # noqa: ARG003
        """Smooth labels as the recipe says."""
        return cls(setting, label_smoothing=recipe.label_smoothing)

    def loss(self, reading: Reading) -> Tensor:
        """Average over tokens."""
        losses = -torch.lerp(*reading.log_probabilities, self.label_smoothing)
        return self.weight * losses.sum() / reading.tokens
