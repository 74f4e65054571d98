"""COCO's captions format, read the same way for preparing, training and scoring."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Iterator
from typing import Any

from pycocotools.coco import COCO

from captioner.errors import DataError
from captioner_training.prepare.images import ListedImage
from captioner_training.prepare.problems import Problems

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
        coco = _index(content)
        images: list[dict[str, Any]] = coco.dataset["images"]
        licences = {one["id"]: one.get("name") for one in content.get("licenses") or []}
        if wrong := [key for key in coco.imgs if not isinstance(key, int | str)]:
            raise TypeError(f"an image's id is {wrong[0]!r}")
        for key in coco.imgToAnns.keys() - coco.imgs.keys():
            count = len(coco.imgToAnns[key])
            problems.add("caption of an unknown image", f"image {key} in {name}", count=count)
        return [
            ListedImage(
                id=image["id"],
                file_name=str(image["file_name"]),
                captions=tuple(_texts(coco.imgToAnns.get(image["id"], ()), problems, name)),
                split=split or image.get("split"),
                licence=licences.get(image.get("license")),
            )
            for image in images
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{name} is not in COCO's captions format: {_reason(error)}") from error


def _texts(notes: Iterable[dict[str, Any]], problems: Problems, name: str) -> Iterator[str]:
    for one in notes:
        if isinstance(caption := one["caption"], str):
            yield caption
        else:
            where = f"{caption!r:.40} for image {one['image_id']} in {name}"
            problems.add("caption that is no text", where)


def _index(content: Any) -> COCO:
    """Let pycocotools order the annotations by image; it wants every one to have an id."""
    if not isinstance(content, dict):
        raise TypeError("it is no object with images and annotations")
    for part in ("images", "annotations"):
        entries = content[part]
        if not isinstance(entries, list) or any(not isinstance(one, dict) for one in entries):
            raise TypeError(f"its {part} are no list of objects")
    coco = COCO()
    coco.dataset = {
        "images": list(content["images"]),
        "annotations": [{"id": at, **one} for at, one in enumerate(content["annotations"])],
    }
    with contextlib.redirect_stdout(io.StringIO()):  # it prints its progress
        coco.createIndex()
    return coco


def _reason(error: Exception) -> str:
    return f"there is no {error}" if isinstance(error, KeyError) else str(error)
