"""A split captioned by a checkpoint, with the measures of `captioner evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from captioner.captioner import Captioner
from captioner.errors import CaptionerError
from captioner.model.encoder import Grid
from captioner.trust.familiarity import pool
from captioner.trust.trust import Judgement
from captioner.vocabulary import SPECIAL_TOKENS
from captioner_training.data.captioned import Captioned
from captioner_training.data.images import CaptionedImage
from captioner_training.evaluation.boxes import Boxes
from captioner_training.evaluation.calibration import Calibration, force_references
from captioner_training.evaluation.caption_set import CaptionSet, Parts
from captioner_training.evaluation.deletion import DeletionTest, EffectMeans
from captioner_training.evaluation.familiarity import measure_familiarity
from captioner_training.evaluation.foreign import caption_foreign, force_foreign
from captioner_training.evaluation.grounding import object_grounding, person_grounding
from captioner_training.evaluation.predictions import Target, targets, write_predictions
from captioner_training.evaluation.report import ImageRow
from captioner_training.evaluation.scores import model_facts, token_name
from captioner_training.evaluation.split import caption_split
from captioner_training.evaluation.trust import measure_trust

if TYPE_CHECKING:
    from captioner.huggingface.captioner import HuggingFaceCaptioner


class CaptionedSplit:
    """A split captioned by a checkpoint. Each photo is opened and encoded once for all measures.

    Args:
        captioner: the checkpoint.
        images: the split.
        calibration: measure the calibration of next-word probabilities.
        deletion: run the deletion test.
        beam_size: number of hypotheses; None: the checkpoint's default.
        style: style of the captions; None: the checkpoint's default.
        corpus: the whole split, if the images are only a part of it.
    """

    def __init__(
        self,
        captioner: Captioner,
        images: Sequence[CaptionedImage],
        *,
        calibration: bool = False,
        deletion: bool = False,
        beam_size: int | None = None,
        style: str | None = None,
        corpus: Sequence[Target] | None = None,
    ) -> None:
        self.captioner = captioner
        self.config = captioner.generation.for_request(beam_size=beam_size, style=style)
        self.style = captioner.vocabulary.style(self.config.style)
        self._pooled: list[NDArray[np.float32]] = []  # the pooled grids of each batch
        self._measures: dict[str, Calibration | DeletionTest | EffectMeans] = {}
        self._failed: dict[str, CaptionerError] = {}
        images = [replace(image, style=self.config.style) for image in images]
        caption = self._caption if captioner.source is None else self._caption_foreign
        self.captioned = caption(images, calibration=calibration, deletion=deletion)
        vocabulary = captioner.vocabulary
        captions = [
            vocabulary.join(vocabulary.decode(caption.hypothesis.tokens))
            for caption in self.captioned
        ]
        self.set = CaptionSet(
            targets=targets(images),
            captions=captions,
            # The words of a Hugging Face model are not tokenized as references are.
            words=[vocabulary.tokenize(caption) for caption in captions]
            if captioner.source
            else [caption.words for caption in self.captioned],
            tokenize=vocabulary.tokenize,
            tokens=token_name(vocabulary.tokenizer, lowercase=vocabulary.lowercase),
            corpus=corpus,
        )

    def _caption(
        self, images: Sequence[CaptionedImage], *, calibration: bool, deletion: bool
    ) -> list[Captioned]:
        """Caption with Captioner's own decoder."""
        captioner = self.captioner
        vocabulary, decoder = captioner.vocabulary, captioner.model.decoder
        autocast = torch.autocast(captioner.device.type, enabled=False)
        if calibration:
            force = partial(
                force_references,
                decoder,
                vocabulary=vocabulary,
                maximum_length=self.config.maximum_length,
                autocast=autocast,
            )
            self._measures["calibration"] = Calibration(
                force, (*SPECIAL_TOKENS, *vocabulary.ordinary_words)
            )
        if deletion:
            self._measures["deletion"] = DeletionTest(
                decoder, vocabulary=vocabulary, autocast=autocast
            )
        return caption_split(
            replace(captioner.checkpoint, model=captioner.model, generation=self.config),
            images,
            autocast=autocast,
            after_batch=self._measure,
            consensus=captioner.consensus,
        )

    def _caption_foreign(
        self, images: Sequence[CaptionedImage], *, calibration: bool, deletion: bool
    ) -> list[Captioned]:
        """Caption with a Hugging Face model."""
        captioner = cast("HuggingFaceCaptioner", self.captioner)
        effects = EffectMeans()
        collector = Calibration(partial(force_foreign, captioner), captioner.tokenizer.get_vocab())
        if calibration:
            self._measures["calibration"] = collector
        if deletion:
            self._measures["deletion"] = effects

        def after_batch(pixels: Tensor, grid: Grid, batch: Sequence[Captioned]) -> None:
            self._pooled.append(pool(grid.features))
            for square, caption in zip(pixels, batch, strict=True):
                if calibration:
                    collector.add(square, [caption])

        return caption_foreign(
            captioner,
            images,
            self.config,
            after_batch=after_batch,
            effects=effects if deletion else None,
        )

    @property
    def pooled(self) -> NDArray[np.float32]:
        """The pooled grids (N, D + 1) of the images; see captioner.trust.familiarity.pool."""
        return np.concatenate(self._pooled)

    @cached_property
    def _judged(self) -> list[Judgement] | None:
        if self.captioner.trust is None:
            return None
        beams = [[caption.hypothesis] for caption in self.captioned]
        return [best for (best,) in self.captioner.trust.judge(self.pooled, beams)]

    def facts(self) -> dict[str, object]:
        """Return the checkpoint and its settings for a report."""
        return {
            "beam_size": self.config.beam_size,
            **({} if self.style is None else {"style": self.style}),
            "consensus": self.config.uses_consensus and self.captioner.consensus is not None,
            "dtype": str(self.captioner.dtype).removeprefix("torch."),
            "checkpoint": {
                "name": self.captioner.name,
                "version": self.captioner.version,
                "hash": self.captioner.fingerprint,
            },
        }

    def parts(
        self,
        *,
        official: bool = False,
        training: Sequence[Target] | None = None,
        boxes: Boxes | None = None,
        unlike: Path | None = None,
        predictions: Path | None = None,
    ) -> Parts:
        """Return the functions that compute the requested parts of a report.

        Args:
            official: add scores on COCO's tokens.
            training: the training split, to count captions that do not occur in it.
            boxes: boxes of the objects in the images, to measure attention on them.
            unlike: a folder of other pictures, to measure whether they are unfamiliar.
            predictions: the file to write the captions to.
        """
        parts = self.set.parts(official=official, training=training, boxes=boxes)
        parts["nltk"] = lambda: {**model_facts(self.captioned), **self.set.plain_scores()}
        if self._judged is not None:
            parts["trust"] = partial(measure_trust, self.captioned, self._judged)
        if boxes is not None:
            names = {boxed.category for objects in boxes.values() for boxed in objects}
            if names & {"", "person"}:
                parts["person_boxes"] = partial(person_grounding, self.captioned, boxes)
            if names - {"", "person"}:
                parts["object_boxes"] = partial(object_grounding, self.captioned, boxes)
        if unlike is not None:
            parts["familiarity"] = partial(measure_familiarity, self.captioner, self.pooled, unlike)
        parts |= {name: partial(self._result, name) for name in self._measures}
        if predictions is not None:
            parts["predictions"] = partial(self._write, predictions)
        return parts

    def metrics(self) -> dict[str, float]:
        """Return the scores for the header of a checkpoint."""
        scores = {name: table.value() for name, table in self.set.tables.items()}
        return scores | model_facts(self.captioned)

    def rows(self) -> list[ImageRow]:
        """Return a row per image with its scores."""
        columns: dict[str, Sequence[Any]] = {
            "score": [float(caption.hypothesis.score) for caption in self.captioned]
        }
        if self.captioner.trust is not None and self._judged is not None:
            columns["familiarity"] = self.captioner.trust.familiarity.of(self.pooled)
            columns["trust"] = [judgement.caption for judgement in self._judged]
        calibration = self._measures.get("calibration")
        if isinstance(calibration, Calibration) and "calibration" not in self._failed:
            nats, tokens = calibration.cross_entropy()
            columns["cross_entropy"] = (nats / tokens).tolist()
            columns["reference_tokens"] = tokens.astype(int).tolist()
        return self.set.rows(**columns)

    def _measure(self, grid: Grid, captioned: Sequence[Captioned]) -> None:
        """Measure a batch. A measure that fails is skipped from then on; the others continue."""
        self._pooled.append(pool(grid.features))
        for name, measure in self._measures.items():
            if name not in self._failed and not isinstance(measure, EffectMeans):
                try:
                    measure.add(grid, captioned)
                except CaptionerError as error:
                    self._failed[name] = error

    def _result(self, name: str) -> object:
        if name in self._failed:
            raise self._failed[name]
        return self._measures[name].result()

    def _write(self, path: Path) -> str:
        scores = [caption.hypothesis.score for caption in self.captioned]
        write_predictions(path, self.set.targets, self.set.captions, scores)
        return str(path)
