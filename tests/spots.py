"""A model that attends to the brightest cell, and photos with one bright disc.

    make_spot_checkpoint("crop").save(path)        # crop, pad or squash, as checkpoints do
    photo = spot_photo((304, 200), at=cell_centre("crop", (304, 200), (2, 4)), exif=6)
    assert near(lit_place(overlay, photo), at)     # said_place(record, size) for JSON

Nothing is trained: the encoder takes the mean of each cell, and the attention the largest of them.
The places follow from what crop and pad mean, without the product's geometry.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageOps

from tests.captioner.pictures import turned

if TYPE_CHECKING:  # a fixture may import this without torch
    from captioner.checkpoint import Checkpoint

Mode = Literal["crop", "pad", "squash"]
Place = tuple[float, float]

GRID = 7  # rows and columns
GROUND, SPOT = (24, 32, 80), (255, 255, 255)
_LINEAR = 3.0  # from here on a hard swish is the identity, and a hard sigmoid 1


class Case(NamedTuple):
    """A photo of `size` as the viewer sees it, stored turned by `exif`, bright in a cell."""

    mode: Mode
    size: tuple[int, int]
    cell: tuple[int, int]  # row and column; away from the middle, and from the edges of the photo
    exif: int

    @property
    def at(self) -> Place:
        """Where the spot is, in pixels from the left and from the top."""
        return cell_centre(self.mode, self.size, self.cell)

    @property
    def photo(self) -> bytes:
        """The file."""
        return spot_photo(self.size, self.at, self.exif)


CASES = {
    "crop, wide": Case("crop", (304, 200), (2, 5), 1),
    "crop, tall, turned": Case("crop", (200, 304), (1, 4), 6),
    "crop, panorama, turned": Case("crop", (560, 136), (5, 2), 8),
    "crop, odd, mirrored": Case("crop", (301, 227), (4, 1), 5),
    "pad, wide": Case("pad", (304, 200), (2, 5), 1),
    "pad, tall, turned": Case("pad", (200, 304), (1, 4), 6),
    "pad, tall, upside down": Case("pad", (152, 240), (5, 2), 3),
    "pad, odd, mirrored": Case("pad", (301, 227), (4, 1), 7),
}
"""Photos of many shapes and turns, for both kinds of checkpoints that do not squash."""


def make_spot_checkpoint(mode: Mode = "crop") -> Checkpoint:
    """Make a model of 7 x 7 cells that says "spot" and attends to the brightest cell it sees."""
    import torch

    from captioner.checkpoint import Checkpoint
    from captioner.model.config import DecoderConfig
    from captioner.model.encoder import EncoderConfig
    from captioner.model.model import CaptionModel, ModelConfig
    from captioner.photos.transform import TransformConfig
    from captioner.vocabulary import Vocabulary

    vocabulary = Vocabulary(["spot", "other"])
    encoder = EncoderConfig(name="mobilenet_v3_small", last_stage=9)
    decoder = DecoderConfig(embedding_dim=4, hidden_dim=4, attention_dim=4)
    model = CaptionModel(
        ModelConfig(encoder=encoder, decoder=decoder), vocabulary_size=len(vocabulary)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for module in model.encoder.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.weight.fill_(1.0)
            elif isinstance(module, torch.nn.Conv2d):  # passes the first channel on
                middle, stride = module.kernel_size[0] // 2, module.stride[0]
                taps = slice(middle, middle + stride)  # when it halves, the mean of four
                module.weight[0, 0, taps, taps] = 1 / stride**2
        first, norm, _ = model.encoder.stages[0]
        first.weight[0] = first.weight[0, 0] / 3  # of the three colours
        norm.bias[0] = _LINEAR
        for module in model.encoder.modules():
            if hasattr(module, "fc2"):  # squeeze and excitation: as it is
                module.fc2.weight.zero_()
                module.fc2.bias.fill_(_LINEAR)
            elif getattr(module, "use_res_connect", False):  # the input alone
                module.block[-1][0].weight.zero_()
        score = model.decoder.attention.score
        score.key.weight[0, 0], score.key.bias[0] = 1.0, -_LINEAR
        score.score.weight[0, 0] = 300.0
        model.decoder.gate.bias.fill_(4.0)  # the word comes from the photo
        for token, bias in (("spot", 8.0), ("<end>", 6.0)):
            model.decoder.output_bias[vocabulary.words.index(token)] = bias
    return Checkpoint(
        model=model.eval(),
        vocabulary=vocabulary,
        # So that the bars of a padded photo are black.
        transform=TransformConfig(mode=mode, size=32 * GRID, mean=(0, 0, 0), std=(1, 1, 1)),
        name=f"spot-{mode}",
    )


def spot_photo(size: tuple[int, int], at: Place, exif: int = 1, *, radius: float = 9.0) -> bytes:
    """Draw a dark photo with a bright disc, as a JPEG that is stored turned by `exif`.

    Size and place are in pixels as the viewer sees them. The disc should fit into a cell.
    """
    photo = Image.new("RGB", (4 * size[0], 4 * size[1]), GROUND)
    x, y, reach = 4 * at[0], 4 * at[1], 4 * radius
    ImageDraw.Draw(photo).ellipse((x - reach, y - reach, x + reach, y + reach), SPOT)
    photo = photo.resize(size, Image.Resampling.BOX)
    return turned("JPEG", exif, photo, quality=95, subsampling=0)


def cell_centre(mode: Mode, size: tuple[int, int], cell: tuple[int, int]) -> Place:
    """Find the middle of a cell (row, column), in pixels of the photo as the viewer sees it."""
    side = {"crop": min(size), "pad": max(size)}.get(mode)
    sides = size if side is None else (side, side)
    row, column = cell
    return (
        size[0] / 2 + ((column + 0.5) / GRID - 0.5) * sides[0],
        size[1] / 2 + ((row + 0.5) / GRID - 0.5) * sides[1],
    )


def lit_place(picture: Image.Image, photo: bytes | Image.Image) -> Place:
    """Find the middle of what a picture of any size adds to a photo, in the photo's pixels."""
    if isinstance(photo, bytes):
        with Image.open(io.BytesIO(photo)) as stored:
            photo = ImageOps.exif_transpose(stored)
    plain = photo.convert("RGB").resize(picture.size, Image.Resampling.LANCZOS)
    drawn = np.asarray(ImageChops.difference(picture.convert("RGB"), plain).convert("L"), float)
    # On the dark ground alone: how the bright disc looks below the colours is no matter.
    drawn[(drawn < 24) | (np.asarray(plain.convert("L")) > 64)] = 0
    drawn[[0, 1, -2, -1]] = drawn[:, [0, 1, -2, -1]] = 0  # a screenshot has the frame's line
    if not drawn.any():
        raise AssertionError("nothing is drawn on the photo")
    x, y = ((drawn.sum(axis) @ np.arange(0.5, drawn.shape[1 - axis])) for axis in (0, 1))
    scale = drawn.sum() * np.array(picture.size) / photo.size
    return float(x / scale[0]), float(y / scale[1])


