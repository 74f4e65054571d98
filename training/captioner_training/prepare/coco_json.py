"""COCO's captions format, read the same way for preparing, training and scoring."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from captioner.errors import DataError
from captioner_training.prepare.listing import ListedImage, Problems

__all__ = ["coco_images"]


def coco_images(
    content: Any, problems: Problems, *, name: str, split: str | None = None
) -> list[ListedImage]:
    """Read COCO's captions format. `split` counts before one that an image record names.

    Raises:
        DataError: the content is not in that format.

    """
    if isinstance(content, list):
        raise DataError(
            f"{name} is not in COCO's captions format, an object with images and annotations, but "
            "a list: if each of its objects names an image and its captions, `captioner prepare "
            "jsonl` reads it"
        )
    try:
        return _listed(content, problems, name, split)
    except KeyError as error:
        raise DataError(f"{name} is not in COCO's captions format: there is no {error}") from error
    except (TypeError, AttributeError) as error:
        raise DataError(f"{name} is not in COCO's captions format: {error}") from error


def _listed(content: Any, problems: Problems, name: str, split: str | None) -> list[ListedImage]:
    if not isinstance(content, dict):
        raise TypeError("it is no object with images and annotations")
    for part in ("images", "annotations"):
        entries = content[part]
        if not isinstance(entries, list) or any(not isinstance(one, dict) for one in entries):
            raise TypeError(f"its {part} are no list of objects")
    captions = defaultdict[int | str, list[str]](list)
    listed: dict[int | str, int] = {}
    for image in content["images"]:
        if not isinstance(image["id"], int | str):
            raise TypeError(f"an image's id is {image['id']!r}")
        listed[image["id"]] = 0
    for one in content["annotations"]:
        key, caption = one["image_id"], one["caption"]
        if key not in listed:
            problems.add("caption of an unknown image", f"image {key} in {name}")
        elif isinstance(caption, str):
            captions[key].append(caption)
        else:
            where = f"{caption!r:.40} for image {key} in {name}"
            problems.add("caption that is no text", where)
    licences = {one["id"]: one.get("name") for one in content.get("licenses") or []}
    return [
        ListedImage(
            id=image["id"],
            file_name=str(image["file_name"]),
            captions=tuple(captions[image["id"]]),
            split=split or image.get("split"),
            licence=licences.get(image.get("license")),
        )
        for image in content["images"]
    ]
