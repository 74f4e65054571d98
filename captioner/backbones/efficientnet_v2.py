"""EfficientNetV2-B0 (Tan and Le 2021), as published in Keras.

Parameters are named as in torchvision's EfficientNet, because earlier checkpoints used its blocks.
Strided convolutions pad as in TensorFlow, because the ImageNet weights were trained there.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from captioner.backbones.convolutions import SameConv2d

_EPSILON = 1e-3  # of BatchNorm, as in Keras
_DROPPED = 0.1  # drop rate of the last block; half the usual rate, because fine-tuning is short


class _Stage(NamedTuple):
    """A row of table 4. A fused stage has no depthwise convolution and no squeeze-excitation."""

    fused: bool
    expansion: int
    stride: int
    channels: int
    blocks: int


_STEM, _HEAD = 32, 1280
_STAGES = (
    _Stage(fused=True, expansion=1, stride=1, channels=16, blocks=1),
    _Stage(fused=True, expansion=4, stride=2, channels=32, blocks=2),
    _Stage(fused=True, expansion=4, stride=2, channels=48, blocks=2),
    _Stage(fused=False, expansion=4, stride=2, channels=96, blocks=3),
    _Stage(fused=False, expansion=6, stride=1, channels=112, blocks=5),
    _Stage(fused=False, expansion=6, stride=2, channels=192, blocks=8),
)


class StochasticDepth(nn.Module):
    """Zero whole images of a batch with probability `p` in training (Huang et al. 2016)."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, maps: Tensor) -> Tensor:
        """Drop images of (B, C, H, W); scale the others by 1 / (1 - p)."""
        if not self.training or self.p == 0:
            return maps
        kept = 1 - self.p
        return maps * maps.new_empty(len(maps), 1, 1, 1).bernoulli_(kept).div_(kept)


class _SqueezeExcitation(nn.Module):
    """Scale each channel by a gate computed from the means of all channels (Hu et al. 2018)."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.activation = nn.SiLU(inplace=True)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)

    def forward(self, maps: Tensor) -> Tensor:
        means = nn.functional.adaptive_avg_pool2d(maps, 1)
        return torch.sigmoid(self.fc2(self.activation(self.fc1(means)))) * maps


class _Block(nn.Module):
    """An inverted residual block: expand, convolve, project; with a shortcut where shapes match."""

    def __init__(self, stage: _Stage, inputs: int, stride: int, dropped: float) -> None:
        super().__init__()
        inner, outputs = inputs * stage.expansion, stage.channels
        if stage.expansion == 1:
            layers = [_convolution(inputs, outputs, 3, stride)]
        elif stage.fused:
            layers = [_convolution(inputs, inner, 3, stride)]
            layers.append(_convolution(inner, outputs, 1, activate=False))
        else:
            layers = [
                _convolution(inputs, inner, 1),
                _convolution(inner, inner, 3, stride, groups=inner),
                _SqueezeExcitation(inner, inputs // 4),
                _convolution(inner, outputs, 1, activate=False),
            ]
        self.block = nn.Sequential(*layers)
        self.has_shortcut = stride == 1 and inputs == outputs
        if self.has_shortcut:
            self.stochastic_depth = StochasticDepth(dropped)

    def forward(self, maps: Tensor) -> Tensor:
        result: Tensor = self.block(maps)
        if self.has_shortcut:
            result = self.stochastic_depth(result)
            result += maps
        return result


def _convolution(
    inputs: int, outputs: int, size: int, stride: int = 1, *, groups: int = 1, activate: bool = True
) -> nn.Module:
    """Build convolution, BatchNorm and SiLU."""
    conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out")
    layers = [SameConv2d(conv) if stride > 1 else conv, nn.BatchNorm2d(outputs, eps=_EPSILON)]
    return nn.Sequential(*layers, *([nn.SiLU(inplace=True)] if activate else []))


def efficientnet_v2_b0() -> nn.Sequential:
    """Build the stages 0 to 7: stem, six stages of blocks, and the last convolution.

    Images (B, 3, H, W) become maps (B, 1280, H / 32, W / 32).
    """
    stages = [_convolution(3, _STEM, 3, 2)]
    count, index, channels = sum(stage.blocks for stage in _STAGES), 0, _STEM
    for stage in _STAGES:
        blocks = []
        for number in range(stage.blocks):
            stride = stage.stride if number == 0 else 1
            blocks.append(_Block(stage, channels, stride, _DROPPED * index / count))
            channels, index = stage.channels, index + 1
        stages.append(nn.Sequential(*blocks))
    return nn.Sequential(*stages, _convolution(channels, _HEAD, 1))
