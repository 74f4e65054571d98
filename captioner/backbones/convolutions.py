"""Convolutions: TensorFlow's padding, dilation instead of a stride, and fusion for inference.

For inference BatchNorm is a fixed scale and shift per channel (Ioffe and Szegedy 2015, section 3.1)
and is folded into the convolution before it. In bfloat16 on a CPU a SiLU after it is fused too.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from captioner.errors import ConfigError

_OPERATION = "_convolution_pointwise"  # oneDNN's fused operation


class SameConv2d(nn.Conv2d):
    """A strided convolution with TensorFlow's SAME padding.

    If the padding is odd, the extra pixel is added at the right or at the bottom. Weights trained
    in TensorFlow need this; torch's symmetric padding shifts every stride-2 layer by a pixel.

    Args:
        conv: the convolution to replace; its parameters are shared.
    """

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__(
            conv.in_channels,
            conv.out_channels,
            cast(tuple[int, int], conv.kernel_size),
            cast(tuple[int, int], conv.stride),
            groups=conv.groups,
            bias=conv.bias is not None,
        )
        self.weight, self.bias = conv.weight, conv.bias
        self.sampling = conv.stride[0]  # the stride before `halve_stride`

    def forward(self, input: Tensor) -> Tensor:
        """Pad, then convolve."""
        return super().forward(self.pad(input))

    def pad(self, maps: Tensor) -> Tensor:
        """Pad maps (B, C, H, W)."""
        top, bottom = self._padding(maps.shape[-2])
        left, right = self._padding(maps.shape[-1])
        return F.pad(maps, (left, right, top, bottom))

    def _padding(self, size: int) -> tuple[int, int]:
        reach = self.kernel_size[0] - 1
        total = max((math.ceil(size / self.sampling) - 1) * self.sampling + reach + 1 - size, 0)
        before = total // 2
        # With a halved stride there are as many outputs as inputs.
        return before, (total if self.stride[0] > 1 else reach) - before


def convolutions(root: nn.Module) -> list[tuple[nn.Module, str, nn.Conv2d]]:
    """Return all convolutions below `root` in forward order: (parent, name, convolution)."""
    return [
        (parent, name, child)
        for parent in root.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.Conv2d)
    ]


def halve_stride(stages: nn.Sequential) -> None:
    """Undo the last halving of the resolution and dilate later layers (Yu and Koltun 2016).

    Every second cell in both directions then equals a cell of the strided network.

    Raises ConfigError: no convolution has a stride of 2.
    """
    strided = [
        index
        for index, stage in enumerate(stages)
        if any(conv.stride[0] == 2 for _, _, conv in convolutions(stage))
    ]
    if not strided:  # ConvNeXt's first stages: patches of 4 pixels
        raise ConfigError(
            "the encoder's stride cannot be halved: none of its stages has a stride of 2"
        )
    passed = False
    for parent, name, conv in convolutions(stages[strided[-1] :]):
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


def fold_batch_norm(root: nn.Module) -> None:
    """Fold every BatchNorm that follows a convolution into the convolution, for inference only.

    A BatchNorm follows a convolution if it is next in a Sequential, or if it is named as in
    torchvision, such as bn1 after conv1. Call it in float32, so that half precision rounds once.
    """
    for module in list(root.modules()):
        for (conv_name, conv), (norm_name, norm) in pairwise(module.named_children()):
            follows = isinstance(module, nn.Sequential) or (
                conv_name.startswith("conv") and norm_name == conv_name.replace("conv", "bn", 1)
            )
            # Not subclasses: timm's BatchNorms include an activation.
            if follows and isinstance(conv, nn.Conv2d) and type(norm) is nn.BatchNorm2d:
                setattr(module, conv_name, fuse_conv_bn_eval(conv, norm))
                setattr(module, norm_name, nn.Identity())


def can_fuse() -> bool:
    """Whether torch has oneDNN with bfloat16 for this processor."""
    operations = torch.ops.mkldnn
    return hasattr(operations, _OPERATION) and bool(operations._is_mkldnn_bf16_supported())


def fuse_silu(root: nn.Module) -> None:
    """Fuse every SiLU of a Sequential with the convolution before it, for inference only.

    Does nothing without oneDNN's bfloat16.
    """
    if not can_fuse():
        return
    for module in list(root.modules()):
        if not isinstance(module, nn.Sequential):
            continue
        children = module.named_children()
        layers = [(name, child) for name, child in children if not isinstance(child, nn.Identity)]
        for (name, child), (next_name, following) in pairwise(layers):
            if not (isinstance(child, nn.Conv2d) and isinstance(following, nn.SiLU)):
                continue
            if child.padding_mode == "zeros" and isinstance(child.padding, tuple):
                setattr(module, name, _ConvSiLU(child))
                setattr(module, next_name, nn.Identity())


class _ConvSiLU(nn.Module):
    """A convolution and SiLU, x * sigmoid(x), in one operation; shares the parameters of `conv`."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, maps: Tensor) -> Tensor:
        conv = self.conv
        if isinstance(conv, SameConv2d):
            maps = conv.pad(maps)
        sizes = conv.padding, conv.stride, conv.dilation, conv.groups
        operation = getattr(torch.ops.mkldnn, _OPERATION)
        return cast(Tensor, operation(maps, conv.weight, conv.bias, *sizes, "swish", [], ""))
