"""One training step: loss, backward, clip, update.

TrainStep moves a batch to the device and, in a self-critical stage, samples captions. CaptionLoss
encodes the images, runs the decoder with teacher forcing, and sums the objectives of the stage
(losses/). CaptionLoss may be compiled, see Recipe.compile.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from captioner.errors import ConfigError
from captioner.inference.device import find_dtype
from captioner.model.model import CaptionModel
from captioner.photos.transform import Transform
from captioner_training.data.batches import Batch
from captioner_training.distributed import Processes
from captioner_training.losses.objective import (
    Captions,
    Counts,
    Objective,
    SamplingObjective,
    TeacherForcedOutput,
)
from captioner_training.recipe import Recipe
from captioner_training.state import StageState


def dtype_of(recipe: Recipe, device: torch.device) -> torch.dtype:
    """Return the dtype of autocast; trained weights are float32."""
    if recipe.precision == "float16":
        return torch.float16
    return find_dtype(recipe.precision, device)


def autocast_of(recipe: Recipe, device: torch.device) -> torch.autocast:
    """Return the autocast context of a recipe."""
    dtype = dtype_of(recipe, device)
    enabled = dtype is not torch.float32
    return torch.autocast(device.type, dtype=dtype if enabled else torch.bfloat16, enabled=enabled)


class TrainStep:
    """The training step of a stage. At most one objective samples captions.

    Attributes:
        loss: the loss module, neither compiled nor wrapped for several processes.
    """

    def __init__(
        self,
        stage: StageState,
        recipe: Recipe,
        *,
        objectives: Mapping[str, Objective],
        processes: Processes,
    ) -> None:
        self.stage, self.processes = stage, processes
        self.gradient_clip = recipe.gradient_clip
        self.autocast = autocast_of(recipe, processes.device)
        sampling = (term for term in objectives.values() if isinstance(term, SamplingObjective))
        self._sampling = next(sampling, None)
        self._compile = recipe.compiles(
            stage.config, steps=stage.steps, device=processes.device.type
        )
        self.loss = CaptionLoss(
            stage.model,
            objectives,
            transform=Transform(recipe.transform),
            dense=self._compile or processes.device.type != "cpu",
        )
        self._built: nn.Module | None = None  # compiled and wrapped when the first batch arrives
        stage.model.train(self._sampling is None)

    def __call__(self, parts: Sequence[Batch]) -> dict[str, Tensor]:
        """Take one optimizer step on this process's share of a batch, one part after the other.

        Returns scalars on the device: `loss`, its terms `loss/NAME`, `cross_entropy` in nats per
        token, `gradient_norm` before clipping, and the mean `reward` of sampled captions. Their
        sums over all processes are the values of the whole batch.
        """
        stage, scaler = self.stage, self.stage.scaler
        if self._compile and self.processes.device.type == "cuda":
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        inputs, rewards = self._inputs(parts)
        if self._built is None:
            self._built = self._build(inputs[0])
        loss = self._built
        sums: dict[str, Tensor] = {}
        for number, part in enumerate(inputs, 1):
            wait = isinstance(loss, DistributedDataParallel) and number < len(inputs)
            with loss.no_sync() if wait else contextlib.nullcontext():  # type: ignore[operator]
                with self.autocast:
                    values = loss(*part)
                # DistributedDataParallel averages over processes, but the loss is a sum.
                torch.autograd.backward(scaler.scale(values["loss"] * self.processes.world))
            for name, value in values.items():
                sums[name] = sums.get(name, 0) + value.detach()
        if rewards is not None:
            sums["reward"] = rewards
        scaler.unscale_(stage.optimizer)
        norm = nn.utils.clip_grad_norm_(stage.model.parameters(), self.gradient_clip)
        scaler.step(stage.optimizer)
        scaler.update()
        stage.optimizer.zero_grad(set_to_none=True)
        stage.scheduler.step()
        stage.average.update()
        if scaler.is_enabled():  # the scaler skips steps whose gradients overflow
            norm = norm.nan_to_num(0, posinf=0)
        return {**sums, "gradient_norm": norm / self.processes.world}

    def _inputs(self, parts: Sequence[Batch]) -> tuple[list[tuple[Any, ...]], Tensor | None]:
        """Return the arguments of CaptionLoss for each part, and the mean reward or None."""
        device = self.processes.device
        images = [part.images.to(device, non_blocking=True) for part in parts]
        tokens = [part.tokens.to(device, non_blocking=True) for part in parts]
        data_counts = self._count(tokens)
        data = [Captions(part, data_counts) for part in tokens]
        if self._sampling is None:
            return [(*pair, None) for pair in zip(images, data, strict=True)], None
        samples = [self._sample(*pair) for pair in zip(parts, images, strict=True)]
        counts = self._count([tokens for tokens, _, _ in samples])
        sampled = [Captions(tokens, counts, advantages) for tokens, advantages, _ in samples]
        total = torch.stack([reward for _, _, reward in samples]).sum()
        reward = total.to(device, non_blocking=True) / counts.captions
        return list(zip(images, data, sampled, strict=True)), reward

    def _sample(self, part: Batch, images: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad(), self.autocast:
            features = self.loss.encode(images)
            return cast(SamplingObjective, self._sampling).sample(
                self.stage.model.decoder, features, part
            )

    def _count(self, tokens: Sequence[Tensor]) -> Counts:
        """Count the tokens and captions of the whole batch, over all parts and processes."""
        counts = torch.stack([torch.stack(Counts.of(part)) for part in tokens]).sum(dim=0)
        return Counts(*self.processes.sum(counts).unbind())

    def _build(self, inputs: tuple[Any, ...]) -> nn.Module:
        """Compile the loss if `compile` is on, and wrap it if there are several processes."""
        loss: nn.Module = self.loss
        if self._compile:
            loss = self._compiled(inputs)
        if self.processes.world > 1:
            # BatchNorm's statistics are fixed, so buffers need no synchronization. torch has
            # renamed the option.
            options, name = inspect.signature(DistributedDataParallel), "forward_sync_buffers"
            buffers = {name if name in options.parameters else "broadcast_buffers": False}
            loss = DistributedDataParallel(loss, gradient_as_bucket_view=True, **buffers)  # type: ignore[arg-type]
        return loss

    def _compiled(self, inputs: tuple[Any, ...]) -> nn.Module:
        """Return the compiled loss; if compiling fails, warn and return the eager one."""
        device = self.processes.device
        mode = "reduce-overhead" if device.type == "cuda" else "default"
        trained = [p for p in self.stage.model.parameters() if p.requires_grad]
        try:
            torch._dynamo.reset()  # frees the CUDA graphs of earlier stages
            torch._dynamo.config.suppress_errors = False
            torch._dynamo.config.recompile_limit = 64  # batches have several shapes
            compiled = torch.compile(self.loss, mode=mode, dynamic=False)
            with torch.random.fork_rng([device] if device.type == "cuda" else []), self.autocast:
                value = compiled(*inputs)["loss"]
                torch.autograd.grad(value, trained, allow_unused=True)
        except Exception as error:
            if self.processes.main:
                reason = str(error).strip().partition("\n")[0]
                print(f"torch.compile failed ({reason}): training without it", file=sys.stderr)
            return self.loss
        torch._dynamo.config.suppress_errors = True  # of later shapes: they run without compilation
        return cast(nn.Module, compiled)


class CaptionLoss(nn.Module):
    """The sum of the objectives for a part of a batch, as one module for torch.compile and DDP.

    dense: see TeacherForcedOutput.
    """

    def __init__(
        self,
        model: CaptionModel,
        objectives: Mapping[str, Objective],
        *,
        transform: Transform,
        dense: bool = False,
    ) -> None:
        super().__init__()
        self.model, self.objectives, self.transform = model, dict(objectives), transform
        self.dense = dense
        self._uses_references = any(objective.uses_references for objective in objectives.values())

    def forward(
        self, images: Tensor, data: Captions, sampled: Captions | None
    ) -> dict[str, Tensor]:
        """Return the loss of the data's captions, of sampled captions, or of both.

        Images are pixels (B, 3, S, S) uint8, or grids (B, L, D). Returns `loss`, its terms
        `loss/NAME`, and `cross_entropy` in nats per token: of the data's captions if an objective
        reads them, else of the sampled ones.
        """
        features = self.encode(images)
        output = reference_output = self.force(features, data if sampled is None else sampled)
        if sampled is not None and self._uses_references:
            reference_output = self.force(features, data)
        terms = {}
        for name, objective in self.objectives.items():
            terms[name] = objective.loss(reference_output if objective.uses_references else output)
            if not isinstance(terms[name], Tensor) or terms[name].ndim:
                raise ConfigError(f"objectives {name}: its loss is not a scalar tensor")
        total = sum(terms.values(), torch.zeros((), device=features.device))
        named = {f"loss/{name}": term for name, term in terms.items()}
        return {"loss": total, **named, "cross_entropy": reference_output.cross_entropy()}

    def encode(self, images: Tensor) -> Tensor:
        """Encode pixels (B, 3, S, S) uint8 to features (B, L, D). Cached grids are only cast."""
        if images.dtype != torch.uint8:
            return images.float()
        pixels = self.transform.normalize(images).contiguous(memory_format=torch.channels_last)
        return self.model.encode(pixels).features

    def force(self, features: Tensor, captions: Captions) -> TeacherForcedOutput:
        """Run the decoder over captions with teacher forcing."""
        output = self.model.decoder(features, captions.tokens[..., :-1])
        return TeacherForcedOutput(self.model.decoder, output, captions, dense=self.dense)
