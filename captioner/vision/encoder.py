"""The encoder: a CNN that turns an image into a grid of features (Xu et al. 2015, section 3.1.1).

Every backbone is a sequence of stages without its pooling and classifier, so that each cell of the
grid comes from its own place in the image. A name is torchvision's own ("resnet101",
"convnext_tiny", ...) or "efficientnet_v2_b0".
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F

from captioner.errors import CheckpointNotFoundError, ConfigError
from captioner.vision.backbones import EncoderConfig, backbones

__all__ = ["Encoder", "EncoderConfig", "Grid", "SameConv2d", "backbones"]

_REACH = (
    3.0  # of coordinates: x and y go from -3 to 3, so that a cell's place counts as features do
)


class Grid(NamedTuple):
    """The features of a batch of images, row-major over the image.

    features: (B, L, D) with L = rows * columns.
    """

    features: Tensor
    rows: int
    columns: int


class Encoder(nn.Module):
    """A CNN whose last stage is a grid.

    Args:
        config: the backbone and its stride.
        pretrained: start from torchvision's default ImageNet weights (downloaded once by
            torchvision). The weights of "efficientnet_v2_b0" do not come from torchvision.

    Raises:
        ConfigError: pretrained weights asked for a backbone that torchvision has none for, or its
            last stage cannot have that stride.
        CheckpointNotFoundError: the pretrained weights cannot be downloaded.

    """

    def __init__(self, config: EncoderConfig, *, pretrained: bool = False) -> None:
        super().__init__()
        self.config = config
        self.stages = _build_stages(config.name, pretrained=pretrained)
        if config.last_stage is not None:
            self.stages = self.stages[: config.last_stage + 1]
        self._first_trained = len(self.stages)
        own = self._own_stride()
        if 2 * config.stride == own:
            _halve_stride(self.stages)
        elif config.stride != own:
            raise ConfigError(
                f"encoder stride {config.stride} is impossible: {config.name} up to stage "
                f"{config.last_stage} has a stride of {own}, and {own // 2} by dilation"
            )

    def forward(self, images: Tensor) -> Grid:
        """Encode images (B, 3, H, W), normalised, into a grid of H / stride x W / stride cells."""
        maps = images
        for index, stage in enumerate(self.stages):
            # Below the first trained stage nothing needs a gradient, so nothing is kept for one.
            with torch.set_grad_enabled(torch.is_grad_enabled() and index >= self._first_trained):
                maps = stage(maps)
        rows, columns = maps.shape[-2:]
        if self.config.coordinates:
            places = _places(rows, columns).to(maps).expand(len(maps), -1, -1, -1)
            maps = torch.cat([maps, places], dim=1)
        return Grid(maps.flatten(2).transpose(1, 2), rows, columns)

    def channels(self) -> int:
        """D, the number of features in a cell."""
        # In every family a stage ends with a convolution, or keeps the channels of its last one.
        *_, last = (module for module in self.stages.modules() if isinstance(module, nn.Conv2d))
        return last.out_channels + (2 if self.config.coordinates else 0)

    def fine_tune(self, *, from_stage: int | None) -> None:
        """Train the stages from `from_stage` on and freeze those before; None freezes all.

        Raises:
            ConfigError: there is no such stage.

        """
        if from_stage is not None:
            self._check_stage(from_stage)
        self._first_trained = len(self.stages) if from_stage is None else from_stage
        for index, stage in enumerate(self.stages):
            stage.requires_grad_(index >= self._first_trained)
        self.train(self.training)

    def train(self, mode: bool = True) -> Encoder:
        """Set training mode; frozen stages stay in evaluation mode, BatchNorm stays so everywhere.

        The batches of fine-tuning are too small and too alike to estimate statistics better than
        ImageNet did, so a fine-tuned stage keeps its running statistics too (its scale and shift
        are trained).
        """
        super().train(mode)
        for index, stage in enumerate(self.stages):
            stage.train(mode and index >= self._first_trained)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return self

    def _own_stride(self) -> int:
        """Pixels a cell before any dilation."""
        if self.config.last_stage is None:
            return 32
        with torch.no_grad():
            rows = Encoder.forward(self.eval(), torch.zeros(1, 3, 64, 64)).rows
        self.train()
        return 64 // rows

    def _check_stage(self, stage: int) -> None:
        if not 0 <= stage < len(self.stages):
            raise ConfigError(
                f"{self.config.name} has the stages 0 to {len(self.stages) - 1}; "
                f"there is no {stage}"
            )


def _places(rows: int, columns: int) -> Tensor:
    """X and y of the cells' centres, (2, rows, columns) (CoordConv, Liu et al. 2018)."""
    y, x = ((torch.arange(n) + 0.5) * (2 * _REACH / n) - _REACH for n in (rows, columns))
    return torch.stack([x.expand(rows, -1), y.unsqueeze(1).expand(-1, columns)])


