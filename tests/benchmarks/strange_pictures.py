"""Pictures that are no photos of scenes: drawings, textures, logos, scans and instruments' images.

    python -m tests.benchmarks.strange_pictures DIR

Writes them into DIR, for `captioner batch DIR`, which counts unfamiliar ones: 40 scenes that
Captioner draws, and what comes with scikit-image (pip install scikit-image), but for its photos.
"""

from __future__ import annotations

import sys
from pathlib import Path

import skimage
from PIL import Image

from captioner_training.data.scenes import draw_scene

# Textures; scans of text; a logo; drawings and patterns; what microscopes, telescopes and scanners
# of hospitals see.
NAMES = (
    *("brick", "grass", "gravel", "page", "text", "logo", "horse", "chessboard_GRAY"),
    *("chessboard_RGB", "color", "phantom", "coins", "cell", "ihc", "microaneurysms", "moon"),
    *("retina", "hubble_deep_field"),
)


def main() -> None:
    """Write the pictures."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for seed in range(40):
        draw_scene(10_000 + seed).image.save(folder / f"scene-{seed}.png")
    data = Path(skimage.__file__).parent / "data"
    for name in NAMES:
        path = next(data.glob(f"{name}.*"))
        Image.open(path).convert("RGB").save(folder / f"{name}.png")


if __name__ == "__main__":
    main()
