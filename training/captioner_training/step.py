"""One step of the training: forward and backward over the parts of a batch, clip, update.

The parts hold pixels, or grids that are cached; captions of the data, or captions that the model
draws itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from captioner.device import find_dtype
from captioner.errors import ConfigError
from captioner.generation.roll_out import draw
from captioner.model import CaptionModel
from captioner.vision.transform import Transform
from captioner.vocabulary import END, PAD, Vocabulary
from captioner_training.data.dataset import Batch
from captioner_training.distributed import Processes
from captioner_training.losses.objective import (
    Captions,
    Counts,
    DrawingObjective,
    Objective,
    Reading,
    count,
)
from captioner_training.recipe import Recipe
from captioner_training.state import StageState

__all__ = ["LossModule", "TrainStep", "autocast_of"]


def autocast_of(recipe: Recipe, device: torch.device) -> torch.autocast:
    """Make the context in which a recipe computes; what is trained is float32."""
    fast = torch.bfloat16
    enabled = find_dtype(recipe.precision, device) is fast
    return torch.autocast(device.type, dtype=fast, enabled=enabled)


class TrainStep:
    """Takes the steps of a stage, whose objectives come by name; one of them may draw captions."""

    def __init__(
        self, stage: StageState, recipe: Recipe, *, objectives: Mapping[str, Objective],
        vocabulary: Vocabulary, processes: Processes,
    ) -> None:  # fmt: skip
        self.stage, self.processes = stage, processes
        self.gradient_clip = recipe.gradient_clip
        self.autocast = autocast_of(recipe, processes.device)
        drawing = (one for one in objectives.values() if isinstance(one, DrawingObjective))
        self._drawing = next(drawing, None)
        self._transform = Transform(recipe.transform)
        loss = LossModule(stage.model, objectives, vocabulary=vocabulary, transform=self._transform)
        self._ddp = None
        if processes.world > 1:
            self._ddp = DistributedDataParallel(loss, gradient_as_bucket_view=True)
        self._module: nn.Module = self._ddp or loss

    def __call__(self, parts: Sequence[Batch]) -> dict[str, Tensor]:
        """Learn from this process's share of one batch, whose parts' gradients are added up.

        Returns:
            scalars on the device: `loss` and each of its terms as `loss/NAME`, `cross_entropy` in
            nats a token, `gradient_norm` before clipping, and where captions were drawn their mean
            `reward`. Summed over the processes they are those of the whole batch.
        """
        stage, device = self.stage, self.processes.device
        stage.model.train(self._drawing is None)
        images = [part.images.to(device, non_blocking=True) for part in parts]
        drawn = [self._draw(*pair) for pair in zip(parts, images, strict=True)]
        data_counts, drawn_counts = self._count(parts, drawn)
        sampling_share = stage.config.scheduled_sampling * stage.progress.taken / stage.steps
        sums: dict[str, Tensor] = {}
        for number, (part, pixels, drawn_part) in enumerate(
            zip(parts, images, drawn, strict=True), 1
        ):
            more = number < len(parts)
            with self._ddp.no_sync() if self._ddp and more else contextlib.nullcontext():
                with self.autocast:
                    values = self._module(
                        pixels, part, data_counts, drawn_part, drawn_counts, sampling_share
                    )
                # DistributedDataParallel takes the mean over processes; the loss is a sum.
                torch.autograd.backward(values["loss"] * self.processes.world)
            if drawn_part is not None and drawn_part.reward is not None:
                values["reward"] = drawn_part.reward.to(device) / drawn_counts.captions
            for name, value in values.items():
                sums[name] = sums.get(name, 0) + value.detach()
        norm = nn.utils.clip_grad_norm_(stage.model.parameters(), self.gradient_clip)
        stage.optimizer.step()
        stage.optimizer.zero_grad(set_to_none=True)
        stage.scheduler.step()
        stage.average.update()
        return {**sums, "gradient_norm": norm / self.processes.world}

    def _draw(self, part: Batch, images: Tensor) -> Captions | None:
        """Let the objective that draws captions draw them, where there is one."""
        if self._drawing is None:
            return None
        with torch.no_grad(), self.autocast:
            features = _features_of(self.stage.model, images, self._transform)
            return self._drawing.draw(self.stage.model.decoder, features, part)

    def _count(
        self, parts: Sequence[Batch], drawn: Sequence[Captions | None]
    ) -> tuple[Counts, Counts]:
        """Count what the whole batch has, in all its parts and processes: of data, and drawn."""
        total = torch.zeros(2, 2, dtype=torch.long)
        for part, drawn_part in zip(parts, drawn, strict=True):
            total[0] += torch.stack(count(part.tokens[..., 1:]))
            if drawn_part is not None:
                total[1] += torch.stack(count(drawn_part.targets))
        if self.processes.world > 1:
            total = self.processes.sum(total.to(self.processes.device))
        return Counts(*total[0].unbind()), Counts(*total[1].unbind())


class LossModule(nn.Module):
    """The model with its loss, since DistributedDataParallel wraps the forward of one module."""

    def __init__(
        self, model: CaptionModel, objectives: Mapping[str, Objective], *, vocabulary: Vocabulary,
        transform: Transform,
    ) -> None:  # fmt: skip
        super().__init__()
        self._silent = vocabulary.silent
        self.model, self.objectives, self.transform = model, objectives, transform

    def forward(
        self, images: Tensor, part: Batch, data_counts: Counts, drawn: Captions | None,
        drawn_counts: Counts, sampling_share: float,
    ) -> dict[str, Tensor]:  # fmt: skip
        """Let the model read captions, and take the losses.

        Args:
            images: pixels (B, 3, S, S) uint8, or grids (B, L, D), on the device.
            part: with the captions of the data.
            data_counts: what their losses are averaged over.
            drawn: captions that were drawn of these images, if any were.
            drawn_counts: what their losses are averaged over.
            sampling_share: of the input words, which are replaced by what the model itself would
                have said there (scheduled sampling, Bengio et al. 2015). Of all words at once,
                from a first pass over the caption, so that the recurrence need not wait for the
                output layer (Duckworth et al. 2019, "Parallel Scheduled Sampling").

        Returns:
            `loss`, its terms `loss/NAME`, and `cross_entropy` in nats a token: of the data's
            captions, if an objective reads them, else of those that were drawn.
        """
        features = _features_of(self.model, images, self.transform)

        def read(captions: Captions, counts: Counts) -> Reading:
            inputs = captions.tokens[..., :-1]
            if sampling_share > 0:
                inputs = self._mixed(features, inputs, sampling_share)
            output = self.model.decoder(features, inputs)
            return Reading(
                self.model.decoder, output, captions, counts=counts, positions=part.positions
            )

        tokens = part.tokens.to(features.device, non_blocking=True)
        data = Captions(tokens, part.tokens[..., 1:])
        reading = read(data, data_counts) if drawn is None else read(drawn, drawn_counts)
        data_reading = reading
        if drawn is not None and any(one.of_data for one in self.objectives.values()):
            data_reading = read(data, data_counts)
        terms = {
            name: _number(name, one.loss(data_reading if one.of_data else reading))
            for name, one in self.objectives.items()
        }
        total = sum(terms.values(), torch.zeros((), device=features.device))
        named = {f"loss/{name}": term for name, term in terms.items()}
        return {"loss": total, **named, "cross_entropy": data_reading.nats()}

    @torch.no_grad()
    def _mixed(self, features: Tensor, inputs: Tensor, sampling_share: float) -> Tensor:
        """Replace a share of the words (B, K, T), never the first or what follows the end."""
        if inputs.shape[-1] < 2:
            return inputs
        before = self.model.decoder(features, inputs[..., :-1])
        logits = self.model.decoder.logits(before.deep).float()
        logits[..., [*self._silent, END]] = -torch.inf
        drawn = draw(logits.softmax(dim=-1))
        chosen = torch.rand(drawn.shape, device=drawn.device) < sampling_share
        words = inputs[..., 1:]
        mixed = torch.where(chosen & (words != PAD) & (words != END), drawn, words)
        return torch.cat([inputs[..., :1], mixed], dim=-1)


def _features_of(model: CaptionModel, images: Tensor, transform: Transform) -> Tensor:
    """Encode pixels (B, 3, S, S) into features (B, L, D); a cached grid has them already."""
    if images.dtype != torch.uint8:
        return images.float()
    pixels = transform.normalize(images).contiguous(memory_format=torch.channels_last)
    return model.encode(pixels).features


def _number(name: str, loss: object) -> Tensor:
    if not isinstance(loss, Tensor) or loss.ndim:
        raise ConfigError(f"objectives {name}: its loss is no tensor of one number")
    return loss
