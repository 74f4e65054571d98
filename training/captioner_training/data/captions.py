"""The captions of a split as one integer tensor, and batches from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from captioner.vocabulary import END, PAD, Vocabulary
from captioner_training.data.images import CaptionedImage

# A compiled loss is compiled again for every shape, and padding is work.
_MOST_CAPTIONS = 5
_LENGTHS = (0.5, 0.9, 1.0)  # quantiles of the images' longest captions


class CaptionTable:
    """The captions of N images as one tensor (N, K, T) on a device, padded with <pad>.

    A caption ends with <end>, except if it was cut, because the model must not learn to stop there.

    Args:
        captions: the captions of each image, as word numbers.
        starts: (N,), the start token of each image's captions.
        maximum_length: largest number of words; longer captions are cut.
    """

    def __init__(
        self,
        captions: Sequence[Sequence[Sequence[int]]],
        *,
        starts: Sequence[int],
        maximum_length: int,
        device: torch.device | None = None,
    ) -> None:
        framed = [[_framed(caption, maximum_length) for caption in image] for image in captions]
        self.counts = np.array([len(image) for image in framed])
        self.longest = np.array([max(map(len, image)) for image in framed])
        tokens = np.full((len(framed), self.counts.max(), self.longest.max()), PAD, np.int32)
        for row, image in zip(tokens, framed, strict=True):
            for place, caption in enumerate(image):
                row[place, : len(caption)] = caption
        self._tokens = torch.from_numpy(tokens).to(device)
        self.starts = torch.tensor(starts, device=device)

    @property
    def device(self) -> str:
        """The type of the tensor's device, such as "cpu"."""
        return self._tokens.device.type

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """The number of captions of each image, and the length of the longest one."""
        return list(zip(self.counts.tolist(), self.longest.tolist(), strict=True))

    def batch(
        self, positions: Sequence[int], starts: Tensor | None = None, *, few_shapes: bool = False
    ) -> Tensor:
        """Return the tokens (B, K, T + 1) of the images at `positions`, start token first.

        Args:
            starts: (N,), replaces the start tokens of the table.
            few_shapes: give batches three shapes at most, with the first five captions of an image.
        """
        count, length = self.counts[positions].max(), self.longest[positions].max()
        if few_shapes:
            count = min(self.counts.max(), _MOST_CAPTIONS)
            lengths = np.quantile(self.longest, _LENGTHS, method="higher")
            length = lengths[np.searchsorted(lengths, length)]
        index = torch.tensor(positions).to(self._tokens.device, non_blocking=True)
        tokens = self._tokens[index, :count, :length].long()
        first = (self.starts if starts is None else starts)[index].unsqueeze(1)
        first = first.where(tokens[..., 0] != PAD, PAD)  # missing captions are all padding
        return torch.cat([first.unsqueeze(-1), tokens], dim=-1)


def _framed(caption: Sequence[int], maximum_length: int) -> list[int]:
    if len(caption) > maximum_length:
        return [*caption[:maximum_length]]
    return [*caption, END]


def collate(
    captions: Sequence[Sequence[Sequence[int]]], *, starts: Sequence[int], maximum_length: int
) -> Tensor:
    """Pad the captions of B images to tokens (B, K, T + 1), start token first; cut long ones."""
    table = CaptionTable(captions, starts=starts, maximum_length=maximum_length)
    return table.batch(range(len(captions)))


def starts_of(images: Iterable[CaptionedImage], vocabulary: Vocabulary) -> list[int]:
    """Return the start token of each image's style; unknown styles have the default token."""
    starts = {style: vocabulary.start(style) for style in ("", *vocabulary.styles)}
    return [starts.get(image.style, starts[""]) for image in images]


def encode_captions(
    images: Iterable[CaptionedImage], vocabulary: Vocabulary
) -> list[list[list[int]]]:
    """Return the captions of each image as word numbers."""
    return [[vocabulary.encode(words) for words in image.words] for image in images]
