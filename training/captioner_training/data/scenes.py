"""Synthetic scenes with exact captions and boxes, for the recipe smoke and for tests.

A scene has a large and a small shape. Its caption starts with the large one: "a large red circle
above a small blue square". Only this caption is right, so exact matches can be counted. The boxes
show where attention should be. The same seed draws the same bytes.
"""

from __future__ import annotations

import io
import json
import math
import tarfile
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from PIL import Image, ImageDraw

from captioner.shared.files import replace_file, writing
from captioner_training.data.images import add_member
from captioner_training.distributed import progress_bar

Point = tuple[float, float]


def _spokes(count: int, *radii: float) -> list[Point]:
    """Return points around the origin with alternating radii; the first is straight above it."""
    at = [(radii[i % len(radii)], 2 * math.pi * i / count) for i in range(count)]
    return [(r * math.sin(a), -r * math.cos(a)) for r, a in at]


def _heart(t: float) -> Point:
    """Return a point of the heart curve (16 sin^3 t, 13 cos t - 5 cos 2t - 2 cos 3t - cos 4t)."""
    up = 13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)
    return 16 * math.sin(t) ** 3, -up


# Outlines with y downwards; `_outline` scales and centres them. The centre of the box is inside
# each shape, also after rotation.
_CROSS = [(-0.36, -1), (0.36, -1), (0.36, -0.36), (1, -0.36), (1, 0.36), (0.36, 0.36)]
_OUTLINES: Final[Mapping[str, list[Point]]] = {
    "circle": _spokes(90, 1.0),
    "square": [(-1, -1), (1, -1), (1, 1), (-1, 1)],
    "triangle": _spokes(3, 1.0),
    "star": _spokes(10, 1.0, 0.42),
    "heart": [_heart(2 * math.pi * i / 60) for i in range(60)],
    "cross": _CROSS + [(-x, -y) for x, y in _CROSS],
}
# Hue in degrees, saturation, value. Even with jitter, colours differ from each other and from the
# backgrounds.
_TONES: Final[Mapping[str, tuple[float, float, float]]] = {
    "red": (357, 0.86, 0.84),
    "orange": (27, 0.88, 0.96),
    "yellow": (52, 0.80, 0.98),
    "green": (135, 0.78, 0.58),
    "blue": (218, 0.84, 0.86),
    "purple": (281, 0.72, 0.62),
    "white": (0, 0.00, 0.97),
    "black": (0, 0.00, 0.07),
}
_HUE_JITTER: Final = 4.0  # degrees either way
_TONE_JITTER: Final = 0.03  # change of saturation and value, either way
# The axis of the relation (0: x, 1: y), and the direction from the first to the second shape.
_STEPS: Final = {"above": (1, 1), "below": (1, -1), "left of": (0, 1), "right of": (0, -1)}
# Lengths are shares of the image's side.
_SIDE: Final = 128  # pixels
_LARGE: Final = (0.34, 0.44)  # least and greatest longer side of a box
_SMALL: Final = (0.17, 0.22)
_SIDEWAYS: Final = 0.4  # largest ratio of the centres' offset across the axis to that along it
_GAP: Final = 0.05  # least distance of the boxes along the axis
_MARGIN: Final = 0.03  # least distance of a box from the image's edge
_TURN: Final = 12.0  # degrees either way
_FINE: Final = 8  # supersampling factor of edges

SHAPES: Final = tuple(_OUTLINES)
COLORS: Final = tuple(_TONES)
RELATIONS: Final = tuple(_STEPS)


class SceneObject(NamedTuple):
    """One shape as drawn."""

    shape: str  # one of SHAPES
    color: str  # one of COLORS
    box: tuple[float, float, float, float]  # left, top, width, height in pixels, as COCO's bbox


class Scene(NamedTuple):
    """A scene with its caption and objects."""

    image: Image.Image  # RGB, side x side
    caption: str
    objects: tuple[SceneObject, SceneObject]  # the large one first, as in the caption


def draw_scene(seed: int, *, side: int = _SIDE) -> Scene:
    """Draw the scene of a seed.

    Shapes, colours and relation are uniform and independent of each other and of the background, so
    that no word can be guessed from the others.
    """
    rng = Random(seed)
    relation = rng.choice(RELATIONS)
    image = _background(rng, side)
    looks, outlines = [], []
    for extent in (_LARGE, _SMALL):
        looks.append((rng.choice(COLORS), rng.choice(SHAPES)))
        outlines.append(_outline(looks[-1][1], rng.uniform(*extent), rng.uniform(-_TURN, _TURN)))
    centers = _centers(relation, _box(outlines[0])[2:], _box(outlines[1])[2:], rng)
    objects = []
    for (color, shape), outline, (x, y) in zip(looks, outlines, centers, strict=True):
        placed = [((x + dx) * side, (y + dy) * side) for dx, dy in outline]
        image.paste(_fill(color, rng), mask=_coverage(placed, side))
        objects.append(SceneObject(shape, color, _box(placed)))
    (first, one), (second, other) = looks
    caption = f"a large {first} {one} {relation} a small {second} {other}"
    return Scene(image, caption, (objects[0], objects[1]))


