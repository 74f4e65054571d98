"""One step of the training: forward and backward over the parts of a batch, clip, update.

The parts hold pixels, or grids that are cached; captions of the data, or captions that the model
draws itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from captioner.decoders.decoder import DecoderOutput
from captioner.generation.roll_out import draw
from captioner.model import CaptionModel
from captioner.vision.transform import Transform
from captioner.vocabulary import END, PAD, Vocabulary
from captioner_training.data.dataset import Batch
from captioner_training.distributed import Processes
from captioner_training.losses.cross_entropy import (
    CaptionLoss,
    Captions,
    Counts,
    LossTerms,
    caption_loss,
    count,
)
from captioner_training.losses.self_critical import SelfCriticalCaptions
from captioner_training.losses.supervision import SupervisedAttention
from captioner_training.precision import autocast_of
from captioner_training.recipe import Recipe, Stage
from captioner_training.state import TrainState

__all__ = ["LossModule", "TrainStep"]


class Told(NamedTuple):
    """The data's captions of a part, and the counts of them all in the whole batch."""

    captions: Captions
    counts: Counts


class TrainStep:
    """Takes the steps of one stage.

    Args:
        state: of the run, whose stage has begun.
        recipe: of the run.
        stage: of the recipe.
        vocabulary: of the model.
        transform: of the recipe.
        processes: each of which has its share of every batch.
        self_critical: draws the captions of a self-critical stage.
        supervision: knows where words are to look, in a stage that is told.

    """

    def __init__(
        self,
        state: TrainState,
        recipe: Recipe,
        stage: Stage,
        *,
        vocabulary: Vocabulary,
        transform: Transform,
        processes: Processes,
        self_critical: SelfCriticalCaptions | None = None,
        supervision: SupervisedAttention | None = None,
    ) -> None:
        self.state, self.recipe, self.stage = state, recipe, stage
        self.transform, self.processes = transform, processes
        self.self_critical, self.supervision = self_critical, supervision
        self.autocast = autocast_of(recipe, processes.device)
        loss = LossModule(state.model, recipe, stage, vocabulary=vocabulary, transform=transform)
        self._ddp = None
        if processes.world > 1:
            self._ddp = DistributedDataParallel(loss, gradient_as_bucket_view=True)
        self._module: nn.Module = loss if self._ddp is None else self._ddp

    def __call__(self, parts: Sequence[Batch]) -> Tensor:
        """Learn from this process's share of one batch.

        Args:
            parts: of the share; their gradients are added up.

        Returns:
            (4,), on the device: this process's shares of the loss, the cross-entropy, the mean
            reward and the gradient's norm before clipping. Summed over the processes they are those
            of the whole batch.

        """
        model = self.state.model
        model.train(self.self_critical is None)
        images = [part.images.to(self.processes.device, non_blocking=True) for part in parts]
        captions = [self._captions(*pair) for pair in zip(parts, images, strict=True)]
        counts = self._count(captions)
        told = self._told(parts)
        own_words = self.stage.scheduled_sampling * self.state.progress.taken / self.state.steps
        sums = torch.zeros(3, device=self.processes.device)
        for number, (pixels, wanted) in enumerate(zip(images, captions, strict=True), start=1):
            more = number < len(parts) and self._ddp is not None
            with self._ddp.no_sync() if more and self._ddp else contextlib.nullcontext():
                with self.autocast:
                    loss: CaptionLoss = self._module(
                        pixels, wanted, counts, own_words, told[number - 1] if told else None
                    )
                # DistributedDataParallel takes the mean over processes; the loss is a sum.
                torch.autograd.backward(loss.total * self.processes.world)
            sums[:2] += torch.stack([loss.total.detach(), loss.cross_entropy])
            if wanted.reward is not None:
                sums[2] += wanted.reward / counts.captions
        norm = nn.utils.clip_grad_norm_(model.parameters(), self.recipe.gradient_clip)
        self.state.optimizer.step()
        self.state.optimizer.zero_grad(set_to_none=True)
        self.state.scheduler.step()
        self.state.average.update()
        return torch.cat([sums, norm.unsqueeze(0) / self.processes.world])

    def _captions(self, part: Batch, images: Tensor) -> Captions:
        """The captions of the batch, or captions that the model draws itself."""
        if self.self_critical is None:
            tokens = part.tokens.to(self.processes.device, non_blocking=True)
            targets, looks = part.tokens[..., 1:], None
            if self.supervision is not None:
                looks = self.supervision.looks(part.positions.tolist(), targets)
            return Captions(tokens, targets, looks=looks)
        model = self.state.model
        with torch.no_grad(), self.autocast:
            features = _features_of(model, images, self.transform)
            return self.self_critical.draw(
                model.decoder, features, part.positions.tolist(), starts=part.tokens[:, 0, 0]
            )

    def _told(self, parts: Sequence[Batch]) -> list[Told]:
        """The data's own captions of each part, where they are mixed with captions drawn."""
        critic = self.stage.self_critical
        if critic is None or critic.cross_entropy == 0:
            return []
        device = self.processes.device
        captions = [
            Captions(part.tokens.to(device, non_blocking=True), part.tokens[..., 1:])
            for part in parts
        ]
        counts = self._count(captions)
        return [Told(each, counts) for each in captions]

    def _count(self, captions: Sequence[Captions]) -> Counts:
        """Count the tokens and captions of the whole batch, in all its parts and processes."""
        each = [torch.stack(count(one.targets)) for one in captions]
        total = torch.stack(each).sum(dim=0)
        if self.processes.world > 1:
            total = self.processes.sum(total.to(self.processes.device))
        return Counts(*total.unbind())


