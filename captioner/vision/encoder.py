"""The encoder: a network that turns an image into a grid of features (Xu et al. 2015, 3.1.1).

Every network is a sequence of stages without its pooling and classifier, so that each cell of the
grid comes from its own place in the image. A name is one of

    resnet50, vit_b_16, ...   torchvision's classification models; FAMILIES says how each is cut
    efficientnet_v2_b0, ...   our own; NETWORKS has what makes their stages
    timm/NAME                 timm's models with `features_only=True`, where timm is installed
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Annotated, Any, ClassVar, Final, NamedTuple, TypeVar, cast

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.func import functional_call
from torchvision import models

from captioner.errors import CheckpointNotFoundError, ConfigError, MissingExtraError
from captioner.paths import did_you_mean
from captioner.vision.bounds import EXPLAINED, Positive, check_bounds
from captioner.vision.convolutions import (
    SameConv2d,
    convolutions,
    fold_batch_norm,
    fuse_silu,
    halve_stride,
)

__all__ = [
    "FAMILIES",
    "NETWORKS",
    "Encoder",
    "EncoderConfig",
    "Family",
    "Grid",
    "encoder_names",
    "prepare_encoder",
    "without_weights",
]

_REACH = 3.0  # x and y go from -3 to 3, so that a cell's place counts as its features do
_TIMM: Final = "timm/"


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Which network, and how fine a grid.

    Raises ConfigError: a value cannot work; the detail names every such field.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = EXPLAINED

    name: str = "resnet101"
    """The usual choice for COCO."""
    stride: Positive = 32
    """Pixels a cell: 32 is most networks' own; 16 gives four times the cells."""
    last_stage: Annotated[int, Ge(0)] | None = None
    """The grid is its output: early cells know their own place only. None: the network's last."""
    coordinates: bool = False
    """Add x and y to each cell's features: an early stage has no idea."""

    def __post_init__(self) -> None:
        check_bounds(self, also=self._contradictions())

    def _contradictions(self) -> Iterator[str]:
        if not self.name.startswith(_TIMM) and self.name not in encoder_names():
            yield (
                f"encoder name {self.name!r} is none of torchvision's classification models, "
                f"timm/NAME and {', '.join(NETWORKS)}{did_you_mean(self.name, encoder_names())}"
            )


class Grid(NamedTuple):
    """The features (B, L, D) of B images, row by row; L = rows * columns."""

    features: Tensor
    rows: int
    columns: int


class Encoder(nn.Module):
    """A network whose last stage is a grid.

    Args:
        config: the network and its stride.
        pretrained: start from the ImageNet weights of torchvision or timm, downloaded once.

    Raises:
        ConfigError: there is no such network or stage, it cannot have that stride, or pretrained
            weights are asked for that nobody has.
        CheckpointNotFoundError: the pretrained weights cannot be downloaded.
        MissingExtraError: the network is timm's, which is not installed.
    """

    def __init__(self, config: EncoderConfig, *, pretrained: bool = False) -> None:
        super().__init__()
        self.config = config
        build = _timm if config.name.startswith(_TIMM) else _stages
        self.stages, self._channels = build(config, pretrained)
        self._first_trained = len(self.stages)

    def forward(self, images: Tensor) -> Grid:
        """Encode images (B, 3, H, W), normalised, into a grid of H / stride x W / stride cells.

        Raises ConfigError: the network takes images of another size only, as many transformers do.
        """
        maps = images
        for index, stage in enumerate(self.stages):
            # Below the first trained stage nothing needs a gradient, so nothing is kept for one.
            with torch.set_grad_enabled(torch.is_grad_enabled() and index >= self._first_trained):
                try:
                    maps = stage(maps)
                except AssertionError as error:
                    raise ConfigError(
                        f"{self.config.name} cannot take images of {tuple(images.shape[2:])} "
                        f"pixels ({str(error).rstrip('.')}): set transform.size"
                    ) from error
        rows, columns = maps.shape[-2:]
        if self.config.coordinates:
            places = _places(rows, columns).to(maps).expand(maps.shape[0], -1, -1, -1)
            maps = torch.cat([maps, places], dim=1)
        return Grid(maps.flatten(2).transpose(1, 2), rows, columns)

    def channels(self) -> int:
        """D, the number of features in a cell."""
        return self._channels + (2 if self.config.coordinates else 0)

    def fine_tune(self, *, from_stage: int | None) -> None:
        """Train the stages from `from_stage` on and freeze those before; None freezes all."""
        count = len(self.stages)
        if from_stage is not None and not 0 <= from_stage < count:
            raise _no_stage(self.config.name, from_stage, count)
        self._first_trained = count if from_stage is None else from_stage
        for index, stage in enumerate(self.stages):
            stage.requires_grad_(index >= self._first_trained)
        self.train(self.training)

    def train(self, mode: bool = True) -> Encoder:
        """Set training mode; frozen stages stay in evaluation mode, BatchNorm stays so everywhere.

        The batches of fine-tuning are too small and too alike to estimate better statistics than
        ImageNet's; scale and shift are trained.
        """
        super().train(mode)
        for index, stage in enumerate(self.stages):
            stage.train(mode and index >= self._first_trained)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return self