def _outline(shape: str, extent: float, degrees: float) -> list[Point]:
    """Rotate a shape, centre its box on the origin, and scale the longer side to `extent`."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    turned = [(x * cos - y * sin, x * sin + y * cos) for x, y in _OUTLINES[shape]]
    left, top, width, height = _box(turned)
    x0, y0, scale = left + width / 2, top + height / 2, extent / max(width, height)
    return [((x - x0) * scale, (y - y0) * scale) for x, y in turned]


def _box(outline: list[Point]) -> tuple[float, float, float, float]:
    xs, ys = zip(*outline, strict=True)
    return min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)


def _centers(relation: str, first: Point, second: Point, rng: Random) -> tuple[Point, Point]:
    """Return the centres of two boxes, given their widths and heights."""
    along, sign = _STEPS[relation]
    across = 1 - along
    before, after = (first, second) if sign > 0 else (second, first)
    low, high = before[along] / 2 + _MARGIN, 1 - after[along] / 2 - _MARGIN
    distance = rng.uniform((first[along] + second[along]) / 2 + _GAP, high - low)
    start = rng.uniform(low, high - distance)
    at, to = (start, start + distance)[::sign]  # the first and second centre along the axis
    edge = first[across] / 2 + _MARGIN, second[across] / 2 + _MARGIN
    aside = rng.uniform(max(edge), 1 - max(edge))
    reach = _SIDEWAYS * distance
    beside = rng.uniform(max(edge[1], aside - reach), min(1 - edge[1], aside + reach))
    return ((at, aside), (to, beside)) if along == 0 else ((aside, at), (beside, to))


def _background(rng: Random, side: int) -> Image.Image:
    """Draw a plain tone, a gradient or a soft texture of two muted tones."""
    hue, saturation = rng.uniform(0, 360), rng.uniform(0.0, 0.22)
    tones = [_hsv(hue, saturation, rng.uniform(0.52, 0.72)) for _ in range(2)]
    first, second = (Image.new("RGB", (side, side), tone) for tone in tones)
    cells = rng.choice((1, 2, 9))  # plain, gradient, texture
    mix = Image.frombytes("L", (cells, cells), rng.randbytes(cells * cells))
    return Image.composite(first, second, mix.resize((side, side), Image.Resampling.BICUBIC))


def _fill(color: str, rng: Random) -> str:
    hue, saturation, value = _TONES[color]
    h, s, v = (rng.uniform(-jitter, jitter) for jitter in (_HUE_JITTER, _TONE_JITTER, _TONE_JITTER))
    # White and black have no saturation: with saturation they would be other colours.
    return _hsv(hue + h, saturation + s if saturation else 0.0, min(value + v, 1.0))


def _hsv(hue: float, saturation: float, value: float) -> str:
    return f"hsv({hue % 360:.3f},{saturation:.3%},{value:.3%})"  # Pillow's syntax


def _coverage(outline: list[Point], side: int) -> Image.Image:
    """Return the share of each pixel that a shape covers, 0 to 255."""
    canvas = Image.new("L", (side * _FINE, side * _FINE))
    # Pillow's coordinates are centres of pixels, ours are edges.
    points = [(x * _FINE - 0.5, y * _FINE - 0.5) for x, y in outline]
    ImageDraw.Draw(canvas).polygon(points, fill=255)
    return canvas.reduce(_FINE)


def scene_seed(*, seed: int, split: str, index: int) -> int:
    """Return the seed of a scene of a data set: the bytes of "seed/split/index" as a number."""
    return int.from_bytes(f"{seed}/{split}/{index}".encode())


def write_scenes(
    folder: Path, *, splits: Mapping[str, int], seed: int = 0, quiet: bool = True
) -> None:
    """Write scenes in COCO's format; `splits` has the number of scenes of each split, by name.

    Each split has SPLIT-00.tar (JPEG files), boxes_SPLIT.json (COCO instances; the categories are
    the shapes) and captions_SPLIT.json (COCO captions). With the same version of Pillow, the same
    arguments write the same bytes.
    """
    with progress_bar("drawing", sum(splits.values()), quiet=quiet, leave=False) as bar:
        for split, count in splits.items():
            images: list[dict[str, object]] = []
            captions: list[dict[str, object]] = []
            boxes: list[dict[str, object]] = []
            archive = io.BytesIO()
            with tarfile.open(fileobj=archive, mode="w", format=tarfile.USTAR_FORMAT) as tar:
                # Ids begin at 1: pycocotools' COCOeval takes id 0 for "no match".
                for key in range(1, count + 1):
                    scene = draw_scene(scene_seed(seed=seed, split=split, index=key - 1))
                    name = f"{split}-{key:06d}.jpg"
                    data = io.BytesIO()
                    scene.image.save(data, "JPEG", quality=95, subsampling=0)  # clean edges
                    add_member(tar, name, data.getvalue())
                    images.append({"id": key, "file_name": name, "width": _SIDE, "height": _SIDE})
                    captions.append({"id": key, "image_id": key, "caption": scene.caption})
                    boxes += [
                        {"id": 2 * key - 1 + at, "image_id": key, **_annotation(item)}
                        for at, item in enumerate(scene.objects)
                    ]
                    bar.update()
            _replace(folder / f"{split}-00.tar", archive.getvalue())
            head = {"info": {"description": f"Drawn scenes: {split}"}, "images": images}
            categories = [{"id": key, "name": shape} for key, shape in enumerate(SHAPES, 1)]
            for kind, content in (
                ("boxes", {**head, "categories": categories, "annotations": boxes}),
                ("captions", {**head, "annotations": captions}),
            ):
                text = json.dumps(content, separators=(",", ":"))
                _replace(folder / f"{kind}_{split}.json", text.encode())


def _annotation(item: SceneObject) -> dict[str, object]:
    area = round(item.box[2] * item.box[3], 2)
    category = SHAPES.index(item.shape) + 1
    box = [round(x, 2) for x in item.box]
    return {"category_id": category, "bbox": box, "area": area, "iscrowd": 0}


def _replace(path: Path, content: bytes) -> None:
    """Write a file unless its content is the same. A new file would invalidate cached grids."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and path.read_bytes() == content:
            return
    with replace_file(path) as file:
        file.write(content)
