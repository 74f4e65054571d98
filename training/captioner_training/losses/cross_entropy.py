"""Cross-entropy of the data's captions with label smoothing (Szegedy et al. 2016)."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from captioner_training.data.corpus import Corpus
from captioner_training.losses.objective import Objective, TeacherForcedOutput
from captioner_training.recipe import Recipe


class CrossEntropy(Objective):
    """Cross-entropy; `label_smoothing` is the share of probability spread over all words."""

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
