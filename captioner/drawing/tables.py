"""The colour scales and constants of overlays as data, for browsers and exported models."""

from __future__ import annotations

from typing import Any

from captioner.drawing.overlay import (
    COLORS,
    DEFAULT_COLORS,
    DEFAULT_STRENGTH,
    FIRST_COLOR,
    FULL_HEAT,
    OPACITY_GAIN,
    TEXTURE,
    color_scale,
)

__all__ = ["drawing_tables"]


def drawing_tables() -> dict[str, Any]:
    """Return the constants of captioner.drawing.overlay; palettes have six hex digits per level."""
    return {
        "colors": list(COLORS),
        "palettes": {name: _palette(name) for name in COLORS if name != "spotlight"},
        "default_colors": DEFAULT_COLORS,
        "default_strength": DEFAULT_STRENGTH,
        "full_heat": FULL_HEAT,
        "opacity_gain": OPACITY_GAIN,
        "texture": TEXTURE,
    }


def _palette(name: str) -> str:
    scale = color_scale(name)
    colors = [scale[FIRST_COLOR + (255 - FIRST_COLOR) * level // 255] for level in range(256)]
    return "".join(f"{red:02x}{green:02x}{blue:02x}" for red, green, blue in colors)