def said_place(record: Mapping[str, Any], size: tuple[int, int]) -> Place:
    """Find the middle of the cell with most attention in a record, in pixels of the photo."""
    told = record["words"][0]["attention"]
    left, top, right, bottom = told["box"]
    row, column = divmod(told["weights"].index(max(told["weights"])), told["columns"])
    across, down = (column + 0.5) / told["columns"], (row + 0.5) / told["rows"]
    return ((left + across * (right - left)) * size[0], (top + down * (bottom - top)) * size[1])


def pictures_in(sheet: Image.Image) -> list[Image.Image]:
    """Cut the photos of dark ground out of a light sheet, row by row."""
    ground = np.abs(np.asarray(sheet.convert("RGB"), int) - GROUND).max(axis=2) < 12
    return [
        sheet.crop((left, top, right, bottom))
        for top, bottom in _runs(ground.mean(axis=1))
        for left, right in _runs(ground[top:bottom].mean(axis=0))
    ]


def _runs(share: np.ndarray[Any, Any]) -> list[tuple[int, int]]:
    """Find where a share is more than that of a few letters, for longer than a line of them."""
    edges = np.flatnonzero(np.diff(share > 0.1, prepend=False, append=False))
    pairs = zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    return [(first, end) for first, end in pairs if end - first > 30]


def near(one: Place, other: Place, pixels: float = 2.0) -> bool:
    """Whether two places are the same, to a pixel or two."""
    return all(abs(a - b) <= pixels for a, b in zip(one, other, strict=True))
