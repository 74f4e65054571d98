"""The encoder: a network that turns an image into a grid of features (Xu et al. 2015, 3.1.1).

The network has no pooling and no classifier, so each cell of the grid describes one place of the
image. captioner.backbones.networks lists the networks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from captioner.backbones.networks import build_stages, name_problems, no_stage
from captioner.errors import ConfigError
from captioner.shared.settings import EXPLAINED, Positive, check_bounds

# The attribute with the probability of stochastic depth, by class name.
_STOCHASTIC_DEPTH = {"StochasticDepth": "p", "DropPath": "drop_prob"}


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """The network and the grid's resolution.

    Raises ConfigError: values are out of range; the message names each.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = EXPLAINED

    name: str = "resnet101"
    """The name of the network; see captioner.backbones.networks."""
    stride: Positive = 32
    """Pixels per cell: 32 for most networks; 16 gives four times the cells."""
    last_stage: Annotated[int, Ge(0)] | None = None
    """The stage whose output is the grid; None: the last. Early stages have small receptive
    fields."""
    coordinates: bool = False
    """Whether x and y are added to each cell's features, for early stages."""

    def __post_init__(self) -> None:
        check_bounds(self, also=name_problems(self.name))


class Grid(NamedTuple):
    """The features (B, L, D) of B images, row by row; L = rows * columns."""

    features: Tensor
    rows: int
    columns: int


class Encoder(nn.Module):
    """A network whose output is a grid of features.

    `pretrained` starts from the ImageNet weights of torchvision or timm, downloaded once.

    Raises ConfigError, CheckpointNotFoundError or MissingExtraError; see
    captioner.backbones.networks.build_stages.
    """

    def __init__(self, config: EncoderConfig, *, pretrained: bool = False) -> None:
        super().__init__()
        self.config = config
        self.stages, self._channels = build_stages(
            config.name, stride=config.stride, last_stage=config.last_stage, pretrained=pretrained
        )
        self._first_trained = len(self.stages)

    def forward(self, images: Tensor) -> Grid:
        """Encode normalised images (B, 3, H, W) into a grid of H / stride x W / stride cells.

        Raises ConfigError: the network needs images of another size, as many transformers do.
        """
        maps = images
        try:
            for index, stage in enumerate(self.stages):
                trained = index >= self._first_trained
                # Frozen stages store no activations.
                with torch.set_grad_enabled(torch.is_grad_enabled() and trained):
                    maps = stage(maps)
        except AssertionError as error:
            raise ConfigError(
                f"{self.config.name} cannot take images of {tuple(images.shape[2:])} pixels "
                f"({str(error).rstrip('.')}): set transform.size"
            ) from error
        rows, columns = maps.shape[-2:]
        if self.config.coordinates:
            maps = torch.cat([maps, _coordinates(maps).expand(maps.shape[0], -1, -1, -1)], dim=1)
        return Grid(maps.flatten(2).transpose(1, 2), rows, columns)

    def channels(self) -> int:
        """Return D, the number of features of a cell."""
        return self._channels + (2 if self.config.coordinates else 0)

    def fine_tune(self, *, from_stage: int | None) -> None:
        """Train the stages from `from_stage` on and freeze the earlier ones; None freezes all."""
        count = len(self.stages)
        if from_stage is not None and not 0 <= from_stage < count:
            raise no_stage(self.config.name, from_stage, count)
        self._first_trained = count if from_stage is None else from_stage
        for index, stage in enumerate(self.stages):
            trained = index >= self._first_trained
            stage.requires_grad_(trained)
            for module in stage.modules():
                if trained and isinstance(module, nn.SiLU | nn.Hardswish):
                    module.inplace = False  # autograd would copy the input, which backward needs
        self.train(self.training)

    def set_stochastic_depth(self, probability: float) -> None:
        """Set the probability with which a block is skipped in training (Huang et al. 2016).

        Raises ConfigError: the network has no such layers.
        """
        layers = [part for part in self.modules() if type(part).__name__ in _STOCHASTIC_DEPTH]
        for layer in layers:
            setattr(layer, _STOCHASTIC_DEPTH[type(layer).__name__], probability)
        if not layers and probability > 0:
            raise ConfigError(
                f"stochastic_depth is {probability}, but {self.config.name} has no layers that can "
                "be skipped: set it to null, or choose an encoder such as efficientnet_v2_b0"
            )

    def train(self, mode: bool = True) -> Encoder:
        """Set training mode, except for frozen stages and for the statistics of BatchNorm.

        Batches of fine-tuning are too small for better statistics; scale and shift are trained.
        """
        super().train(mode)
        for index, stage in enumerate(self.stages):
            stage.train(mode and index >= self._first_trained)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return self


_Module = TypeVar("_Module", bound=nn.Module)


class _EmptyOnMeta(TorchFunctionMode):
    """Allocates no weights: torch.empty, from which layers make theirs, uses the meta device.

    Networks may compute with other tensors. normal_() would import torch._dynamo (slow).
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (nn.init.normal_, Tensor.normal_):
            return kwargs.get("tensor", *args[:1])
        return func(*args, **(kwargs | {"device": "meta"} if func is torch.empty else kwargs))


def without_weights(make: Callable[[], _Module]) -> _Module:
    """Build a module without allocating its weights; its buffers may be allocated."""
    with torch.random.fork_rng(devices=[]), _EmptyOnMeta():
        return make()


def _coordinates(maps: Tensor) -> Tensor:
    """Return x and y of the cells' centres: (2, rows, columns) (CoordConv, Liu et al. 2018)."""
    rows, columns = maps.shape[-2:]
    limit = 3.0  # like most features
    # Computed on the device: a copy would make a GPU wait.
    y, x = (
        (torch.arange(count, device=maps.device) + 0.5) * (2 * limit / count) - limit
        for count in (rows, columns)
    )
    return torch.stack([x.expand(rows, -1), y.unsqueeze(1).expand(-1, columns)]).to(maps.dtype)
