"""What decoders of LSTM cells share: the arithmetic of a cell, and one attention over the grid."""

from __future__ import annotations

from torch import Tensor

from captioner.attention.attention import Attention
from captioner.attention.positions import GRID_SIDE, Positions
from captioner.decoders.config import DecoderConfig
from captioner.decoders.words import WordDecoder

__all__ = ["RecurrentDecoder", "advance"]


class RecurrentDecoder(WordDecoder):
    """A decoder whose hidden state (B, K, n) looks at the grid, a step at a time."""

    def __init__(self, config: DecoderConfig, *, grid_dim: int, vocabulary_size: int) -> None:
        super().__init__(config, vocabulary_size=vocabulary_size)
        self.positions = Positions(kind=config.positions, dim=grid_dim, axes=2, length=GRID_SIDE)
        self.attention = Attention(
            score=config.score,
            key_dim=self.positions.output_dim,
            query_dim=config.hidden_dim,
            attention_dim=config.attention_dim,
            value_dim=config.value_dim,
            heads=config.heads,
        )


def advance(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Advance an LSTM cell by a step (Xu et al. 2015, equations 1 to 3).

    The gates' inputs come worked out, so that each decoder can add them up from its own parts.

    Args:
        gates: (..., 4n), what enters input, forget and output gate and the candidate.
        cell: (..., n), the cell state before.

    Returns:
        Hidden state and cell state (..., n).

    """
    input_, forget, output, candidate = gates.chunk(4, dim=-1)
    cell = forget.sigmoid() * cell + input_.sigmoid() * candidate.tanh()  # equation 2
    return output.sigmoid() * cell.tanh(), cell  # equation 3
