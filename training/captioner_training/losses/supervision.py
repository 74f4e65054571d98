"""Where words are to look: boxes of objects, for captions that name them (Liu et al. 2017).

Liu et al., "Attention Correctness in Neural Image Captioning": a word that names a category whose
boxes are known is asked to spread its attention evenly over them. Words without boxes are free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from captioner.vocabulary import PAD
from captioner_training.data.images import CaptionedImage
from captioner_training.evaluation.boxes import BoxedObject, box_coverage
from captioner_training.evaluation.hallucination import mentions

__all__ = ["SupervisedAttention"]


class SupervisedAttention:
    """Knows for each training image which words are to look where.

    Args:
        images: the training images.
        boxes: of images by their ids, on the square that the encoder sees.
        rows: of the grid.
        columns: of the grid.

    Attributes:
        words: how many words of all captions are told where to look.

    """

    def __init__(
        self,
        images: Sequence[CaptionedImage],
        boxes: Mapping[int | str, Sequence[BoxedObject]],
        *,
        rows: int,
        columns: int,
    ) -> None:
        self.cells, self.words = rows * columns, 0
        # Of each image: the maps of its categories, and (caption, word, category) of each look.
        self._maps: list[dict[str, Tensor]] = []
        self._looks: list[list[tuple[int, int, str]]] = []
        for image in images:
            maps = _maps(boxes.get(image.id, ()), rows, columns)
            looks = [
                (number, place, one.category)
                for number, words in enumerate(image.words)
                for one in mentions(words)
                for place in range(one.first, one.end)
                if one.category in maps
            ]
            self._maps.append(maps)
            self._looks.append(looks)
            self.words += len(looks)

    def looks(self, positions: Sequence[int], targets: Tensor) -> Tensor:
        """Give the maps (B, K, T, L) for the targets (B, K, T) of the images at these positions."""
        found = torch.zeros(*targets.shape, self.cells)
        for row, position in enumerate(positions):
            for number, place, category in self._looks[position]:
                # A long caption has lost its tail.
                if place < targets.shape[-1] and targets[row, number, place] != PAD:
                    found[row, number, place] = self._maps[position][category]
        return found


def _maps(objects: Sequence[BoxedObject], rows: int, columns: int) -> dict[str, Tensor]:
    """Spread 1 evenly over the boxes of each category, cell by cell (L,)."""
    found = {}
    for category in dict.fromkeys(one.category or "person" for one in objects):
        mine = [one.box for one in objects if (one.category or "person") == category]
        covered = box_coverage(mine, rows=rows, columns=columns).flatten().float()
        if covered.sum() > 0:  # else the square shows nothing of them
            found[category] = covered / covered.sum()
    return found
