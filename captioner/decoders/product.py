"""A decoder's matrices made ready for use: laid out for a CPU, and products of them worked out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import Tensor, nn

__all__ = ["Affine", "Product", "by_columns", "lay_out"]


class Affine(NamedTuple):
    """x W^T + b, as torch.nn.functional.linear takes it: matrix (F, E); bias (F,), or none."""

    matrix: Tensor
    bias: Tensor | None


class Product(nn.Module):
    """What takes the place of several matrices one after or beside the other, where it was made.

    It serves until the weights that it was made from change, goes where the decoder goes, into
    copies and pickles too, and is in no checkpoint.
    """

    def __init__(self) -> None:
        super().__init__()
        self.matrix: Tensor | None
        self.bias: Tensor | None
        self.register_buffer("matrix", None, persistent=False)
        self.register_buffer("bias", None, persistent=False)
        self._made_from: tuple[tuple[Tensor, int], ...] = ()

    def make(self, matrix: Tensor, bias: Tensor | None = None, *, of: Iterable[Tensor]) -> None:
        """Keep what was made of these weights."""
        self.matrix, self.bias = matrix, bias
        self._made_from = tuple((weight, _version(weight)) for weight in of)

    def get(self, of: Iterable[Tensor]) -> Affine | None:
        """Give what was made; None where nothing was, or of other weights, which forgets it."""
        if self.matrix is None:
            return None
        others = any(now is not then for now, (then, _) in zip(of, self._made_from, strict=True))
        if others or self._has_changed():
            self._forget()
            return None
        return Affine(self.matrix, self.bias)

    def __getstate__(self) -> dict[str, Any]:
        if self._has_changed():
            self._forget()
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        # Copies and tensors out of a pickle count their changes from another number.
        self._made_from = tuple((weight, _version(weight)) for weight, _ in self._made_from)

    def _has_changed(self) -> bool:
        return any(_version(weight) != version for weight, version in self._made_from)

    def _forget(self) -> None:
        self.matrix, self.bias, self._made_from = None, None, ()


def _version(weight: Tensor) -> int:
    """Count the changes made to a tensor in place; torch does not count those in inference mode."""
    return 0 if weight.is_inference() else weight._version


def lay_out(part: nn.Module) -> None:
    """Store the matrices of linear layers column by column; their numbers and shapes stay.

    In float32, a CPU's BLAS multiplies the rows of a batch of beams in a quarter less time so.
    """
    for layer in part.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.data = by_columns(layer.weight.data)


def by_columns(matrix: Tensor) -> Tensor:
    """Store a matrix column by column; its numbers and its shape stay."""
    return matrix.t().contiguous().t()
