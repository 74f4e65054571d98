"""A picture for tests of opening images."""

from __future__ import annotations

from PIL import Image


def draw(width: int = 64, height: int = 48) -> Image.Image:
    """A picture that no turn or flip leaves as it is."""
    ramp = Image.linear_gradient("L")
    red = ramp.rotate(90).resize((width, height))
    green = ramp.resize((width, height))
    blue = Image.new("L", (width, height), 40)
    blue.paste(200, (0, 0, width // 3, height // 2))
    return Image.merge("RGB", (red, green, blue))
