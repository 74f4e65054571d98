"""COCO's captions format: one JSON file with `images` and `annotations`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from captioner.errors import DataError
from captioner.shared.tables import read_json


@dataclass(frozen=True, kw_only=True)
class CocoImage:
    """An entry of `images` with the captions of its annotations."""

    id: int | str
    file_name: str
    captions: tuple[str, ...]
    split: str | None = None
    licence: str | None = None


def read_captions(path: Path) -> list[CocoImage]:
    """Read the images of a file in COCO's captions format, in the order of the file.

    Raises DataError: the file cannot be read, has another format, or has no images.
    """
    images = parse_captions(read_json(path, name=str(path)), name=str(path))
    if not images:
        raise DataError(f"{path} has no images")
    return images


def parse_captions(
    content: Any, *, name: str, report: Callable[[str, str], None] | None = None
) -> list[CocoImage]:
    """Parse COCO's captions format. An id may be a number in one list and a string in the other.

    Args:
        content: the JSON value.
        name: name of the file, for messages.
        report: receives the kind and an example of each annotation that cannot be used. If it is
            None, captions of unknown images are ignored, and captions that are not text are errors.

    Raises DataError: the content has another format.
    """
    try:
        return _parse(content, name, report)
    except KeyError as error:
        raise DataError(f"{name} is not in COCO's captions format: there is no {error}") from error
    except (TypeError, AttributeError) as error:
        raise DataError(f"{name} is not in COCO's captions format: {error}") from error


def _parse(content: Any, name: str, report: Callable[[str, str], None] | None) -> list[CocoImage]:
    if not isinstance(content, dict):
        raise TypeError(
            "it has no object with images and annotations; `captioner prepare jsonl` reads lists"
        )
    for part in ("images", "annotations"):
        entries = content[part]
        if not isinstance(entries, list) or any(not isinstance(entry, dict) for entry in entries):
            raise TypeError(f"{part} is not a list of objects")
    captions: dict[str, list[str]] = {}
    for image in content["images"]:
        if not isinstance(image["id"], int | str):
            raise TypeError(f"the id {image['id']!r} is neither a number nor text")
        captions[str(image["id"])] = []
    for annotation in content["annotations"]:
        key, caption = annotation["image_id"], annotation["caption"]
        if str(key) not in captions:
            if report is not None:
                report("caption of an unknown image", f"image {key} in {name}")
        elif isinstance(caption, str):
            captions[str(key)].append(caption)
        elif report is not None:
            report("caption that is not text", f"{caption!r:.40} for image {key} in {name}")
        else:
            raise TypeError(f"image {key} has the caption {caption!r:.40}, which is not text")
    licences = {entry["id"]: entry.get("name") for entry in content.get("licenses") or []}
    return [
        CocoImage(
            id=image["id"],
            file_name=str(image["file_name"]),
            captions=(*captions[str(image["id"])],),
            split=image.get("split"),
            licence=licences.get(image.get("license")),
        )
        for image in content["images"]
    ]
