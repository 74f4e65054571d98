"""BatchNorm folded into the convolution before it: the same function with fewer operations.

In use, BatchNorm is a fixed scale and shift per channel (Ioffe and Szegedy 2015, section 3.1), and
so is what a convolution does to its output: both become one set of weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

__all__ = ["fold_batch_norm"]


def fold_batch_norm(root: nn.Module) -> None:
    """Fold every BatchNorm below `root` that follows a convolution; the module is for use only.

    Those that follow are the next in a Sequential, and torchvision's bn1 behind conv1 and so on.
    Call it in float32: a half-precision copy is then rounded once, after the folding.
    """
    for module in list(root.modules()):
        for conv_name, norm_name in _pairs(module):
            conv, norm = getattr(module, conv_name), getattr(module, norm_name)
            if _foldable(conv, norm):
                conv.weight, conv.bias = fuse_conv_bn_weights(
                    conv.weight,
                    conv.bias,
                    norm.running_mean,
                    norm.running_var,
                    norm.eps,
                    norm.weight,
                    norm.bias,
                )
                setattr(module, norm_name, nn.Identity())


def _pairs(module: nn.Module) -> Iterator[tuple[str, str]]:
    names = [name for name, _ in module.named_children()]
    if isinstance(module, nn.Sequential):
        yield from pairwise(names)
    for name in names:
        if name.startswith("conv") and (norm := name.replace("conv", "bn", 1)) in names:
            yield name, norm


def _foldable(conv: nn.Module, norm: nn.Module) -> bool:
    return (
        isinstance(conv, nn.Conv2d)
        and isinstance(norm, nn.BatchNorm2d)
        and norm.running_mean is not None
    )
