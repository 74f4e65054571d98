"""The optimizer of a stage, and its learning rates over the steps."""

from __future__ import annotations

from functools import partial

from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from captioner.model import CaptionModel
from captioner_training.machinery.schedule import warmup_cosine
from captioner_training.recipe import Recipe, Stage

__all__ = ["build_optimizer", "build_scheduler"]


def build_optimizer(model: CaptionModel, recipe: Recipe, stage: Stage) -> AdamW:
    """AdamW over what the stage trains; the encoder at its own rate, matrices alone decayed."""
    groups = []
    for module, rate in (
        (model.decoder, stage.learning_rate),
        (model.encoder, stage.encoder_rate),
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


def build_scheduler(optimizer: AdamW, stage: Stage, *, steps: int, taken: int = 0) -> LambdaLR:
    """Warm-up and half a cosine over the steps of the stage, of which some may be taken already."""
    rate = partial(warmup_cosine, steps=steps, warmup=min(stage.warmup, steps // 2))
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    return LambdaLR(optimizer, rate, last_epoch=taken - 1)
