"""What `captioner evaluate` measures of a checkpoint on a split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from captioner.predictor import Captioner
from captioner_training.data.dataset import CaptionedImage
from captioner_training.evaluation.calibration import measure_calibration
from captioner_training.evaluation.deletion import measure_deletion
from captioner_training.evaluation.facts import describe_captions
from captioner_training.evaluation.predictions import targets, write_predictions
from captioner_training.evaluation.scores import fallback_scores, official_scores
from captioner_training.evaluation.split import caption_split, person_grounding, score_split

__all__ = ["Asked", "CaptionedSplit"]

Parts = dict[str, Callable[[], object]]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is measured beside the scores; each field is the option of that name."""

    official: bool = False
    boxes: Path | None = None
    calibration: bool = False
    deletion: bool = False
    training: Path | None = None
    predictions: Path | None = None


class CaptionedSplit:
    """A split with the captions that a checkpoint makes for it.

    Args:
        captioner: the checkpoint, ready for use.
        images: the split.
        beam_size: None means the checkpoint's own.

    """

    def __init__(
        self, captioner: Captioner, images: Sequence[CaptionedImage], *, beam_size: int | None
    ) -> None:
        self.captioner = captioner
        self.images = images
        self.targets = targets(images)
        self.config = captioner.generation
        if beam_size is not None:
            self.config = replace(self.config, beam_size=beam_size)
        self.autocast = torch.autocast(captioner.device.type, enabled=False)
        self.captioned = caption_split(
            captioner.model,
            images,
            transform=captioner.transform,
            vocabulary=captioner.vocabulary,
            config=self.config,
            autocast=self.autocast,
        )
        self.tokens = [one.words for one in self.captioned]
        self.captions = [captioner.vocabulary.join(words) for words in self.tokens]

    def facts(self) -> dict[str, object]:
        """Say what made the captions."""
        name = self.captioner.name
        return {
            "beam_size": self.config.beam_size,
            "dtype": str(self.captioner.dtype).removeprefix("torch."),
            "checkpoint": {
                "name": name.name,
                "version": name.version,
                "hash": self.captioner.fingerprint,
            },
        }

    def parts(self, asked: Asked) -> Parts:
        """Name what is asked for; each is measured when it is called."""
        references = [one.words for one in self.images]
        parts: Parts = {
            "nltk": lambda: {
                **score_split(self.captioned),
                **fallback_scores(references, self.tokens),
            },
            "captions": lambda: describe_captions(
                self.tokens, references=references, training=asked.training
            ),
        }
        if asked.official:
            written = [one.captions for one in self.images]
            parts["pycocoevalcap"] = lambda: official_scores(written, self.captions)
        if asked.boxes:
            parts["person_boxes"] = partial(
                person_grounding,
                self.captioned,
                boxes=asked.boxes,
                transform=self.captioner.transform,
            )
        if asked.calibration:
            parts["calibration"] = self._calibration
        if asked.deletion:
            parts["deletion"] = self._deletion
        if asked.predictions:
            parts["predictions"] = partial(self._write, asked.predictions)
        return parts

    def _calibration(self) -> object:
        return measure_calibration(
            self.captioner.model,
            self.images,
            transform=self.captioner.transform,
            vocabulary=self.captioner.vocabulary,
            maximum_length=self.config.maximum_length,
            autocast=self.autocast,
        )

    def _deletion(self) -> object:
        return measure_deletion(
            self.captioner.model,
            self.captioned,
            transform=self.captioner.transform,
            autocast=self.autocast,
        )

    def _write(self, path: Path) -> str:
        scores = [one.hypothesis.score for one in self.captioned]
        write_predictions(path, self.targets, self.captions, scores)
        return str(path)