class LossModule(nn.Module):
    """The model with its loss, since DistributedDataParallel wraps the forward of one module."""

    def __init__(
        self, model: CaptionModel, recipe: Recipe, stage: Stage, *, vocabulary: Vocabulary,
        transform: Transform,
    ) -> None:  # fmt: skip
        super().__init__()
        self._silent = vocabulary.silent
        self.model = model
        self.recipe, self.stage = recipe, stage
        self.transform = transform
        self._terms = LossTerms(
            label_smoothing=recipe.label_smoothing,
            doubly_stochastic=stage.doubly_stochastic,
            attention_entropy=stage.attention_entropy,
            attention_supervision=stage.attention_supervision,
        )

    def forward(
        self,
        images: Tensor,
        captions: Captions,
        counts: Counts,
        own_words: float,
        told: Told | None = None,
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
            told: captions of the data, whose cross-entropy is added to that of captions drawn.

        """
        features = _features_of(self.model, images, self.transform)
        inputs = captions.tokens[..., :-1]
        if own_words > 0:
            inputs = self._mixed(features, inputs, own_words)
        critic = self.stage.self_critical
        output: DecoderOutput = self.model.decoder(features, inputs)
        loss = caption_loss(
            self.model.decoder,
            output,
            captions.targets,
            self._terms,
            counts=counts,
            weights=captions.weights,
            temperature=critic.temperature if critic else 1.0,
            silent=self._silent,
            looks=captions.looks,
        )
        if critic is None or told is None:
            return loss
        plain = self._plain_loss(features, told)
        return CaptionLoss(loss.total + critic.cross_entropy * plain.total, plain.cross_entropy)

    def _plain_loss(self, features: Tensor, told: Told) -> CaptionLoss:
        """Cross-entropy as in other stages; of the attention the captions drawn ask enough."""
        tokens, targets = told.captions.tokens, told.captions.targets
        output: DecoderOutput = self.model.decoder(features, tokens[..., :-1])
        terms = LossTerms(label_smoothing=self.recipe.label_smoothing)
        return caption_loss(self.model.decoder, output, targets, terms, counts=told.counts)

    @torch.no_grad()
    def _mixed(self, features: Tensor, inputs: Tensor, own_words: float) -> Tensor:
        """Replace a share of the words (B, K, T), never the first or what follows the end."""
        if inputs.shape[-1] < 2:
            return inputs
        before = self.model.decoder(features, inputs[..., :-1])
        logits = self.model.decoder.logits(before.deep).float()
        logits[..., [*self._silent, END]] = -torch.inf
        drawn = draw(logits.softmax(dim=-1))
        chosen = torch.rand(drawn.shape, device=drawn.device) < own_words
        words = inputs[..., 1:]
        mixed = torch.where(chosen & (words != PAD) & (words != END), drawn, words)
        return torch.cat([inputs[..., :1], mixed], dim=-1)


def _features_of(model: CaptionModel, images: Tensor, transform: Transform) -> Tensor:
    """Encode pixels (B, 3, S, S) into features (B, L, D); a cached grid has them already."""
    if images.dtype != torch.uint8:
        return images.float()
    pixels = transform.normalize(images).contiguous(memory_format=torch.channels_last)
    return model.encode(pixels).features
