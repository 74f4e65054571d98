"""What a run measures after each epoch: captions of the validation split, and their scores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from captioner.errors import DataError
from captioner.geometry import Box
from captioner.model import CaptionModel
from captioner.transforms import Transform
from captioner.vocabulary import Vocabulary
from captioner_training.data.dataset import CaptionedImage
from captioner_training.evaluation.grounding import points_at
from captioner_training.evaluation.split import Captioned, caption_split, score_split
from captioner_training.machinery.processes import Processes
from captioner_training.recipe import Recipe

__all__ = ["scene_pointing", "validate"]


def validate(
    model: CaptionModel,
    images: Sequence[CaptionedImage],
    recipe: Recipe,
    *,
    vocabulary: Vocabulary,
    transform: Transform,
    autocast: torch.autocast,
    processes: Processes,
    boxes: Path | None,
) -> tuple[dict[str, float], list[Captioned]]:
    """Caption a split, each process its share; the scores are the same in every process.

    Args:
        boxes: of drawn scenes, to see whether attention points at the right shape.

    """
    mine = list(range(len(images)))[processes.rank :: processes.world]
    captioned = caption_split(
        model,
        [images[index] for index in mine],
        transform=transform,
        vocabulary=vocabulary,
        config=recipe.generation,
        autocast=autocast,
        workers=recipe.data.workers,
    )
    share = [(one.hypothesis, one.words, one.attention) for one in captioned]
    shares = processes.gather(share)
    together = [
        Captioned(image=image, hypothesis=hypothesis, words=words, attention=attention)
        for index, image in enumerate(images)
        for hypothesis, words, attention in [shares[index % len(shares)][index // len(shares)]]
    ]
    scores = None
    if processes.main:
        scores = score_split(together)
        if boxes is not None:
            scores["pointing"] = scene_pointing(together, boxes=boxes)
    return processes.broadcast(scores), together


def scene_pointing(captioned: Sequence[Captioned], *, boxes: Path) -> float:
    """Say how often, in percent, a word for a shape looks most at the very shape that it names.

    The first shape of a scene's caption is its first object, the second its second. A word that
    names another shape than its object counts as a miss.

    Raises:
        DataError: the boxes cannot be read.

    """
    try:
        content = json.loads(boxes.read_text(encoding="utf-8"))
        names = {category["id"]: category["name"] for category in content["categories"]}
        sizes = {image["id"]: (image["width"], image["height"]) for image in content["images"]}
        objects: dict[int | str, list[tuple[str, Box]]] = {}
        for item in content["annotations"]:
            (width, height), (x, y, across, down) = sizes[item["image_id"]], item["bbox"]
            box = Box(x / width, y / height, (x + across) / width, (y + down) / height)
            objects.setdefault(item["image_id"], []).append((names[item["category_id"]], box))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{boxes} is not readable as COCO instances: {error!r}") from error
    shapes = set(names.values())
    right = total = 0
    for one in captioned:
        looks = [] if one.attention is None else zip(one.words, one.attention, strict=True)
        said = [(word, attention) for word, attention in looks if word in shapes]
        wanted = objects[one.image.id]
        total += len(wanted)
        right += sum(
            word == shape and points_at(attention, [box])
            for (word, attention), (shape, box) in zip(said, wanted, strict=False)
        )
    return 100 * right / max(1, total)