_Made = TypeVar("_Made", bound=nn.Module)


def without_weights(make: Callable[[], _Made]) -> _Made:
    """Make a module on the meta device, which takes neither time nor memory, where that works."""
    try:
        with torch.device("meta"):
            return make()
    except RuntimeError:  # a few networks compute with tensors while they are made
        return make()


def prepare_encoder(encoder: Encoder, *, device: torch.device, dtype: torch.dtype) -> Encoder:
    """Turn an encoder into one for use, which is folded and cannot be trained; it is used up."""
    ready = encoder.requires_grad_(False).float().eval()
    fold_batch_norm(ready)  # in float32, so that half precision rounds once, after it
    ready.to(device, dtype).to(memory_format=torch.channels_last)
    if device.type == "cpu" and dtype is torch.bfloat16:
        fuse_silu(ready)
    return ready


def _places(rows: int, columns: int) -> Tensor:
    """X and y of the cells' centres, (2, rows, columns) (CoordConv, Liu et al. 2018)."""
    y, x = ((torch.arange(n) + 0.5) * (2 * _REACH / n) - _REACH for n in (rows, columns))
    return torch.stack([x.expand(rows, -1), y.unsqueeze(1).expand(-1, columns)])


# --- torchvision, and our own ---------------------------------------------------------------------


@dataclass(frozen=True)
class Family:
    """How networks of one class become stages.

    cut: gives the stages of a network, whose last gives maps (B, D, rows, columns).
    dilates: whether dilation can undo its last halving, which is a strided convolution's.
    size: pixels of a square that it takes; many transformers take only one.
    """

    cut: Callable[[Any], nn.Sequential]
    dilates: bool = False
    size: int = 256


