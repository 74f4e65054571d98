"""What is asked of the attention: where the words look, beside what they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from captioner.errors import DataError
from captioner.vision.transform import Transform
from captioner.vocabulary import PAD
from captioner_training.data.corpus import Corpus
from captioner_training.data.images import CaptionedImage
from captioner_training.evaluation.boxes import BoxedObject, box_coverage, check_boxes
from captioner_training.evaluation.hallucination import mentions
from captioner_training.losses.objective import Objective, Reading
from captioner_training.recipe import Recipe, resolve

__all__ = ["AttentionEntropy", "AttentionSupervision", "DoublyStochastic"]


def _by_head(reading: Reading) -> Tensor | None:
    """Give the attention of each head, (B, K, T, H, L); None where the decoder does not attend."""
    output = reading.output
    if output.heads is not None or output.attention is None:
        return output.heads
    return output.attention.unsqueeze(-2)


class DoublyStochastic(Objective):
    """Asks the words of a caption to look at every cell in turn (Xu et al. 2015, equation 14).

    (1 - sum_t alpha_ti)^2, averaged over cells, heads and captions: each head is asked, so that one
    may not leave a cell to another.
    """

    def loss(self, reading: Reading) -> Tensor:
        """Average over captions; one without a word counts for nothing."""
        attention, mask = _by_head(reading), reading.mask
        if attention is None:
            return torch.zeros((), device=mask.device)
        looked = (attention * mask[..., None, None]).sum(dim=2)  # (B, K, H, L)
        missed = (1 - looked).square().mean(dim=(-2, -1)) * mask.any(dim=-1)
        return self.weight * missed.sum() / reading.count


class AttentionEntropy(Objective):
    """Asks every word to look at few cells: the entropy of its weights, in nats, mean of heads.

    Heads may disagree: two that are sharp on different cells cost nothing, where the entropy of
    their mean would be 0.69.

    Every cell of a deep CNN knows something of the whole image, so that a plain mean of the grid
    serves the words nearly as well as looking: without this the attention stays all but uniform.
    Alone, from the first step, it froze on one cell for all words, and with the doubly stochastic
    term beside it, it did not (docs/results.md).
    """

    def loss(self, reading: Reading) -> Tensor:
        """Average over tokens and heads."""
        attention = _by_head(reading)
        if attention is None:
            return torch.zeros((), device=reading.mask.device)
        # Clamped, since the slope is infinite at a weight of 0.
        entropy: Tensor = torch.special.entr(attention.flatten(0, 2)[reading.index].clamp(min=1e-8))
        return self.weight * entropy.sum() / (reading.tokens * attention.shape[-2])


class AttentionSupervision(Objective):
    """Asks words for objects to look at their boxes (Liu et al. 2017, equation 8).

    "Attention Correctness in Neural Image Captioning": a word that names a category whose boxes are
    known is asked to spread its attention evenly over them, by the cross-entropy, in nats, between
    that and its attention weights. Words without boxes are free.

    Args:
        weight: of the term.
        images: the training images.
        boxes: of images by their ids, on the square that the encoder sees.
        side: rows and columns of the grid.

    Attributes:
        words: how many words of all captions have boxes.
    """

    def __init__(
        self, weight: float, images: Sequence[CaptionedImage],
        boxes: Mapping[int | str, Sequence[BoxedObject]], *, side: int,
    ) -> None:  # fmt: skip
        super().__init__(weight)
        self.side, self.words = side, 0
        # Of each image: the maps of its categories, and (caption, word, category) of each look.
        self._maps: list[dict[str, Tensor]] = []
        self._looks: list[list[tuple[int, int, str]]] = []
        for image in images:
            maps = self._maps_of(boxes.get(image.id, ()))
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
        self.note = f"{self.words:,} words of the captions name an object with boxes"

    @classmethod
    def build(cls, setting: Any, recipe: Recipe, corpus: Corpus) -> Self:
        """Read the boxes.

        Raises DataError: they cannot be read, belong to other images, or no word names their
        objects.
        """
        data, ids = recipe.data, {image.id for image in corpus.train}
        if len(ids) < len(corpus.train):
            raise DataError(
                "data.boxes names images by their ids, and two training images have the same: "
                "train on one data set, or give its images ids of their own"
            )
        boxes: dict[int | str, list[BoxedObject]] = {}
        for path in data.boxes:
            found = check_boxes(resolve(data.root, path), Transform(recipe.transform), ids=ids)
            for image, objects in found.items():
                boxes.setdefault(image, []).extend(objects)
        side = recipe.transform.size // recipe.encoder.stride
        made = cls(float(setting), corpus.train, boxes, side=side)
        if made.words == 0:
            raise DataError(
                f"no word of the training captions names an object of {', '.join(data.boxes)}: "
                "attention_supervision has nothing to learn from; leave it out, or give the "
                "categories the names that COCO gives them"
            )
        return made

    def loss(self, reading: Reading) -> Tensor:
        """Average over all tokens."""
        attention = reading.output.attention
        if attention is None or reading.positions is None:
            return torch.zeros((), device=reading.mask.device)
        looks = self.looks(reading.positions.tolist(), reading.captions.targets)
        logs = attention.float().clamp(min=1e-8).log()
        return -self.weight * (looks.to(logs.device) * logs).sum() / reading.tokens

    def looks(self, positions: Sequence[int], targets: Tensor) -> Tensor:
        """Give the maps (B, K, T, L) for the targets (B, K, T) of the images at these positions.

        Each sums to 1; words that are free have zeros.
        """
        found = torch.zeros(*targets.shape, self.side**2)
        for row, position in enumerate(positions):
            for number, place, category in self._looks[position]:
                # A long caption has lost its tail.
                if place < targets.shape[-1] and targets[row, number, place] != PAD:
                    found[row, number, place] = self._maps[position][category]
        return found

    def _maps_of(self, objects: Sequence[BoxedObject]) -> dict[str, Tensor]:
        """Spread 1 evenly over the boxes of each category, cell by cell (L,)."""
        found = {}
        for category in dict.fromkeys(one.category or "person" for one in objects):
            mine = [one.box for one in objects if (one.category or "person") == category]
            covered = box_coverage(mine, rows=self.side, columns=self.side).flatten().float()
            if covered.sum() > 0:  # else the square shows nothing of them
                found[category] = covered / covered.sum()
        return found
