"""What `captioner evaluate` measures of a checkpoint on a split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from captioner.errors import CaptionerError
from captioner.predictor import Captioner
from captioner.vision.encoder import Grid
from captioner_training.data.images import CaptionedImage
from captioner_training.evaluation.boxes import Boxes
from captioner_training.evaluation.calibration import Calibration
from captioner_training.evaluation.captioned import Captioned
from captioner_training.evaluation.confidence import measure_confidence
from captioner_training.evaluation.deletion import DeletionTest
from captioner_training.evaluation.facts import describe_captions
from captioner_training.evaluation.familiarity import measure_familiarity
from captioner_training.evaluation.grounding import object_grounding, person_grounding
from captioner_training.evaluation.hallucination import categories_there
from captioner_training.evaluation.image_row import ImageRow
from captioner_training.evaluation.predictions import (
    Target,
    targets,
    tokenized,
    write_predictions,
)
from captioner_training.evaluation.rows import image_rows
from captioner_training.evaluation.scores import fallback_scores, official_scores, score_split
from captioner_training.evaluation.split import caption_split

__all__ = ["Asked", "BatchMeasure", "CaptionedSplit"]

Parts = dict[str, Callable[[], object]]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is measured beside the scores; each field is the option of that name, or its content."""

    official: bool = False
    boxes: Boxes | None = None
    calibration: bool = False
    deletion: bool = False
    training: Sequence[Target] | None = None
    predictions: Path | None = None
    unlike: Path | None = None


class BatchMeasure(Protocol):
    """What is measured batch by batch while a split is captioned."""

    def add(self, grid: Grid, captioned: Sequence[Captioned]) -> None:
        """Measure the next images of the split."""

    def result(self) -> dict[str, object]:
        """Say what was found of all of them."""


class CaptionedSplit:
    """A split with the captions that a checkpoint makes for it.

    Each photo is opened and encoded once, whatever is measured.

    Args:
        captioner: the checkpoint, ready for use.
        images: the split.
        asked: what is to be measured.
        beam_size: None means the checkpoint's own.
        style: of the captions; None means the checkpoint's own.
        corpus: the whole split of which these images are a part; None: they are all of it.

    """

    def __init__(
        self,
        captioner: Captioner,
        images: Sequence[CaptionedImage],
        *,
        asked: Asked,
        beam_size: int | None,
        style: str | None = None,
        corpus: Sequence[Target] | None = None,
    ) -> None:
        self.asked, self.corpus = asked, corpus
        tokenizer = captioner.vocabulary.tokenizer
        self._tokenized = None if corpus is None else tokenized(corpus, tokenizer)
        self.captioner = captioner
        self.config = captioner.generation.asked(beam_size=beam_size, style=style)
        self.style = captioner.vocabulary.style(self.config.style)
        self.images = [replace(image, style=self.config.style) for image in images]
        self.targets = targets(images)
        autocast = torch.autocast(captioner.device.type, enabled=False)
        decoder = captioner.model.decoder
        self._means: list[Tensor] = []  # of the grids of each batch
        self._beside: dict[str, BatchMeasure] = {}
        self._failed: dict[str, CaptionerError] = {}
        self._calibration: Calibration | None = None
        if asked.calibration:
            self._calibration = self._beside["calibration"] = Calibration(
                decoder,
                vocabulary=captioner.vocabulary,
                maximum_length=self.config.maximum_length,
                autocast=autocast,
            )
        if asked.deletion:
            self._beside["deletion"] = DeletionTest(
                decoder, vocabulary=captioner.vocabulary, autocast=autocast
            )
        self.captioned = caption_split(
            captioner.model,
            self.images,
            transform=captioner.transform,
            vocabulary=captioner.vocabulary,
            config=self.config,
            autocast=autocast,
            after_batch=self._measure,
        )
        self.tokens = [one.words for one in self.captioned]
        self.captions = [captioner.vocabulary.join(words) for words in self.tokens]

    def facts(self) -> dict[str, object]:
        """Say what made the captions."""
        name = self.captioner.name
        return {
            "beam_size": self.config.beam_size,
            **({} if self.style is None else {"style": self.style}),
            "dtype": str(self.captioner.dtype).removeprefix("torch."),
            "checkpoint": {
                "name": name.name,
                "version": name.version,
                "hash": self.captioner.fingerprint,
            },
        }

    def _measure(self, grid: Grid, captioned: Sequence[Captioned]) -> None:
        """Measure a batch while its grids are there; a failure costs no more than itself."""
        self._means.append(grid.features.float().mean(dim=1).cpu())
        for name, one in self._beside.items():
            if name not in self._failed:
                try:
                    one.add(grid, captioned)
                except CaptionerError as error:
                    self._failed[name] = error

    def _measured(self, name: str) -> object:
        if name in self._failed:
            raise self._failed[name]
        return self._beside[name].result()

    def parts(self) -> Parts:
        """Name what is asked for; the rest of the work on each is done when it is called."""
        asked = self.asked
        references = [one.words for one in self.images]
        parts: Parts = {
            "nltk": lambda: {
                **score_split(self.captioned),
                **fallback_scores(references, self.tokens, corpus=self._tokenized),
            },
            "captions": lambda: describe_captions(
                self.tokens,
                references=references,
                training=asked.training,
                objects=categories_there(asked.boxes, [one.id for one in self.targets]),
                tokenizer=self.captioner.vocabulary.tokenizer,
            ),
            "confidence": lambda: measure_confidence(
                self.captioned, [row.cider for row in self.rows]
            ),
        }
        if asked.official:
            written = [one.captions for one in self.images]
            whole = None if self.corpus is None else [one.references for one in self.corpus]
            parts["pycocoevalcap"] = partial(official_scores, written, self.captions, corpus=whole)
        if asked.boxes is not None:
            boxes = asked.boxes
            names = {one.category for each in boxes.values() for one in each}
            if names & {"", "person"}:
                parts["person_boxes"] = partial(person_grounding, self.captioned, boxes)
            if names - {"", "person"}:
                parts["object_boxes"] = partial(object_grounding, self.captioned, boxes)
        if asked.unlike or self.captioner.familiarity is not None:
            parts["familiarity"] = lambda: measure_familiarity(
                self.captioner,
                self._mean_grids,
                [row.cider for row in self.rows],
                unlike=asked.unlike,
            )
        parts |= {name: partial(self._measured, name) for name in self._beside}
        if asked.predictions:
            parts["predictions"] = partial(self._write, asked.predictions)
        return parts

    @cached_property
    def rows(self) -> list[ImageRow]:
        """The images one by one, each scored by itself."""
        known = self.captioner.familiarity
        surprise = None
        if self._calibration is not None and "calibration" not in self._failed:
            nats, tokens = self._calibration.cross_entropy()
            surprise = list(zip(nats.tolist(), tokens.tolist(), strict=True))
        return image_rows(
            self.targets,
            self.captions,
            words=self.tokens,
            references=[one.words for one in self.images],
            corpus=self._tokenized,
            scores=[one.hypothesis.score for one in self.captioned],
            familiarity=None if known is None else known.of(self._mean_grids.unsqueeze(1)),
            surprise=surprise,
        )

    @property
    def _mean_grids(self) -> Tensor:
        return torch.cat(self._means)

    def _write(self, path: Path) -> str:
        scores = [one.hypothesis.score for one in self.captioned]
        write_predictions(path, self.targets, self.captions, scores)
        return str(path)
