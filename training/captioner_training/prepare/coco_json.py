"""COCO's captions format, read the same way for preparing, training and scoring."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

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
    try:
        images, annotations = list(content["images"]), list(content["annotations"])
        licences = {one["id"]: one.get("name") for one in content.get("licenses") or []}
        ids = {image["id"] for image in images}
        if wrong := [key for key in ids if not isinstance(key, int | str)]:
            raise TypeError(f"an image's id is {wrong[0]!r}")
        captions: dict[int | str, list[str]] = defaultdict(list)
        for annotation in annotations:
            if annotation["image_id"] in ids:
                captions[annotation["image_id"]].append(str(annotation["caption"]))
            else:
                about = f"image {annotation['image_id']} in {name}"
                problems.add("caption of an unknown image", about)
        return [
            ListedImage(
                id=image["id"],
                file_name=str(image["file_name"]),
                captions=tuple(captions.get(image["id"], ())),
                split=split or image.get("split"),
                licence=licences.get(image.get("license")),
            )
            for image in images
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{name} is not in COCO's captions format: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return f"there is no {error}" if isinstance(error, KeyError) else str(error)
