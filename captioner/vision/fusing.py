"""A convolution and the SiLU behind it in one pass over memory, in bfloat16 on a CPU.

A SiLU of its own reads and writes again everything that the convolution has just written; in oneDNN
the convolution applies it to its sums while they are at hand, and before they are rounded.
"""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from captioner.vision.encoder import SameConv2d

__all__ = ["can_fuse", "fuse_silu"]

_OPERATION = "_convolution_pointwise"  # what torch's own compiler makes of the two


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
        busy = [(name, child) for name, child in module.named_children() if not _is_nothing(child)]
        for (name, child), (next_name, following) in pairwise(busy):
            if isinstance(child, nn.Conv2d) and isinstance(following, nn.SiLU) and _plain(child):
                setattr(module, name, _ConvSiLU(child))
                setattr(module, next_name, nn.Identity())


class _ConvSiLU(nn.Module):
    """SiLU of what a convolution gives; takes over its parameters."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, maps: Tensor) -> Tensor:
        """Convolve (B, C, H, W), and apply x * sigmoid(x)."""
        conv = self.conv
        if isinstance(conv, SameConv2d):
            maps = conv.pad(maps)
        sizes = conv.padding, conv.stride, conv.dilation, conv.groups
        operation = getattr(torch.ops.mkldnn, _OPERATION)
        return cast(Tensor, operation(maps, conv.weight, conv.bias, *sizes, "swish", [], ""))


def _is_nothing(module: nn.Module) -> bool:
    return isinstance(module, nn.Identity)


def _plain(conv: nn.Conv2d) -> bool:
    return isinstance(conv.padding, tuple) and conv.padding_mode == "zeros"
