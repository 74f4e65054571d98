"""What an ablation measures of one trained checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from captioner.checkpoint import Checkpoint
from captioner.encoder import Grid
from captioner.geometry import Framing, TransformConfig
from captioner.transforms import Transform
from captioner_training.ablation.config import people_boxes
from captioner_training.ablation.table import Measures
from captioner_training.data.grids import CachedGrids
from captioner_training.data.images import CaptionedImage
from captioner_training.data.reading import read_dataset
from captioner_training.evaluation.bootstrap import estimate, told
from captioner_training.evaluation.boxes import check_boxes, read_boxes
from captioner_training.evaluation.captioned import Captioned
from captioner_training.evaluation.deletion import DeletionTest
from captioner_training.evaluation.grounded import category_grounding
from captioner_training.evaluation.scores import score_tables
from captioner_training.evaluation.split import caption_split
from captioner_training.evaluation.validation import scene_pointing
from captioner_training.machinery.processes import Processes

__all__ = ["Examination", "People"]


class People:
    """Photos with boxes of the people in them, to see whether attention for people is on them.

    Args:
        folder: a data set with captions_val.json, its images, and person_boxes_val.json.

    Raises:
        ConfigError: there are no boxes.
        DataError: the data set or the boxes cannot be read, or are not of the same images.

    """

    def __init__(self, folder: Path) -> None:
        self.boxes = people_boxes(folder)
        self.images = read_dataset(folder, split="val")
        ids = {one.id for one in self.images}
        check_boxes(self.boxes, Framing(TransformConfig()), ids=ids)


@dataclass(frozen=True, kw_only=True)
class Examination:
    """What every checkpoint is measured on, in float32.

    images: the validation split.
    scenes: the boxes of drawn scenes, where these are the data.
    people: where grounding is measured on photos.
    deletion: on the captions of how many images the deletion test is made: it takes longest.
    cache: the folder of the grids.
    workers: processes that decode images.
    """

    images: Sequence[CaptionedImage]
    scenes: Path | None
    people: People | None
    deletion: int
    cache: Path
    workers: int

    def measure(self, checkpoint: Checkpoint, processes: Processes) -> Measures:
        """Caption, score, and test where the words come from.

        Raises:
            CaptionerError: data cannot be read, or grids not be written.

        """
        exact = torch.autocast(processes.device.type, enabled=False)
        model = checkpoint.model.to(processes.device).eval()
        transform = Transform(checkpoint.transform)

        def encoded(images: Sequence[CaptionedImage]) -> CachedGrids:
            return CachedGrids.compute(
                model.encoder,
                images,
                transform,
                folder=self.cache,
                processes=processes,
                dtype=torch.float32,
                workers=self.workers,
            )

        def captions(
            images: Sequence[CaptionedImage],
            after_batch: Callable[[Grid, Sequence[Captioned]], None] | None = None,
        ) -> list[Captioned]:
            grids = encoded(images)
            return caption_split(
                model,
                images,
                transform=transform,
                vocabulary=checkpoint.vocabulary,
                config=checkpoint.generation,
                autocast=exact,
                grids=(grids, range(len(images))),
                after_batch=after_batch,
            )

        test = DeletionTest(
            model.decoder,
            vocabulary=checkpoint.vocabulary,
            autocast=exact,
            insertion=False,
            images=self.deletion,
        )
        captioned = captions(self.images, test.add)
        found = self._scores(captioned)
        if (content := test.content()) is not None:
            found |= _picked(content, {"deletion effect": "effect"})
        if self.scenes is not None:
            right = scene_pointing(captioned, boxes=self.scenes, transform=transform)
            found["pointing"] = {"value": right}
        if self.people is not None:
            style = checkpoint.generation.style
            shown = captions([replace(one, style=style) for one in self.people.images])
            looks = category_grounding(shown, read_boxes(self.people.boxes, transform), "person")
            if looks is not None:  # a model that has learned little may speak of nobody
                found |= _picked(looks, {"on people": "attention", "by chance": "uniform"})
        decoder = sum(parameter.numel() for parameter in model.decoder.parameters())
        found["parameters"] = {"value": float(decoder)}
        return found

    def _scores(self, captioned: Sequence[Captioned]) -> Measures:
        references, words = [one.words for one in self.images], [one.words for one in captioned]
        scores = told(estimate(score_tables(references, words)))
        return _picked(scores, {"BLEU-4": "BLEU-4", "CIDEr": "CIDEr"})


def _picked(report: dict[str, Any], names: dict[str, str]) -> Measures:
    """Take some scores of a report by the names that the table gives them."""
    picked: Measures = {}
    for name, theirs in names.items():
        low, high = report["intervals"][theirs]
        picked[name] = {"value": report[theirs], "low": low, "high": high}
    return picked
