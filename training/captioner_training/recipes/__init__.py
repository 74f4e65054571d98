"""The shipped recipes, one YAML file each."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

__all__ = ["shipped_recipes"]


def shipped_recipes() -> dict[str, Path]:
    """Return the file of each recipe, by name."""
    folder = Path(str(files(__name__)))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}
