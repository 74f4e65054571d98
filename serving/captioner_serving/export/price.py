"""What a smaller model costs: its sentences and its time beside those of the exact one."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

from captioner.errors import DataError
from captioner.vision.header import IMAGE_SUFFIXES
from captioner_serving.export.parity import load_app

__all__ = ["measure_price"]


def measure_price(exact: Path, small: Path, photos: Path) -> str:
    """Caption a folder of photos with two exported folders, and say in how much they differ.

    Args:
        exact: the exported model.
        small: the quantised one.
        photos: a folder; what in it cannot be read does not count.

    Raises DataError: there is no photo in it.
    """
    models = [load_app(folder).Captioner(folder) for folder in (exact, small)]
    said: tuple[list[str], list[str]] = [], []
    seconds = [0.0, 0.0]
    for path in sorted(photos.rglob("*")):
        if path.suffix.lower() not in IMAGE_SUFFIXES:
            continue
        try:
            models[0].open(path)
        except Exception:  # Pillow raises many of a damaged file
            continue
        for at, model in enumerate(models):
            start = perf_counter()
            said[at].append(model.caption(path, attention=False)["caption"])
            seconds[at] += perf_counter() - start
    if not (count := len(said[0])):
        raise DataError(f"--check {photos} has no photos that can be read")
    same = sum(one == other for one, other in zip(*said, strict=True))
    exact_ms, small_ms = (1000 * each / count for each in seconds)
    return (
        f"{same} of {count} sentences are the same; {small_ms:.0f} ms a photo in place of "
        f"{exact_ms:.0f}"
    )
