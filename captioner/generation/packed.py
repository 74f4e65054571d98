"""Finished sentences of a batch, packed on the device for one copy to the CPU."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice, repeat
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from captioner.generation.hypothesis import Hypothesis

__all__ = ["OPTIONAL", "PackedHypotheses"]

OPTIONAL = ("attention", "gate", "heads")
"""The parts that some decoders do not have."""


class PackedHypotheses(NamedTuple):
    """C hypotheses of each of B images, packed on the device for one copy to the CPU.

    values: (B, C, N), float32, which is exact for tokens: the parts of each hypothesis, flattened.
    shapes: the shape of each part of a hypothesis, in the order of `values`.
    """

    values: Tensor
    shapes: Mapping[str, tuple[int, ...]]

    def read(self) -> list[list[Hypothesis]]:
        """Copy the hypotheses to the CPU, and take them apart; those with score -inf are skipped.

        Their tensors are views of tensors of the whole batch.
        """
        values = self.values.cpu().numpy()
        parts, start = {}, 0
        for name, shape in self.shapes.items():
            stop = start + math.prod(shape)
            parts[name] = values[..., start:stop].reshape(*values.shape[:2], *shape)
            start = stop
        exists = parts["score"] > -np.inf
        ends = np.where(exists, parts["length"], -1)[..., np.newaxis]
        places = np.arange(parts["logs"].shape[2])
        is_word, is_log = places[:-1] < ends, places <= ends
        lengths = parts["length"][exists].astype(int).tolist()
        tokens = iter(parts["tokens"][is_word].astype(int).tolist())
        hypotheses = map(
            Hypothesis,
            [list(islice(tokens, length)) for length in lengths],
            parts["score"][exists].tolist(),
            _split(parts["logs"][is_log], [length + 1 for length in lengths]),
            *(
                _split(parts[name][is_word], lengths) if name in parts else repeat(None)
                for name in OPTIONAL
            ),
        )
        return [list(islice(hypotheses, count)) for count in exists.sum(axis=1).tolist()]


def _split(rows: NDArray[np.float32], lengths: list[int]) -> tuple[Tensor, ...]:
    return torch.split(torch.from_numpy(rows), lengths)
