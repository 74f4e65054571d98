"""Convolutions: TensorFlow's padding, and dilation instead of a stride."""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn import functional as F

from captioner.errors import ConfigError


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
            conv.kernel_size[0],
            conv.stride[0],
            groups=conv.groups,
            bias=conv.bias is not None,
        )
        self.weight, self.bias = conv.weight, conv.bias
        self.sampling = conv.stride[0]  # the stride before `halve_stride`

    def forward(self, input: Tensor) -> Tensor:
        """Pad (B, C, H, W), then convolve."""
        rows, columns = map(self._padding, input.shape[-2:])
        return super().forward(F.pad(input, (*columns, *rows)))

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
