"""Captioning a whole split, and what can be said of the result without another scorer."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from captioner.errors import DataError
from captioner.generation.config import GenerationConfig
from captioner.generation.generate import generate
from captioner.generation.hypothesis import Hypothesis
from captioner.model import CaptionModel
from captioner.transforms import Box, Transform
from captioner.vocabulary import Vocabulary
from captioner_training.data.dataset import CaptionedImage
from captioner_training.data.loader import make_split_loader
from captioner_training.evaluation.grounding import (
    PERSON_WORDS,
    center_weighted_attention,
    mass_in_boxes,
    points_at,
    uniform_attention,
    word_distance,
)
from captioner_training.evaluation.scores import bleu
from captioner_training.objectives.cider import CiderD

__all__ = ["Captioned", "caption_split", "person_grounding", "score_split"]


@dataclass(frozen=True, kw_only=True)
class Captioned:
    """One image of a split with the sentence made for it."""

    image: CaptionedImage
    hypothesis: Hypothesis
    words: list[str]
    attention: Tensor | None  # (words, rows, columns); None where the model does not attend


@torch.inference_mode()
def caption_split(
    model: CaptionModel,
    images: Sequence[CaptionedImage],
    *,
    transform: Transform,
    vocabulary: Vocabulary,
    config: GenerationConfig,
    autocast: torch.autocast,
    workers: int = 2,
    batch_size: int = 50,
) -> list[Captioned]:
    """Caption every image, in order, on the model's device."""
    device = next(model.parameters()).device
    model.eval()
    loader = make_split_loader(images, transform, workers=workers, batch_size=batch_size)
    captioned: list[Captioned] = []
    for pixels, _ in tqdm(loader, desc="captions", leave=False, disable=None):
        with autocast:
            grid = model.encode(transform.normalize(pixels.to(device)))
            results = generate(model.decoder, grid.features, config)
        for hypotheses in results:
            best = hypotheses[0]
            maps = best.attention
            captioned.append(
                Captioned(
                    image=images[len(captioned)],
                    hypothesis=best,
                    words=vocabulary.decode(best.tokens),
                    attention=None if maps is None else maps.reshape(-1, grid.rows, grid.columns),
                )
            )
    return captioned


def score_split(captioned: Sequence[Captioned]) -> dict[str, float]:
    """BLEU by nltk, CIDEr-D, the number of different captions, exact ones, and how attention moves.

    `attention_distance` is the total-variation distance between the words of a caption, averaged
    over the captions of two words or more.
    """
    scores = bleu(
        [[list(words) for words in one.image.words] for one in captioned],
        [one.words for one in captioned],
    )
    references = [one.image.words for one in captioned]
    cider = CiderD(references).score(references, [[one.words] for one in captioned])
    scores["CIDEr"] = 100 * float(cider.mean())
    scores["different"] = float(len({tuple(one.words) for one in captioned}))
    exact = sum(tuple(one.words) in one.image.words for one in captioned)
    scores["exact"] = 100 * exact / len(captioned)
    distances = [
        word_distance(one.attention)
        for one in captioned
        if one.attention is not None and len(one.words) > 1
    ]
    scores["attention_distance"] = sum(distances) / max(1, len(distances))
    scores["words"] = sum(len(one.words) for one in captioned) / len(captioned)
    return scores


def person_grounding(
    captioned: Sequence[Captioned], *, boxes: Path, transform: Transform
) -> dict[str, float]:
    """Measure how much attention words for people leave inside the boxes of people.

    Args:
        captioned: a captioned split.
        boxes: COCO's instances format, with the boxes of people in these images.
        transform: of the checkpoint, to find the boxes on the grid.

    Returns:
        Means over all words for people in images with boxes: the share of attention inside the
        boxes (`attention`), what uniform and centre-weighted attention would leave there, and how
        often the most attended cell lies in a box (`pointing`).

    Raises:
        DataError: the file cannot be read, or has boxes for none of the images.

    """
    found = _read_boxes(boxes, transform)
    sums: dict[str, float] = defaultdict(float)
    for one in captioned:
        if one.attention is None:
            raise DataError("the model captions without attention: there is nothing to compare")
        for word, attention in zip(one.words, one.attention, strict=True):
            if word in PERSON_WORDS and one.image.id in found:
                there = found[one.image.id]
                size = attention.shape[0], attention.shape[1]
                sums["words"] += 1
                sums["attention"] += mass_in_boxes(attention, there)
                sums["uniform"] += mass_in_boxes(uniform_attention(*size), there)
                sums["center_weighted"] += mass_in_boxes(center_weighted_attention(*size), there)
                sums["pointing"] += points_at(attention, there)
    if not sums["words"]:
        raise DataError(f"{boxes} has no boxes for images whose captions speak of people")
    return {
        name: value if name == "words" else value / sums["words"] for name, value in sums.items()
    }


def _read_boxes(path: Path, transform: Transform) -> dict[int | str, list[Box]]:
    """Read boxes by image, in fractions of the square that the grid covers."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        sizes = {image["id"]: (image["width"], image["height"]) for image in content["images"]}
        found: dict[int | str, list[Box]] = defaultdict(list)
        for annotation in content["annotations"]:
            width, height = sizes[annotation["image_id"]]
            left, top, across, down = annotation["bbox"]
            box = Box(left / width, top / height, (left + across) / width, (top + down) / height)
            found[annotation["image_id"]].append(_on_square(box, transform.box(width, height)))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is not readable as COCO instances: {error!r}") from error
    return found


def _on_square(box: Box, seen: Box) -> Box:
    """Turn fractions of the photo into fractions of the part of it that the encoder sees."""
    width, height = seen.right - seen.left, seen.bottom - seen.top
    return Box(
        (box.left - seen.left) / width,
        (box.top - seen.top) / height,
        (box.right - seen.left) / width,
        (box.bottom - seen.top) / height,
    )
