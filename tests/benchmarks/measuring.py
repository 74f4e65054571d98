"""Helpers of the benchmarks: timings, tables and photos."""

from __future__ import annotations

import io
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from PIL import Image

from captioner.shared.paths import sample_photos

__all__ = ["Table", "seconds", "write_photos"]


def seconds(function: Callable[[], object]) -> float:
    """How long a call takes."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


class Table:
    """A table of numbers. Each row is printed as soon as it is measured.

    Args:
        title: printed above the table.
        name: the header of the first column.
        *columns: the headers of the numbers, with their units.
    """

    def __init__(self, title: str, name: str, *columns: str) -> None:
        self._widths = [max(9, len(column)) + 2 for column in columns]
        print(f"\n{title}")
        self._print(name, columns)

    def row(self, name: str, *values: float | None) -> None:
        """Print the numbers of a row with three digits or more; None is left blank."""
        self._print(name, map(_format, values))

    def _print(self, name: str, cells: Iterable[str]) -> None:
        pairs = zip(cells, self._widths, strict=True)
        print(f"{name:<36}" + "".join(f"{cell:>{width}}" for cell, width in pairs), flush=True)


def _format(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.{2 if abs(value) < 10 else 1 if abs(value) < 100 else 0}f}"


def write_photos(folder: Path, count: int, *sizes: tuple[int, int]) -> list[Path]:
    """Write JPEG files of the sample photos, cropped in many ways. No two files are equal."""
    chance = random.Random(0)
    samples = [Image.open(file).convert("RGB") for file in sample_photos().values()]
    photos = [
        crop(chance.choice(samples), chance, sizes[turn % len(sizes)])
        for turn in range(min(64, count))
    ]
    paths = [folder / f"{number:05}.jpg" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_bytes(photos[number % len(photos)] + b"%08d" % number)
    return paths


def crop(photo: Image.Image, chance: random.Random, size: tuple[int, int]) -> bytes:
    """Return a random part of a photo as a JPEG of this size."""
    width, height = (side * chance.uniform(0.6, 1) for side in photo.size)
    left, top = chance.uniform(0, photo.width - width), chance.uniform(0, photo.height - height)
    box = (left, top, left + width, top + height)
    file = io.BytesIO()
    photo.resize(size, Image.Resampling.BICUBIC, box=box).save(file, "JPEG", quality=90)
    return file.getvalue()
