"""Backbones: networks cut into stages; the last stage returns a grid of features.

A backbone is a network without its pooling and classifier. Its name is one of

    efficientnet_v2_b0        defined here, in NETWORKS
    resnet50, swin_t, ...     a torchvision classification model of a class in FAMILIES
    timm/NAME                 a timm model with `features_only=True`

torchvision and timm are imported only for their own networks, because importing torchvision takes
longer than captioning a photo.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple, get_type_hints

import torch
from torch import Tensor, nn

from captioner.backbones.convolutions import convolutions, halve_stride
from captioner.backbones.efficientnet_v2 import efficientnet_v2_b0
from captioner.errors import CheckpointNotFoundError, ConfigError, MissingExtraError
from captioner.shared.paths import did_you_mean

_TIMM = "timm/"


class Stages(NamedTuple):
    """The stages of a backbone, and D, the number of features of a grid cell."""

    modules: nn.Sequential
    channels: int


NETWORKS: dict[str, Callable[[], nn.Sequential]] = {"efficientnet_v2_b0": efficientnet_v2_b0}
"""Networks defined in this package by name. Each function returns the stages."""


def name_problems(name: str) -> Iterator[str]:
    """Yield an error if no backbone has this name; `build_stages` checks the names of timm."""
    if not (name in NETWORKS or name.startswith(_TIMM) or name in (names := encoder_names())):
        yield (
            f"encoder name {name!r} is not a supported network of torchvision, timm/NAME or "
            f"{', '.join(NETWORKS)}{did_you_mean(name, names)}"
        )


def encoder_names() -> list[str]:
    """List the names of torchvision's networks in FAMILIES, and of NETWORKS."""
    from torchvision import models

    names = models.list_models(module=models)
    kinds = {name: get_type_hints(models.get_model_builder(name))["return"] for name in names}
    return sorted([*(name for name in names if kinds[name].__name__ in FAMILIES), *NETWORKS])


def build_stages(
    name: str, *, stride: int, last_stage: int | None = None, pretrained: bool = False
) -> Stages:
    """Build a backbone.

    Args:
        name: as the module's docstring describes.
        stride: pixels per cell of the grid.
        last_stage: the stage whose output is the grid; None: the network's last.
        pretrained: load the ImageNet weights of torchvision or timm, downloaded once.

    Raises:
        ConfigError: no such network or stage, an impossible stride, or no pretrained weights.
        CheckpointNotFoundError: the pretrained weights cannot be downloaded.
        MissingExtraError: timm is not installed.
    """
    if name.startswith(_TIMM):
        return _timm_stages(name, stride, last_stage, pretrained)
    if name in NETWORKS:
        if pretrained:
            raise ConfigError(
                f"{name} has no pretrained weights to download: start from the encoder of a "
                "checkpoint, or from a safetensors file of the network"
            )
        stages, dilates = NETWORKS[name](), True
    else:
        from torchvision import models

        with _downloads(name) if pretrained else nullcontext():
            network = models.get_model(name, weights="DEFAULT" if pretrained else None)
        kind = type(network).__name__
        stages, dilates = FAMILIES[kind](network), kind not in _NOT_DILATED
    if last_stage is not None:
        if last_stage >= len(stages):
            raise no_stage(name, last_stage, len(stages))
        stages = stages[: last_stage + 1]
    own_stride, channels = _chain(stages) if name in NETWORKS else _measured(stages)
    if dilates and 2 * stride == own_stride:
        halve_stride(stages)
    elif stride != own_stride:
        also = f", or {own_stride // 2} with dilation" if dilates else ""
        raise ConfigError(
            f"encoder stride {stride} is impossible: {name} up to stage {len(stages) - 1} has a "
            f"stride of {own_stride}{also}"
        )
    return Stages(stages, channels)


def no_stage(name: str, stage: int, count: int) -> ConfigError:
    """Return the error for a stage that a network does not have."""
    return ConfigError(f"{name} has the stages 0 to {count - 1}; there is no {stage}")


def _chain(stages: nn.Sequential) -> tuple[int, int]:
    """Return pixels per cell, and D, of stages that are a chain of convolutions.

    Unlike `_measured`, it does not import torch._dynamo, which is slow.
    """
    layers = [conv for _, _, conv in convolutions(stages)]
    return math.prod(conv.stride[0] for conv in layers), layers[-1].out_channels


def _measured(stages: nn.Sequential) -> tuple[int, int]:
    """Return pixels per cell, and D, from a forward pass on the meta device."""
    size = 256  # pixels
    with torch.no_grad():
        square = torch.empty(1, 3, size, size, device="meta")
        maps = copy.deepcopy(stages).to("meta").eval()(square)
    return size // maps.shape[2], maps.shape[1]


@contextmanager
def _downloads(name: str) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:  # URLError, HTTPError, or a hash that does not match
        raise CheckpointNotFoundError(
            f"the pretrained weights of {name} cannot be downloaded ({error}): check the network, "
            "or put the file into the folder of torch's hub (TORCH_HOME) or timm's (HF_HOME)"
        ) from error


def _features(network: Any) -> nn.Sequential:
    return nn.Sequential(*network.features)


FAMILIES: dict[str, Callable[[Any], nn.Sequential]] = {
    "ConvNeXt": _features,
    "EfficientNet": _features,
    "MobileNetV2": _features,
    "MobileNetV3": _features,
    "RegNet": lambda network: nn.Sequential(network.stem, *network.trunk_output),
    "ResNet": lambda network: nn.Sequential(
        nn.Sequential(network.conv1, network.bn1, network.relu, network.maxpool),
        network.layer1, network.layer2, network.layer3, network.layer4,
    ),
    "SwinTransformer": lambda network: nn.Sequential(
        nn.Sequential(network.features, network.norm, network.permute)
    ),
    "VGG": _features,
}  # fmt: skip
"""How torchvision's networks are cut into stages, by the name of their class. The last stage gives
maps (B, D, rows, columns)."""
_NOT_DILATED = {"SwinTransformer", "VGG"}  # their last halving is not a strided convolution


class _Timm(nn.Module):
    """A timm model that returns its last feature maps."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.network(images)[-1]
        last = getattr(self.network, "output_fmt", "NCHW") == "NHWC"
        return maps.permute(0, 3, 1, 2) if last else maps


def _timm_stages(full_name: str, stride: int, last_stage: int | None, pretrained: bool) -> Stages:
    """Build a timm model as a single stage."""
    try:
        import timm
    except ImportError as error:
        raise MissingExtraError(f"the encoder {full_name}", "timm") from error
    name = full_name.removeprefix(_TIMM)
    # A checkpoint may carry any name, and timm would download names such as hf-hub:USER/MODEL.
    if not (re.fullmatch(r"[\w.]+", name) and timm.is_model(name)):
        raise ConfigError(f"timm has no model {name!r}{did_you_mean(name, timm.list_models())}")
    settings: dict[str, Any] = {} if last_stage is None else {"out_indices": (last_stage,)}
    make = partial(timm.create_model, name, pretrained=pretrained, features_only=True, **settings)
    with _downloads(full_name) if pretrained else nullcontext():
        try:
            network: Any = make()
            if network.feature_info.reduction()[-1] != stride:
                network = make(output_stride=stride)
            channels = network.feature_info.channels()[-1]
        except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise ConfigError(
                f"timm cannot build {name} with stride {stride} and last_stage {last_stage} "
                f"({type(error).__name__}: {error})"
            ) from error
    return Stages(nn.Sequential(_Timm(network)), channels)
