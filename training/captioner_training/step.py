"""What a step computes: from pixels or grids and captions to the loss, in one module.

DistributedDataParallel can wrap one module's forward; so the loss is inside.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from captioner.decoders.decoder import DecoderOutput
from captioner.model import CaptionModel
from captioner.transforms import Transform
from captioner.vocabulary import END, PAD, START
from captioner_training.objectives.cross_entropy import CaptionLoss, Counts, caption_loss
from captioner_training.recipe import Recipe, Stage

__all__ = ["Captions", "LossModule", "features_of"]


class Captions(NamedTuple):
    """What the model is to say of B images.

    tokens: (B, K, T), <start> first; targets: (B, K, T - 1), the same shifted by one, on the CPU;
    weights: (B, K), what a caption is worth, or None where all are worth the same; reward: the sum
    of the rewards of captions that were drawn.
    """

    tokens: Tensor
    targets: Tensor
    weights: Tensor | None = None
    reward: Tensor | None = None


class LossModule(nn.Module):
    """The model with its loss, under the settings of a stage."""

    def __init__(
        self, model: CaptionModel, recipe: Recipe, stage: Stage, *, transform: Transform
    ) -> None:
        super().__init__()
        self.model = model
        self.recipe, self.stage = recipe, stage
        self.transform = transform

    def forward(
        self, images: Tensor, captions: Captions, counts: Counts, own_words: float
    ) -> CaptionLoss:
        """Score the captions.

        Args:
            images: pixels (B, 3, S, S) uint8, or grids (B, L, D).
            captions: of these images.
            counts: what the loss is averaged over.
            own_words: the share of input words that are replaced by what the model itself would
                have said there (scheduled sampling, Bengio et al. 2015). Of all words at once,
                from a first pass over the caption, so that the recurrence need not wait for the
                output layer (Duckworth et al. 2019, "Parallel Scheduled Sampling").

        """
        features = features_of(self.model, images, self.transform)
        inputs = captions.tokens[..., :-1]
        if own_words > 0:
            inputs = self._mixed(features, inputs, own_words)
        critic = self.stage.self_critical
        output: DecoderOutput = self.model.decoder(features, inputs)
        return caption_loss(
            self.model.decoder,
            output,
            captions.targets,
            label_smoothing=self.recipe.label_smoothing,
            doubly_stochastic=self.stage.doubly_stochastic,
            attention_entropy=self.stage.attention_entropy,
            counts=counts,
            weights=captions.weights,
            temperature=critic.temperature if critic else 1.0,
        )

    @torch.no_grad()
    def _mixed(self, features: Tensor, inputs: Tensor, own_words: float) -> Tensor:
        """Replace a share of the words (B, K, T), never <start> or what follows the end."""
        if inputs.shape[-1] < 2:
            return inputs
        before = self.model.decoder(features.detach(), inputs[..., :-1])
        logits = self.model.decoder.logits(before.deep).float()
        logits[..., [PAD, START, END]] = -torch.inf
        drawn = torch.multinomial(logits.flatten(0, 2).softmax(dim=-1), 1).view_as(inputs[..., 1:])
        chosen = torch.rand(drawn.shape, device=drawn.device) < own_words
        words = inputs[..., 1:]
        mixed = torch.where(chosen & (words != PAD) & (words != END), drawn, words)
        return torch.cat([inputs[..., :1], mixed], dim=-1)


def features_of(model: CaptionModel, images: Tensor, transform: Transform) -> Tensor:
    """Encode pixels (B, 3, S, S) into features (B, L, D); a cached grid has them already."""
    if images.dtype != torch.uint8:
        return images.float()
    pixels = transform.normalize(images).contiguous(memory_format=torch.channels_last)
    return model.encode(pixels).features
