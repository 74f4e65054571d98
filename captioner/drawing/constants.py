"""The colour scales and constants of overlays as data, for browsers and exported models."""

from __future__ import annotations

from typing import Any

from captioner.drawing.overlay import (
    COLORS,
    DEFAULT_COLORS,
    DEFAULT_STRENGTH,
    FULL_HEAT,
    OPACITY_GAIN,
    TEXTURE,
    used_colors,
)


def drawing_constants() -> dict[str, Any]:
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
    return "".join(f"{red:02x}{green:02x}{blue:02x}" for red, green, blue in used_colors(name))
