"""Linear layers whose weights are packed for oneDNN once, instead of at every call.

With few rows, such as the five hypotheses of one photo, packing takes most of the time of a matrix
product.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

_PACK, _MULTIPLY = "_reorder_linear_weight", "_linear_pointwise"  # operations of oneDNN
_ROWS = 5  # rows that the packed layout is optimised for; other numbers work too


class PackedLinear(nn.Linear):
    """A float32 linear layer for inference on a CPU; shares `weight` (F, D) and `bias` (F,)."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight.shape[1], weight.shape[0], bias=False, device="meta")
        self.weight, self.bias = cast(nn.Parameter, weight), cast(nn.Parameter, bias)
        self._pack()

    def _pack(self) -> None:
        self._packed = getattr(torch.ops.mkldnn, _PACK)(self.weight.detach(), _ROWS)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the packed weights, which cannot be pickled or copied."""
        return {name: part for name, part in vars(self).items() if name != "_packed"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Pack the weights again."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._pack()

    def forward(self, rows: Tensor) -> Tensor:
        """Return (..., F) for rows (..., D)."""
        multiply = getattr(torch.ops.mkldnn, _MULTIPLY)
        product: Tensor = multiply(rows, self._packed, self.bias, "none", [], "")
        return product


def can_pack() -> bool:
    """Whether torch has oneDNN for this processor."""
    operations = torch.ops.mkldnn
    return torch._C._has_mkldnn and all(hasattr(operations, name) for name in (_PACK, _MULTIPLY))


def pack_linear(root: nn.Module) -> None:
    """Pack all linear layers below `root`."""
    for parent in list(root.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Linear:
                setattr(parent, name, PackedLinear(child.weight, child.bias))
