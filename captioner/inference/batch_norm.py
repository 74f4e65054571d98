"""BatchNorm for inference: folded into the convolution before it.

For inference BatchNorm is a fixed scale and shift per channel (Ioffe and Szegedy 2015, section
3.1).
"""

from __future__ import annotations

from itertools import pairwise

from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval


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
