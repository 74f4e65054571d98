"""The optimizer's steps of a stage, whatever the batches hold: pixels, or grids that are cached."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from captioner.model import CaptionModel
from captioner.transforms import Transform
from captioner_training.data.dataset import Batch
from captioner_training.machinery.averaged_weights import AveragedWeights
from captioner_training.machinery.processes import Processes
from captioner_training.machinery.schedule import warmup_cosine
from captioner_training.objectives.cross_entropy import CaptionLoss, Counts, count
from captioner_training.objectives.self_critical import SelfCriticalCaptions
from captioner_training.recipe import Recipe, Stage
from captioner_training.step import Captions, LossModule, features_of

__all__ = ["Engine", "build_optimizer"]


def build_optimizer(model: CaptionModel, recipe: Recipe, stage: Stage) -> AdamW:
    """AdamW over what the stage trains; the encoder at its own rate, matrices alone decayed."""
    groups = []
    for module, rate in (
        (model.decoder, stage.learning_rate),
        (model.encoder, stage.encoder_learning_rate),
    ):
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        for decay, chosen in (
            (recipe.weight_decay, [p for p in trained if p.ndim > 1]),
            (0.0, [p for p in trained if p.ndim <= 1]),
        ):
            if chosen:
                groups.append({"params": chosen, "lr": rate, "weight_decay": decay})
    # With the usual epsilon of 1e-8 a weight whose gradient is all but zero walks as far as any
    # other, in a direction that rounding decides: two machines would not agree on it.
    return AdamW(groups, betas=(0.9, 0.98), eps=1e-6, fused=True)


class Engine:
    """Takes the steps of one stage.

    Args:
        model: with what the stage trains thawed, on this process's device.
        recipe: of the run.
        stage: of the recipe.
        steps: of the whole stage, for the schedule.
        transform: of the recipe.
        processes: each of which has its share of every batch.
        self_critical: draws the captions of a self-critical stage.

    """

    def __init__(
        self,
        model: CaptionModel,
        recipe: Recipe,
        stage: Stage,
        *,
        steps: int,
        transform: Transform,
        processes: Processes,
        self_critical: SelfCriticalCaptions | None = None,
    ) -> None:
        self.model, self.recipe, self.stage, self.steps = model, recipe, stage, steps
        self.transform, self.processes = transform, processes
        self.self_critical = self_critical
        device = processes.device
        self.autocast = torch.autocast(
            device.type, dtype=torch.bfloat16, enabled=recipe.precision == "bf16"
        )
        self.optimizer = build_optimizer(model, recipe, stage)
        rate = partial(warmup_cosine, steps=steps, warmup=min(stage.warmup, steps // 2))
        self.scheduler = LambdaLR(self.optimizer, rate)
        self.average = AveragedWeights(model, decay=recipe.ema)
        self.taken = 0
        self.sums = torch.zeros(4, device=device)  # of what `step` returned in this epoch
        loss = LossModule(model, recipe, stage, transform=transform)
        self._ddp = None
        if processes.world > 1:
            self._ddp = DistributedDataParallel(loss, gradient_as_bucket_view=True)
        self._module: nn.Module = loss if self._ddp is None else self._ddp

    def step(self, parts: Sequence[Batch]) -> Tensor:
        """Learn from this process's share of one batch.

        Args:
            parts: of the share; their gradients are added up.

        Returns:
            (4,), on the device: this process's shares of the loss, the cross-entropy, the mean
            reward and the gradient's norm before clipping. Summed over the processes they are those
            of the whole batch.

        """
        self.model.train(self.self_critical is None)
        images = [part.images.to(self.processes.device, non_blocking=True) for part in parts]
        captions = [self._captions(*pair) for pair in zip(parts, images, strict=True)]
        counts = self._count(captions)
        own_words = self.stage.scheduled_sampling * self.taken / self.steps
        sums = torch.zeros(3, device=self.processes.device)
        for number, (pixels, wanted) in enumerate(zip(images, captions, strict=True), start=1):
            more = number < len(parts) and self._ddp is not None
            with self._ddp.no_sync() if more and self._ddp else contextlib.nullcontext():
                with self.autocast:
                    loss: CaptionLoss = self._module(pixels, wanted, counts, own_words)
                # DistributedDataParallel takes the mean over processes; the loss is a sum.
                torch.autograd.backward(loss.total * self.processes.world)
            sums[:2] += torch.stack([loss.total.detach(), loss.cross_entropy])
            if wanted.reward is not None:
                sums[2] += wanted.reward / counts.captions
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.gradient_clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.scheduler.step()
        self.average.update()
        self.taken += 1
        return torch.cat([sums, norm.unsqueeze(0) / self.processes.world])

    def _captions(self, part: Batch, images: Tensor) -> Captions:
        """The captions of the batch, or captions that the model draws itself."""
        if self.self_critical is None:
            tokens = part.tokens.to(self.processes.device, non_blocking=True)
            return Captions(tokens, part.tokens[..., 1:])
        with torch.no_grad(), self.autocast:
            features = features_of(self.model, images, self.transform)
            return self.self_critical.draw(self.model.decoder, features, part.positions.tolist())

    def _count(self, captions: Sequence[Captions]) -> Counts:
        """Count the tokens and captions of the whole batch, in all its parts and processes."""
        each = [torch.stack(count(one.targets)) for one in captions]
        total = torch.stack(each).sum(dim=0)
        if self.processes.world > 1:
            total = self.processes.sum(total.to(self.processes.device))
        return Counts(*total.unbind())

    def state_dict(self) -> dict[str, Any]:
        """Give all that steps have changed but the model."""
        return {
            "taken": self.taken,
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "average": self.average.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the state_dict of the same stage."""
        self.taken = state["taken"]
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.average.load_state_dict(state["average"])
