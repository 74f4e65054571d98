"""Convolutions padded as TensorFlow does, dilated in place of a stride, and made cheap for use.

For use, BatchNorm is a fixed scale and shift per channel (Ioffe and Szegedy 2015, section 3.1), and
so is what a convolution does to its output: both become one set of weights. In bfloat16 on a CPU a
SiLU is computed in the same pass over memory as the convolution before it.
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

__all__ = ["SameConv2d", "can_fuse", "convolutions", "fold_batch_norm", "fuse_silu", "halve_stride"]

_OPERATION = "_convolution_pointwise"  # what torch's own compiler makes of the two


class SameConv2d(nn.Conv2d):
    """A strided convolution padded as TensorFlow's SAME: the odd pixel goes right and bottom.

    With torch's symmetric padding, weights trained in TensorFlow see every stride-2 layer shifted
    by a pixel. Takes over the parameters of `conv`.
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
        self.sampling = conv.stride[0]  # what the padding is computed for, also once unstrided

    def forward(self, input: Tensor) -> Tensor:
        """Pad, then convolve."""
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


def convolutions(root: nn.Module) -> list[tuple[nn.Module, str, nn.Conv2d]]:
    """Every convolution below `root` in forward order, with the module that holds it."""
    return [
        (parent, name, child)
        for parent in root.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.Conv2d)
    ]


def halve_stride(stages: nn.Sequential) -> None:
    """Undo the last halving of the resolution and dilate what follows (Yu and Koltun 2016).

    Every second cell in both directions then sees what the strided network sees there.

    Raises ConfigError: no convolution halves it.
    """
    strided = [
        index
        for index, stage in enumerate(stages)
        if any(conv.stride[0] == 2 for _, _, conv in convolutions(stage))
    ]
    if not strided:  # ConvNeXt's first stages: patches of 4 pixels
        raise ConfigError("the encoder's stride cannot be halved: none of its stages halves")
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
    """Fold every BatchNorm below `root` that follows a convolution; the module is for use only.

    Those that follow are the next in a Sequential, and torchvision's bn1 next to conv1 and so on.
    Call it in float32: a half-precision copy is then rounded once, after the folding.
    """
    for module in list(root.modules()):
        for (conv_name, conv), (norm_name, norm) in pairwise(module.named_children()):
            follows = isinstance(module, nn.Sequential) or (
                conv_name.startswith("conv") and norm_name == conv_name.replace("conv", "bn", 1)
            )
            # By its own type: timm's do more than normalise.
            if follows and isinstance(conv, nn.Conv2d) and type(norm) is nn.BatchNorm2d:
                setattr(module, conv_name, fuse_conv_bn_eval(conv, norm))
                setattr(module, norm_name, nn.Identity())


def can_fuse() -> bool:
    """Whether torch has oneDNN here, and that bfloat16 for the processor."""
    operations = torch.ops.mkldnn
    return hasattr(operations, _OPERATION) and bool(operations._is_mkldnn_bf16_supported())


def fuse_silu(root: nn.Module) -> None:
    """Fuse every SiLU of a Sequential below `root` with the convolution before it.

    The module is for use only. It stays as it is where torch was built without oneDNN, or oneDNN
    has no bfloat16 for the processor: there the fused operation fails, and the others do not.
    """
    if not can_fuse():
        return
    for module in list(root.modules()):
        if not isinstance(module, nn.Sequential):
            continue
        children = module.named_children()
        busy = [(name, child) for name, child in children if not isinstance(child, nn.Identity)]
        for (name, child), (next_name, following) in pairwise(busy):
            if not (isinstance(child, nn.Conv2d) and isinstance(following, nn.SiLU)):
                continue
            if child.padding_mode == "zeros" and isinstance(child.padding, tuple):
                setattr(module, name, _ConvSiLU(child))
                setattr(module, next_name, nn.Identity())


class _ConvSiLU(nn.Module):
    """SiLU, x * sigmoid(x), of what a convolution gives; takes over its parameters."""

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
