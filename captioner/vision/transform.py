"""Image -> tensor: the square of `vision.geometry`, normalised as the encoder was trained."""

from __future__ import annotations

import torch
from PIL import Image

from captioner.vision.geometry import Box, Framing, Mode, TransformConfig

__all__ = ["Box", "Mode", "Transform", "TransformConfig"]


class Transform(Framing):
    """Photo -> normalised square, the same in training and in use."""

    def __init__(self, config: TransformConfig) -> None:
        super().__init__(config)
        # (pixel / 255 - mean) / std, as one multiplication and one subtraction.
        mean = torch.tensor(config.mean, dtype=torch.float64).view(3, 1, 1)
        std = torch.tensor(config.std, dtype=torch.float64).view(3, 1, 1)
        self._scale = (1 / (255 * std)).to(torch.float32)
        self._shift = (mean / std).to(torch.float32)

    def __call__(self, image: Image.Image) -> torch.Tensor:
        """Turn an RGB image of any size into what the encoder takes.

        Returns:
            float32 (3, size, size), normalised, contiguous.

        Raises:
            ValueError: the image is not RGB or has no pixels.

        """
        return self.normalize(self.pixels(image))

    def pixels(self, image: Image.Image) -> torch.Tensor:
        """Turn an RGB image of any size into the encoder's square, before normalising.

        Returns:
            uint8 (3, size, size), contiguous.

        Raises:
            ValueError: the image is not RGB or has no pixels.

        """
        size = self.config.size
        # A bytearray, since torch warns about memory that it may not write to.
        data = bytearray(self.square(image).tobytes())
        pixels = torch.frombuffer(data, dtype=torch.uint8).view(size, size, 3)
        return pixels.permute(2, 0, 1).contiguous()

    def normalize(self, pixels: torch.Tensor) -> torch.Tensor:
        """Normalise pixels: (pixel / 255 - mean) / std, for each channel.

        Args:
            pixels: uint8 (..., 3, height, width), on any device.

        Returns:
            float32 of the same shape, on the same device.

        Raises:
            ValueError: another dtype or shape.

        """
        if pixels.dtype != torch.uint8 or pixels.dim() < 3 or pixels.shape[-3] != 3:
            raise ValueError(
                f"pixels are {pixels.dtype} {tuple(pixels.shape)}, "
                "and must be torch.uint8 (..., 3, height, width)"
            )
        scale, shift = self._scale.to(pixels.device), self._shift.to(pixels.device)
        return torch.mul(pixels, scale).sub_(shift)