class _VisionTransformer(nn.Module):
    """Patches of an image that have read each other, without the class token."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.conv_proj, self.class_token = network.conv_proj, network.class_token
        self.encoder = network.encoder

    def forward(self, images: Tensor) -> Tensor:
        patches = self.conv_proj(images)
        first = self.class_token.expand(images.shape[0], -1, -1)
        tokens = torch.cat([first, patches.flatten(2).transpose(1, 2)], dim=1)
        torch._assert(tokens.shape[1] == self.encoder.pos_embedding.shape[1], "patches differ")
        read: Tensor = self.encoder(tokens)[:, 1:]
        return read.transpose(1, 2).reshape(patches.shape)


def _features(network: Any) -> nn.Sequential:
    return nn.Sequential(*network.features)


def _resnet(network: Any) -> nn.Sequential:
    stem = nn.Sequential(network.conv1, network.bn1, network.relu, network.maxpool)
    return nn.Sequential(stem, network.layer1, network.layer2, network.layer3, network.layer4)


def _inception(network: Any) -> nn.Sequential:
    """Take all parts before the pooling; pretrained ones want a mean and std of 0.5."""
    parts = dict(network.named_children())
    names = [name for name in parts if not name.lower().startswith("aux")]
    return nn.Sequential(*(parts[name] for name in names[: names.index("avgpool")]))


def _shufflenet(network: Any) -> nn.Sequential:
    stages = network.stage2, network.stage3, network.stage4
    return nn.Sequential(network.conv1, network.maxpool, *stages, network.conv5)


def _swin(network: Any) -> nn.Sequential:
    return nn.Sequential(nn.Sequential(network.features, network.norm, network.permute))


FAMILIES: dict[type[nn.Module], Family] = {
    models.AlexNet: Family(_features),
    models.ConvNeXt: Family(_features, dilates=True),
    models.DenseNet: Family(lambda network: nn.Sequential(*network.features, nn.ReLU())),
    models.EfficientNet: Family(_features, dilates=True),
    models.GoogLeNet: Family(_inception),
    models.Inception3: Family(_inception),
    models.MaxVit: Family(lambda network: nn.Sequential(network.stem, *network.blocks), size=224),
    models.MNASNet: Family(lambda network: network.layers, dilates=True),
    models.MobileNetV2: Family(_features, dilates=True),
    models.MobileNetV3: Family(_features, dilates=True),
    models.RegNet: Family(
        lambda network: nn.Sequential(network.stem, *network.trunk_output), dilates=True
    ),
    models.ResNet: Family(_resnet, dilates=True),
    models.ShuffleNetV2: Family(_shufflenet),
    models.SqueezeNet: Family(_features),
    models.SwinTransformer: Family(_swin),
    models.VGG: Family(_features),
    models.VisionTransformer: Family(
        lambda network: nn.Sequential(_VisionTransformer(network)), size=224
    ),
}
"""How torchvision's networks are cut into stages, by their class."""


def _efficientnet_v2_b0() -> nn.Module:
    """EfficientNetV2-B0 (Tan and Le 2021, as published in Keras) from torchvision's blocks."""
    efficientnet = models.efficientnet
    fused, mobile = efficientnet.FusedMBConvConfig, efficientnet.MBConvConfig
    settings = [
        fused(1, 3, 1, 32, 16, 1),
        fused(4, 3, 2, 16, 32, 2),
        fused(4, 3, 2, 32, 48, 2),
        mobile(4, 3, 2, 48, 96, 3),
        mobile(6, 3, 1, 96, 112, 5),
        mobile(6, 3, 2, 112, 192, 8),
    ]
    network: nn.Module = efficientnet.EfficientNet(
        settings,
        dropout=0.0,
        stochastic_depth_prob=0.1,  # half of torchvision's: fine-tuning is short
        last_channel=1280,
        norm_layer=partial(nn.BatchNorm2d, eps=1e-3),
    )
    for parent, name, conv in convolutions(network):
        if conv.stride == (2, 2):
            setattr(parent, name, SameConv2d(conv))
    return network


NETWORKS: dict[str, Callable[[], nn.Module]] = {"efficientnet_v2_b0": _efficientnet_v2_b0}
"""Our own networks by name: each is of a class that FAMILIES has."""


def encoder_names() -> list[str]:
    """The names of torchvision's networks and of our own."""
    return sorted([*models.list_models(module=models), *NETWORKS])