def _build_stages(name: str, *, pretrained: bool) -> nn.Sequential:
    if name == "efficientnet_v2_b0":
        if pretrained:
            raise ConfigError(
                "torchvision has no weights for efficientnet_v2_b0: start from the encoder inside "
                "a checkpoint, or from a safetensors file of the backbone"
            )
        return _efficientnet_v2_b0()
    try:
        model = torchvision.models.get_model(name, weights="DEFAULT" if pretrained else None)
    except (OSError, RuntimeError) as error:  # URLError, HTTPError, or a hash that does not match
        raise CheckpointNotFoundError(
            f"the pretrained weights of {name} cannot be downloaded by torchvision ({error}): "
            "check the network, or put the file into torch's hub folder (TORCH_HOME)"
        ) from error
    if isinstance(model, torchvision.models.ResNet):
        stem = nn.Sequential(model.conv1, model.bn1, model.relu, model.maxpool)
        return nn.Sequential(stem, model.layer1, model.layer2, model.layer3, model.layer4)
    features = model.features
    return features if isinstance(features, nn.Sequential) else nn.Sequential(features)


def _efficientnet_v2_b0() -> nn.Sequential:
    """EfficientNetV2-B0 (Tan and Le 2021, as published in Keras) from torchvision's blocks."""
    efficientnet = torchvision.models.efficientnet
    fused, mobile = efficientnet.FusedMBConvConfig, efficientnet.MBConvConfig
    settings = [
        fused(1, 3, 1, 32, 16, 1),
        fused(4, 3, 2, 16, 32, 2),
        fused(4, 3, 2, 32, 48, 2),
        mobile(4, 3, 2, 48, 96, 3),
        mobile(6, 3, 1, 96, 112, 5),
        mobile(6, 3, 2, 112, 192, 8),
    ]
    features: nn.Sequential = efficientnet.EfficientNet(
        settings,
        dropout=0.0,
        stochastic_depth_prob=0.1,  # half of torchvision's: fine-tuning is short
        last_channel=1280,
        norm_layer=partial(nn.BatchNorm2d, eps=1e-3),
    ).features
    for parent, name, conv in _convolutions(features):
        if conv.stride == (2, 2):
            setattr(parent, name, SameConv2d(conv))
    return features


def _convolutions(root: nn.Module) -> list[tuple[nn.Module, str, nn.Conv2d]]:
    """Every convolution below `root` in forward order, with the module that holds it."""
    return [
        (parent, name, child)
        for parent in root.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.Conv2d)
    ]


class SameConv2d(nn.Conv2d):
    """A strided convolution padded as TensorFlow's SAME: the odd pixel goes right and bottom.

    With torch's symmetric padding, weights trained in TensorFlow see every stride-2 layer shifted
    by a pixel. Takes over the parameters of `conv`.
    """

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__(
            conv.in_channels,
            conv.out_channels,
            _pair(conv.kernel_size),
            _pair(conv.stride),
            groups=conv.groups,
            bias=conv.bias is not None,
        )
        self.weight, self.bias = conv.weight, conv.bias
        self.sampling = conv.stride[0]  # what the padding is computed for, also once unstrided

    def forward(self, input: Tensor) -> Tensor:
        """Pad (B, C, H, W) by what its own size needs, then convolve."""
        return super().forward(self.pad(input))

    def pad(self, maps: Tensor) -> Tensor:
        """Pad (B, C, H, W) by what its own size needs."""
        top, bottom = self._padding(maps.shape[-2])
        left, right = self._padding(maps.shape[-1])
        return F.pad(maps, (left, right, top, bottom))

    def _padding(self, size: int) -> tuple[int, int]:
        reach = self.kernel_size[0] - 1
        total = max((math.ceil(size / self.sampling) - 1) * self.sampling + reach + 1 - size, 0)
        before = total // 2
        # Unstrided, the same taps start at every pixel: as many outputs as inputs.
        return before, (total if self.stride[0] > 1 else reach) - before


def _halve_stride(stages: nn.Sequential) -> None:
    """Undo the last halving of the resolution and dilate what follows (Yu and Koltun 2016).

    Every second cell in both directions then sees what the strided network sees there.
    """
    strided = [
        index
        for index, stage in enumerate(stages)
        if any(conv.stride[0] == 2 for _, _, conv in _convolutions(stage))
    ]
    if not strided:  # ConvNeXt's first stages: patches of 4 pixels
        raise ConfigError("the encoder's stride cannot be halved: none of its stages halves")
    passed = False
    for parent, name, conv in _convolutions(stages[strided[-1] :]):
        size = conv.kernel_size[0]
        if conv.stride[0] == 2:
            passed = True
            if not isinstance(conv, SameConv2d) and 2 * int(conv.padding[0]) != size - 1:
                conv = SameConv2d(conv)
                setattr(parent, name, conv)
            conv.stride = (1, 1)
        elif passed and size > 1:
            conv.dilation = (2, 2)
            conv.padding = (size - 1, size - 1)


def _pair(sizes: tuple[int, ...]) -> tuple[int, int]:
    return sizes[0], sizes[1]
