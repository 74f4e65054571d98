"""The arithmetic of an LSTM, for decoders that work out the gates' inputs in parts."""

from __future__ import annotations

from torch import Tensor

__all__ = ["advance"]


def advance(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Advance an LSTM by a step (Xu et al. 2015, equations 1 to 3).

    Args:
        gates: (..., 4n), what enters input, forget and output gate and the candidate.
        cell: (..., n), the cell state before.

    Returns:
        Hidden state and cell state (..., n).

    """
    input_, forget, output, candidate = gates.chunk(4, dim=-1)
    cell = forget.sigmoid() * cell + input_.sigmoid() * candidate.tanh()  # equation 2
    return output.sigmoid() * cell.tanh(), cell  # equation 3
