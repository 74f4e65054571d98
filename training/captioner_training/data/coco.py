"""COCO's captions format: one JSON file with `images` and `annotations`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from captioner.errors import DataError
from captioner.paths import there_is_no

__all__ = ["CocoImage", "read_captions"]


@dataclass(frozen=True, kw_only=True)
class CocoImage:
    """An entry of `images` with the captions of its annotations."""

    id: int | str
    file_name: str
    captions: tuple[str, ...]


def read_captions(path: Path) -> list[CocoImage]:
    """Read the images of a file in COCO's captions format, in its order.

    Raises DataError: the file cannot be read, has another format, or has no images.
    """
    try:
        images = _images(json.loads(path.read_bytes()))
    except FileNotFoundError as error:
        raise DataError(there_is_no("file", path)) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except KeyError as error:
        raise DataError(f"{path} is not in COCO's captions format: there is no {error}") from error
    except (TypeError, AttributeError) as error:
        raise DataError(f"{path} is not in COCO's captions format: {error}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}") from error
    if not images:
        raise DataError(f"{path} has no images")
    return images


def _images(content: Any) -> list[CocoImage]:
    if not isinstance(content, dict):
        raise TypeError(
            "it has no object with images and annotations; `captioner prepare jsonl` reads lists"
        )
    captions: dict[int | str, list[str]] = {}
    for image in content["images"]:
        if not isinstance(image["id"], int | str):
            raise TypeError(f"the id {image['id']!r} is neither a number nor text")
        captions[image["id"]] = []
    for annotation in content["annotations"]:
        key, caption = annotation["image_id"], annotation["caption"]
        if not isinstance(caption, str):
            raise TypeError(f"image {key} has the caption {caption!r:.40}, which is not text")
        if key in captions:
            captions[key].append(caption)
    return [
        CocoImage(
            id=image["id"], file_name=str(image["file_name"]), captions=(*captions[image["id"]],)
        )
        for image in content["images"]
    ]
