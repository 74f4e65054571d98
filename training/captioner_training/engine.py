"""One epoch of training, whatever the batches hold: pixels, or grids that are cached."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LRScheduler
from tqdm import tqdm

from captioner.model import CaptionModel
from captioner.transforms import Transform
from captioner_training.dataset import Batch
from captioner_training.loss import caption_loss
from captioner_training.recipe import Recipe, Stage

__all__ = ["EpochResult", "build_optimizer", "train_one_epoch"]


@dataclass(frozen=True, kw_only=True)
class EpochResult:
    """What an epoch was like on the training data."""

    loss: float  # what was minimised, a step's mean
    cross_entropy: float  # nats a token, without smoothing
    gradient_norm: float  # before clipping, a step's mean
    seconds: float
    images: int
    tokens: int


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
    return AdamW(groups, betas=(0.9, 0.98))


def train_one_epoch(
    model: CaptionModel,
    batches: Iterable[Batch],
    *,
    optimizer: AdamW,
    scheduler: LRScheduler,
    recipe: Recipe,
    stage: Stage,
    transform: Transform,
    autocast: torch.autocast,
    description: str,
    report: Callable[[dict[str, float]], None],
) -> EpochResult:
    """Run through the batches once.

    Args:
        batches: with images as uint8 pixels (B, 3, S, S), or as grids (B, L, D).
        description: stands before the progress bar.
        report: is called with loss, rate and gradient norm every 50 steps.

    """
    device = next(model.parameters()).device
    model.train()
    started = time.perf_counter()
    steps = images = tokens = 0
    sums = torch.zeros(3)
    bar = tqdm(batches, desc=description, leave=False, disable=None)
    for batch in bar:
        wanted = batch.tokens.to(device, non_blocking=True)
        with autocast:
            features = _features(model, batch.images.to(device, non_blocking=True), transform)
            output = model.decoder(features, wanted[..., :-1])
            loss = caption_loss(
                model.decoder,
                output,
                wanted[..., 1:],
                label_smoothing=recipe.label_smoothing,
                doubly_stochastic=stage.doubly_stochastic,
                attention_entropy=stage.attention_entropy,
            )
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss.total)
        norm = nn.utils.clip_grad_norm_(model.parameters(), recipe.gradient_clip)
        optimizer.step()
        scheduler.step()
        steps, images, tokens = steps + 1, images + len(wanted), tokens + loss.tokens
        values = torch.stack([loss.total.detach(), loss.cross_entropy, norm]).cpu()
        sums += values
        bar.set_postfix(loss=f"{values[1]:.3f}", refresh=False)
        if steps % 50 == 0:
            report(
                {
                    "loss": float(values[0]),
                    "cross_entropy": float(values[1]),
                    "gradient_norm": float(values[2]),
                    "learning_rate": float(scheduler.get_last_lr()[0]),
                    "images_per_second": images / (time.perf_counter() - started),
                }
            )
    mean = (sums / max(1, steps)).tolist()
    return EpochResult(
        loss=mean[0],
        cross_entropy=mean[1],
        gradient_norm=mean[2],
        seconds=time.perf_counter() - started,
        images=images,
        tokens=tokens,
    )


def _features(model: CaptionModel, images: Tensor, transform: Transform) -> Tensor:
    """Encode pixels; a cached grid is there already."""
    if images.dtype != torch.uint8:
        return images.float()
    pixels = transform.normalize(images).contiguous(memory_format=torch.channels_last)
    return model.encode(pixels).features