def _stages(config: EncoderConfig, pretrained: bool) -> tuple[nn.Sequential, int]:
    """Give the stages up to the grid, and its D."""
    network = _network(config.name, pretrained=pretrained)
    family = FAMILIES[type(network)]
    stages = family.cut(network)
    if config.last_stage is not None:
        if config.last_stage >= len(stages):
            raise _no_stage(config.name, config.last_stage, len(stages))
        stages = stages[: config.last_stage + 1]
    stride, channels = _measure(stages, family.size)
    if family.dilates and 2 * config.stride == stride:
        halve_stride(stages)
    elif config.stride != stride:
        also = f", and {stride // 2} by dilation" if family.dilates else ""
        raise ConfigError(
            f"encoder stride {config.stride} is impossible: {config.name} up to stage "
            f"{len(stages) - 1} has a stride of {stride}{also}"
        )
    return stages, channels


def _network(name: str, *, pretrained: bool) -> nn.Module:
    if name in NETWORKS:
        if pretrained:
            raise ConfigError(
                f"nobody has pretrained weights of {name}: start from the encoder inside a "
                "checkpoint, or from a safetensors file of the network"
            )
        return NETWORKS[name]()
    # Two would warn otherwise, and take a minute to draw weights that nobody keeps.
    quick = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    with _downloads(name) if pretrained else nullcontext():
        network: nn.Module = models.get_model(
            name, weights="DEFAULT" if pretrained else None, **quick
        )
    return network


@contextmanager
def _downloads(name: str) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:  # URLError, HTTPError, or a hash that does not match
        raise CheckpointNotFoundError(
            f"the pretrained weights of {name} cannot be downloaded ({error}): check the network, "
            "or put the file into the folder of torch's hub (TORCH_HOME) or timm's (HF_HOME)"
        ) from error


def _measure(stages: nn.Sequential, size: int) -> tuple[int, int]:
    """Find pixels a cell, and D, from a square of that size, without computing anything."""
    parts = chain(stages.named_parameters(), stages.named_buffers())
    weights = {name: part.to("meta") for name, part in parts}
    with torch.no_grad():
        square = torch.empty(1, 3, size, size, device="meta")
        maps = cast(Tensor, functional_call(stages.eval(), weights, square))
    stages.train()
    channels, rows = maps.shape[1:3]
    # Some lose cells at the edge: theirs is a power of 2.
    return size // rows if size % rows == 0 else 2 ** round(math.log2(size / rows)), channels


def _no_stage(name: str, stage: int, count: int) -> ConfigError:
    return ConfigError(f"{name} has the stages 0 to {count - 1}; there is no {stage}")


# --- timm -----------------------------------------------------------------------------------------


class _Timm(nn.Module):
    """The last feature maps of a timm model."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.network(images)[-1]
        last = getattr(self.network, "output_fmt", "NCHW") == "NHWC"
        return maps.permute(0, 3, 1, 2) if last else maps


def _timm(config: EncoderConfig, pretrained: bool) -> tuple[nn.Sequential, int]:
    """Give one of timm's models as a single stage, and the D of its grid."""
    try:
        import timm
    except ImportError as error:
        raise MissingExtraError(f"the encoder {config.name}", "timm") from error
    name = config.name.removeprefix(_TIMM)
    # A checkpoint may name anything, and timm would follow names such as hf-hub:SOMEBODY/MODEL.
    if not (re.fullmatch(r"[\w.]+", name) and timm.is_model(name)):
        raise ConfigError(f"timm has no model {name!r}{did_you_mean(name, timm.list_models())}")

    def make(**settings: Any) -> tuple[Any, int, int]:
        if config.last_stage is not None:
            settings["out_indices"] = (config.last_stage,)
        network: Any = timm.create_model(
            name, pretrained=pretrained, features_only=True, **settings
        )
        features = network.feature_info
        return network, features.reduction()[-1], features.channels()[-1]

    with _downloads(config.name) if pretrained else nullcontext():
        try:
            network, stride, channels = make()
            if stride != config.stride:
                network, stride, channels = make(output_stride=config.stride)
        except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise ConfigError(
                f"timm cannot make {name} with stride {config.stride} and last_stage "
                f"{config.last_stage} ({type(error).__name__}: {error})"
            ) from error
    return nn.Sequential(_Timm(network)), channels
