"""What comes with Captioner, whether it is installed or runs from a checkout."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from captioner.errors import CheckpointNotFoundError

__all__ = ["bundled_checkpoint", "find_bundled", "sample_photos"]


def find_bundled(name: str) -> Path | None:
    """Find a file or folder of assets: inside the package, or in the checkout."""
    installed = Path(str(files("captioner"))) / "assets" / name
    checkout = Path(__file__).resolve().parent.parent / "assets" / name
    return next((path for path in (installed, checkout) if path.exists()), None)


def bundled_checkpoint() -> Path:
    """Find the checkpoint that comes with Captioner: inside the package, or in the checkout.

    Raises:
        CheckpointNotFoundError: this installation has none.

    """
    path = find_bundled("captioner.safetensors")
    if path is None:
        raise CheckpointNotFoundError(
            "the bundled checkpoint is missing from this installation: "
            "install Captioner again, or name a checkpoint file"
        )
    return path


def sample_photos() -> dict[str, Path]:
    """Give the sample photos by name, in the order in which they are shown.

    They are public domain or CC0; CREDITS.md beside them says whose.
    """
    folder = find_bundled("samples")
    photos = {path.stem: path for path in sorted(folder.glob("*.jpg"))} if folder else {}
    # The one that the model does best comes first: it shows what a map looks like that fits.
    return dict(sorted(photos.items(), key=lambda item: item[0] != "coffee"))
