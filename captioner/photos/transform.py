"""The transform: convert a photo to the square tensor that the encoder takes.

The encoder's input is a square. `TransformConfig` sets how a photo becomes a square and is part of
the checkpoint. `Transform` applies it, the same way in training and captioning, and returns the
part of the photo that the square shows, so that attention is drawn in the right place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from annotated_types import Interval
from PIL import Image

from captioner.shared.settings import EXPLAINED, PositiveFloat, check_bounds

if TYPE_CHECKING:
    import torch

Mode = Literal["crop", "pad", "squash"]

# Large photos are first reduced by an integer factor to at least this many times the target size,
# which is several times as fast and hardly changes the result.
_REDUCING_GAP = 3.0

# A JPEG may be decoded at a reduced size of at least this many times the target size.
_SPARE = 6

LARGEST_SIDE = 1024
"""The largest side of a square, in pixels."""


class Box(NamedTuple):
    """A rectangle in fractions of a photo's width and height, x to the right and y down.

    The photo itself is (0, 0, 1, 1); a padded transform's box reaches beyond it.
    """

    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True, kw_only=True)
class TransformConfig:
    """How a photo becomes the encoder's square.

    Raises ConfigError: values are out of range or contradict each other; the message names each.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = EXPLAINED
    resampling: ClassVar[Image.Resampling] = Image.Resampling.BILINEAR

    mode: Mode = "crop"
    """crop: the middle of the photo; pad: all of it, with bars in the mean colour; squash: all of
    it, distorted."""
    size: Annotated[int, Interval(ge=1, le=LARGEST_SIDE)] = 224
    """Pixels of a side of the square."""
    resize: Annotated[int, Interval(ge=1, le=2 * LARGEST_SIDE)] | None = None
    """For crop: pixels of the shorter side before the crop (232 or 256 for many of torchvision's
    weights); None: size."""
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    """Mean of red, green and blue, from 0 to 1; the default is ImageNet's."""
    std: tuple[PositiveFloat, PositiveFloat, PositiveFloat] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        check_bounds(self, also=self._contradictions())
        # JSON has lists and integers: equal settings must be equal objects.
        object.__setattr__(self, "mean", tuple(float(value) for value in self.mean))
        object.__setattr__(self, "std", tuple(float(value) for value in self.std))

    def _contradictions(self) -> Iterator[str]:
        if self.resize is None:
            return
        if self.mode != "crop":
            yield f"resize {self.resize} with mode {self.mode!r}: only crop has a resize"
        elif self.resize < self.size:
            yield f"resize {self.resize} is out of range: it is at least size, {self.size}"


@dataclass(frozen=True, kw_only=True)
class BicubicTransformConfig(TransformConfig):
    """A TransformConfig with bicubic resampling, as for CLIP."""

    resampling: ClassVar[Image.Resampling] = Image.Resampling.BICUBIC


class Transform:
    """Converts photos to squares and tensors, and returns the part of a photo that a square shows.

    `at_least` is the minimum side to decode to, in pixels: the argument of `open_image`. `square`
    does not import torch, because some processes only decode photos. Images that are not RGB or
    have no pixels raise ValueError.
    """

    def __init__(self, config: TransformConfig) -> None:
        self.config = config
        self._side = config.resize or config.size  # the shorter side before a crop, in pixels
        self._fill = tuple(min(255, max(0, round(255 * value))) for value in config.mean)
        self.at_least = _SPARE * self._side

    def square(self, image: Image.Image) -> Image.Image:
        """Return the RGB square of size x size pixels, before normalisation."""
        if image.mode != "RGB" or 0 in image.size:
            raise ValueError(
                f"the image is {image.mode}, {image.width} x {image.height}, and must be RGB with "
                "pixels: open it with captioner.photos.open.open_image"
            )
        size = self.config.size, self.config.size
        resized = partial(image.resize, resample=self.config.resampling, reducing_gap=_REDUCING_GAP)
        if self.config.mode == "pad":
            left, top, *inner = self._inner(*image.size)
            square = Image.new("RGB", size, self._fill)
            square.paste(resized(inner), (left, top))
            return square
        (width, height), box = image.size, self.box(*image.size)
        part = (box.left * width, box.top * height, box.right * width, box.bottom * height)
        return resized(size, box=part)

    def pixels(self, image: Image.Image) -> torch.Tensor:
        """Return the square of an RGB image of any size: uint8 (3, size, size)."""
        import torch

        # A bytearray, because torch warns about read-only memory.
        data = bytearray(self.square(image).tobytes())
        size = self.config.size
        pixels = torch.frombuffer(data, dtype=torch.uint8).view(size, size, 3)
        return pixels.permute(2, 0, 1).contiguous()

    def normalize(self, pixels: torch.Tensor) -> torch.Tensor:
        """Normalise pixels, uint8 (..., 3, height, width), to float32 of the same shape.

        Computes (pixel / 255 - mean) / std for each channel. Raises ValueError: another dtype or
        shape.
        """
        import torch

        if pixels.dtype != torch.uint8 or pixels.dim() < 3 or pixels.shape[-3] != 3:
            raise ValueError(
                f"pixels are {pixels.dtype} {tuple(pixels.shape)}, "
                "and must be torch.uint8 (..., 3, height, width)"
            )
        # One multiplication and one subtraction.
        channels = zip(self.config.mean, self.config.std, strict=True)
        factors = [(1 / (255 * std), mean / std) for mean, std in channels]
        # A blocking copy would synchronize the GPU in every training step.
        constants = torch.tensor(factors, dtype=torch.float32).to(pixels.device, non_blocking=True)
        scale, shift = constants.T
        return torch.mul(pixels, scale.view(3, 1, 1)).sub_(shift.view(3, 1, 1))

    def box(self, width: int, height: int) -> Box:
        """Return the part of a photo that the square covers.

        A point (x, y) of the square, in fractions of its side, is the point
        (left + x * (right - left), top + y * (bottom - top)) of the photo.

        Args:
            width: the width of the photo as viewed, in pixels.
            height: the height of the photo as viewed, in pixels.
        """
        if self.config.mode == "squash":
            return Box(0.0, 0.0, 1.0, 1.0)
        side = self.config.size
        if self.config.mode == "pad":
            left, top, inner_width, inner_height = self._inner(width, height)
            return Box(
                -left / inner_width,
                -top / inner_height,
                (side - left) / inner_width,
                (side - top) / inner_height,
            )
        covered = min(width, height) * side / self._side
        across, down = covered / width, covered / height
        return Box((1 - across) / 2, (1 - down) / 2, (1 + across) / 2, (1 + down) / 2)

    def _inner(self, width: int, height: int) -> tuple[int, int, int, int]:
        """Return left, top, width and height of a padded photo in the square, in pixels."""
        side, longer = self.config.size, max(width, height)
        inner_width = max(1, round(width * side / longer))
        inner_height = max(1, round(height * side / longer))
        return (side - inner_width) // 2, (side - inner_height) // 2, inner_width, inner_height
