"""One step of the training: forward and backward over the parts of a batch, clip, update.

The parts hold pixels, or grids that are cached; captions of the data, or captions that the model
draws itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from captioner.decoders.decoder import DecoderOutput
from captioner.device import find_dtype
from captioner.generation.roll_out import draw
from captioner.model import CaptionModel
from captioner.vision.transform import Transform
from captioner.vocabulary import END, PAD, Vocabulary
from captioner_training.data.dataset import Batch
from captioner_training.distributed import Processes
from captioner_training.losses.objective import Captions, Counts, Objective, Reading, count
from captioner_training.recipe import Recipe, Stage
from captioner_training.state import TrainState

__all__ = ["LossModule", "TrainStep", "autocast_of"]


def autocast_of(recipe: Recipe, device: torch.device) -> torch.autocast:
    """Make the context in which a recipe computes; what is trained is float32."""
    fast = torch.bfloat16
    enabled = find_dtype(recipe.precision, device) is fast
    return torch.autocast(device.type, dtype=fast, enabled=enabled)


class TrainStep:
    """Takes the steps of one stage.

    Args:
        state: of the run, whose stage has begun.
        recipe: of the run.
        stage: of the recipe.
        objectives: of the stage; one of them may draw captions.
        vocabulary: of the model.
        transform: of the recipe.
        processes: each of which has its share of every batch.

    """

    def __init__(
        self, state: TrainState, recipe: Recipe, stage: Stage, *, objectives: Sequence[Objective],
        vocabulary: Vocabulary, transform: Transform, processes: Processes,
    ) -> None:  # fmt: skip
        self.state, self.recipe, self.stage, self.objectives = state, recipe, stage, objectives
        self.transform, self.processes = transform, processes
        self.autocast = autocast_of(recipe, processes.device)
        loss = LossModule(state.model, objectives, vocabulary=vocabulary, transform=transform)
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
        model.train(all(objective.dropout for objective in self.objectives))
        images = [part.images.to(self.processes.device, non_blocking=True) for part in parts]
        drawn = [self._draw(*pair) for pair in zip(parts, images, strict=True)]
        of_data, of_drawn = self._count(parts, drawn)
        own_words = self.stage.scheduled_sampling * self.state.progress.taken / self.state.steps
        sums = torch.zeros(3, device=self.processes.device)
        for number, (part, pixels, own) in enumerate(zip(parts, images, drawn, strict=True), 1):
            more = number < len(parts) and self._ddp is not None
            with self._ddp.no_sync() if more and self._ddp else contextlib.nullcontext():
                with self.autocast:
                    values = self._module(pixels, part, of_data, own, of_drawn, own_words)
                # DistributedDataParallel takes the mean over processes; the loss is a sum.
                torch.autograd.backward(values[0] * self.processes.world)
            sums[:2] += values.detach()
            if own is not None and own.reward is not None:
                sums[2] += own.reward / of_drawn.captions
        norm = nn.utils.clip_grad_norm_(model.parameters(), self.recipe.gradient_clip)
        self.state.optimizer.step()
        self.state.optimizer.zero_grad(set_to_none=True)
        self.state.scheduler.step()
        self.state.average.update()
        return torch.cat([sums, norm.unsqueeze(0) / self.processes.world])

    def _draw(self, part: Batch, images: Tensor) -> Captions | None:
        """Give the captions that an objective draws, where one does."""
        model = self.state.model
        for objective in self.objectives:
            if type(objective).draw is Objective.draw:
                continue
            with torch.no_grad(), self.autocast:
                features = _features_of(model, images, self.transform)
                return objective.draw(model.decoder, features, part)
        return None

    def _count(
        self, parts: Sequence[Batch], drawn: Sequence[Captions | None]
    ) -> tuple[Counts, Counts]:
        """Count what the whole batch has, in all its parts and processes: of data, and drawn."""
        total = torch.zeros(2, 2, dtype=torch.long)
        for part, own in zip(parts, drawn, strict=True):
            total[0] += torch.stack(count(part.tokens[..., 1:]))
            if own is not None:
                total[1] += torch.stack(count(own.targets))
        if self.processes.world > 1:
            total = self.processes.sum(total.to(self.processes.device))
        return Counts(*total[0].unbind()), Counts(*total[1].unbind())


class LossModule(nn.Module):
    """The model with its loss, since DistributedDataParallel wraps the forward of one module."""

    def __init__(
        self, model: CaptionModel, objectives: Sequence[Objective], *, vocabulary: Vocabulary,
        transform: Transform,
    ) -> None:  # fmt: skip
        super().__init__()
        self._silent = vocabulary.silent
        self.model, self.objectives, self.transform = model, objectives, transform

    def forward(
        self, images: Tensor, part: Batch, of_data: Counts, drawn: Captions | None,
        of_drawn: Counts, own_words: float,
    ) -> Tensor:  # fmt: skip
        """Let the model read captions, and take the losses.

        Args:
            images: pixels (B, 3, S, S) uint8, or grids (B, L, D), on the device.
            part: with the captions of the data.
            of_data: what their losses are averaged over.
            drawn: captions that were drawn of these images, if any were.
            of_drawn: what their losses are averaged over.
            own_words: the share of input words that are replaced by what the model itself would
                have said there (scheduled sampling, Bengio et al. 2015). Of all words at once,
                from a first pass over the caption, so that the recurrence need not wait for the
                output layer (Duckworth et al. 2019, "Parallel Scheduled Sampling").

        Returns:
            (2,): the loss, and the cross-entropy in nats a token.

        """
        features = _features_of(self.model, images, self.transform)
        data = Captions.of_data(part, features.device)
        readings: dict[bool, Reading] = {}  # by whether the captions are the data's
        total = torch.zeros((), device=features.device)
        for objective in self.objectives:
            if is_data := objective.of_data or drawn is None:
                captions, counts = data, of_data
            else:
                captions, counts = drawn, of_drawn
            reading = readings.get(is_data)
            if reading is None:
                output = self._read(features, captions.tokens[..., :-1], own_words)
                readings[is_data] = reading = Reading(
                    self.model.decoder, output, captions, counts=counts, positions=part.positions
                )
            total = total + objective.loss(reading)
        return torch.stack([total, readings[max(readings)].nats()])  # of data, if those were read

    def _read(self, features: Tensor, inputs: Tensor, own_words: float) -> DecoderOutput:
        if own_words > 0:
            inputs = self._mixed(features, inputs, own_words)
        output: DecoderOutput = self.model.decoder(features, inputs)
        return output

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
