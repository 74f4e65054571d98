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
from captioner.generation.sampling import draw
from captioner.inference.device import find_dtype
from captioner.model.model import CaptionModel
from captioner.photos.transform import Transform
from captioner.vocabulary import END, PAD, Vocabulary
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
        vocabulary: Vocabulary,
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
            vocabulary=vocabulary,
            transform=Transform(recipe.transform),
            dense=self._compile or processes.device.type != "cpu",
        ).to(processes.device)
        self._built: nn.Module | None = None  # compiled and wrapped when the first batch arrives
        stage.model.train(self._sampling is None)

    def __call__(self, parts: Sequence[Batch]) -> dict[str, Tensor]:
        """Take one optimizer step on this process's share of a batch.

        The parts of the share are computed one after the other to save memory. Returns scalars on
        the device: `loss`, its terms `loss/NAME`, `cross_entropy` in nats per token,
        `gradient_norm` before clipping, and the mean `reward` of sampled captions. Their sums over
        all processes are the values of the whole batch.
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
        device, stage = self.processes.device, self.stage
        images = [part.images.to(device, non_blocking=True) for part in parts]
        tokens = [part.tokens.to(device, non_blocking=True) for part in parts]
        data_counts = self._count(tokens)
        data = [Captions(part, data_counts) for part in tokens]
        share = None
        if stage.config.scheduled_sampling > 0:
            current = stage.config.scheduled_sampling * stage.progress.stage_step / stage.steps
            share = torch.full((), current, device=device)
        if self._sampling is None:
            return [(*pair, None, share) for pair in zip(images, data, strict=True)], None
        samples = [self._sample(*pair) for pair in zip(parts, images, strict=True)]
        counts = self._count([tokens for tokens, _, _ in samples])
        sampled = [Captions(tokens, counts, advantages) for tokens, advantages, _ in samples]
        total = torch.stack([reward for _, _, reward in samples]).sum()
        reward = total.to(device, non_blocking=True) / counts.captions
        return [(*part, share) for part in zip(images, data, sampled, strict=True)], reward

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
            options = inspect.signature(DistributedDataParallel).parameters
            name = "forward_sync_buffers"
            buffers: dict[str, Any] = {name if name in options else "broadcast_buffers": False}
            loss = DistributedDataParallel(loss, gradient_as_bucket_view=True, **buffers)
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
        vocabulary: Vocabulary,
        transform: Transform,
        dense: bool = False,
    ) -> None:
        super().__init__()
        self.model, self.objectives, self.transform = model, dict(objectives), transform
        self.dense = dense
        self._uses_references = any(objective.uses_references for objective in objectives.values())
        self.never: Tensor
        self.register_buffer(
            "never", torch.tensor([*vocabulary.never_generated, END]), persistent=False
        )

    def forward(
        self, images: Tensor, data: Captions, sampled: Captions | None, share: Tensor | None
    ) -> dict[str, Tensor]:
        """Return the loss of the data's captions, of sampled captions, or of both.

        Args:
            images: pixels (B, 3, S, S) uint8, or grids (B, L, D), on the device.
            data: captions of the data.
            sampled: captions that the model sampled, in a self-critical stage.
            share: scalar, the share of input words to replace by predictions; None: no words.

        Returns:
            `loss`, its terms `loss/NAME`, and `cross_entropy` in nats per token: of the data's
            captions if an objective reads them, else of the sampled ones.
        """
        features = self.encode(images)
        if sampled is None:
            output = reference_output = self.force(features, data, share)
        else:
            output = reference_output = self.force(features, sampled, None)
            if self._uses_references:
                reference_output = self.force(features, data, None)
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

    def force(
        self, features: Tensor, captions: Captions, share: Tensor | None
    ) -> TeacherForcedOutput:
        """Run the decoder over captions with teacher forcing."""
        inputs = captions.tokens[..., :-1]
        if share is not None:
            inputs = self._mix(features, inputs, share)
        output = self.model.decoder(features, inputs)
        return TeacherForcedOutput(self.model.decoder, output, captions, dense=self.dense)

    @torch.no_grad()
    def _mix(self, features: Tensor, inputs: Tensor, share: Tensor) -> Tensor:
        """Replace a share of the words (B, K, T) by predictions.

        This is scheduled sampling (Bengio et al. 2015). All predictions come from one pass over the
        data's captions (Duckworth et al. 2019, "Parallel Scheduled Sampling"). <start>, <end> and
        <pad> are not replaced.
        """
        if inputs.shape[-1] < 2:
            return inputs
        before = self.model.decoder(features, inputs[..., :-1])
        logits = self.model.decoder.logits(before.deep).float()
        predicted = draw(logits.index_fill(-1, self.never, -torch.inf).softmax(dim=-1))
        chosen = torch.rand(predicted.shape, device=predicted.device) < share
        words = inputs[..., 1:]
        mixed = torch.where(chosen & (words != PAD) & (words != END), predicted, words)
        return torch.cat([inputs[..., :1], mixed], dim=-1)
