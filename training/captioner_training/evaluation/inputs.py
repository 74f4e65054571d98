"""What `captioner evaluate` is about, read and looked at before any photo is captioned."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from captioner.bundled import bundled_checkpoint
from captioner.errors import CaptionerError, ConfigError, DataError, OutputError
from captioner.familiarity import familiarity_file
from captioner.files import identity, refuse_input
from captioner.paths import there_is_no
from captioner.predictor import Captioner
from captioner.vision.transform import Transform, TransformConfig
from captioner_training.data.images import CaptionedImage
from captioner_training.data.reading import read_coco, read_dataset
from captioner_training.evaluation.boxes import Boxes, check_boxes, read_boxes
from captioner_training.evaluation.comparison import read_report
from captioner_training.evaluation.java import check_java
from captioner_training.evaluation.predictions import (
    Predictions,
    Target,
    check_replaceable,
    read_corpus,
    read_predictions,
    read_targets,
    targets,
)

__all__ = ["Inputs", "read_inputs"]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What is scored, and what with; None where none was named.

    captioner: the checkpoint; none where captions are scored.
    images: of the split; none where captions are scored without them.
    split: the same images for scoring.
    boxes: on what the model sees of each photo; of a photo as a whole where there is no model.
    corpus: the split of which this is a part.
    training: the images of the training.
    other: the report to compare with.
    score: captions that were made elsewhere.
    """

    captioner: Captioner | None
    images: Sequence[CaptionedImage]
    split: Sequence[Target]
    boxes: Boxes | None
    corpus: Sequence[Target] | None
    training: Sequence[Target] | None
    other: Mapping[str, Any] | None
    score: Predictions | None


class _Attempts:
    """Gathers what is wrong, so that all of it is told at once; a wrong use is told by itself."""

    def __init__(self) -> None:
        self._errors: list[CaptionerError] = []

    def __call__(self, work: Callable[[], T]) -> T | None:
        try:
            return work()
        except ConfigError:
            raise
        except CaptionerError as error:
            self._errors.append(error)
            return None

    def file(self, path: Path | None, read: Callable[[Path], T]) -> T | None:
        """Read a file, if one is named."""
        if path is None:
            return None
        if not path.is_file():
            self._errors.append(DataError(there_is_no("file", path)))
            return None
        return self(partial(read, path))

    def end(self) -> None:
        """Tell what was wrong. Raises CaptionerError."""
        match self._errors:
            case []:
                return
            case [error]:
                raise error
        raise DataError("\n".join(error.detail for error in self._errors))


def read_inputs(arguments: argparse.Namespace, read: Sequence[Path | None]) -> Inputs:
    """Read everything but photos; refuse what would be overwritten or not be written.

    Raises:
        ConfigError: the beam size is out of range, there is no such dtype, or what is read would be
            overwritten.
        CheckpointError, DeviceError, MissingExtraError, OutputError, DataError: what was asked for
            cannot be had; where several things are wrong, a DataError that names them all.

    """
    attempt = _Attempts()
    attempt(partial(_check_written, arguments, read))
    captioner = None
    if arguments.score is None:
        captioner = attempt(partial(_captioner, arguments))
    if arguments.unlike is not None:
        attempt(partial(_check_pictures, arguments.unlike))
    if arguments.official:
        attempt(check_java)
    tokenizer = "words" if captioner is None else captioner.vocabulary.tokenizer
    whole = Transform(TransformConfig(mode="squash"))
    framing = whole if captioner is None else captioner.transform
    images = attempt(partial(_images, arguments, tokenizer)) or []
    split = targets(images)
    if arguments.score is not None and not arguments.data and not arguments.images:
        split = attempt.file(arguments.captions, read_targets) or []
    ids = {one.id for one in split}
    # Of a split that cannot be read nothing is known, but what is wrong with the other files is.
    inputs = Inputs(
        captioner=captioner,
        images=images,
        split=split,
        boxes=attempt.file(
            arguments.boxes,
            partial(check_boxes, transform=framing, ids=ids)
            if split
            else partial(read_boxes, transform=framing),
        ),
        corpus=attempt.file(arguments.corpus, partial(read_corpus, split=split)),
        training=attempt.file(arguments.training, read_targets),
        other=attempt.file(arguments.compare, read_report),
        score=attempt.file(
            arguments.score,
            lambda path: read_predictions(path, split) if split else Predictions(captions=[]),
        ),
    )
    attempt.end()
    return inputs


def _captioner(arguments: argparse.Namespace) -> Captioner:
    """Load the checkpoint, and refuse what it cannot be asked for."""
    captioner = Captioner.from_pretrained(
        arguments.checkpoint, device=arguments.device, dtype=arguments.dtype
    )
    config = captioner.generation.asked(beam_size=arguments.beam_size, style=arguments.style)
    captioner.vocabulary.style(config.style)
    if arguments.unlike is not None and captioner.familiarity is None:
        file = familiarity_file(arguments.checkpoint or bundled_checkpoint())
        raise DataError(
            f"--unlike: no statistics of this encoder are in {file}: run `captioner familiarity`"
        )
    return captioner


def _check_pictures(folder: Path) -> None:
    if not folder.is_dir():
        raise DataError(there_is_no("folder", folder))


def _images(arguments: argparse.Namespace, tokenizer: Any) -> list[CaptionedImage]:
    if arguments.data:
        return read_dataset(arguments.data, split=arguments.split, tokenizer=tokenizer)
    if arguments.images is not None:
        return read_coco(arguments.captions, arguments.images, tokenizer=tokenizer)
    return []


def _check_written(arguments: argparse.Namespace, read: Sequence[Path | None]) -> None:
    if arguments.predictions is not None:
        refuse_input("--predictions", arguments.predictions, read)
        _check_file(arguments.predictions)
    if arguments.report is not None:
        _check_report(arguments, read)
    if arguments.predictions is not None:
        check_replaceable(arguments.predictions)


def _check_report(arguments: argparse.Namespace, read: Sequence[Path | None]) -> None:
    """Refuse a report that cannot be written, or would be written over what belongs to none."""
    for file in _report_files(arguments.report):
        refuse_input("--report", file, read[1:])  # a report may lie in the folder of the data
        if arguments.predictions is not None and identity(file) & identity(arguments.predictions):
            raise ConfigError(
                f"--predictions {arguments.predictions} is a file that --report writes: name "
                "another"
            )
    _check_folder(arguments.report)
    there = [file for file in _report_files(arguments.report) if file.exists()]
    if not there:
        return
    try:
        read_report(arguments.report / "report.json")
    except DataError:
        raise OutputError(
            f"{there[0]} is there, and no report of `captioner evaluate`: name another --report"
        ) from None


def _report_files(folder: Path) -> list[Path]:
    """Name the files that a report consists of."""
    return [folder / f"report.{suffix}" for suffix in ("json", "md", "html")]


def _check_folder(folder: Path) -> None:
    """Make the folder, and refuse one that cannot be written, before any work.

    Raises:
        OutputError: it cannot be made or written, or is a file.

    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"--report {folder} cannot be made: {error.strerror}") from error
    if not os.access(folder, os.W_OK):
        raise OutputError(f"--report {folder} cannot be written: choose another folder")


def _check_file(predictions: Path) -> None:
    """Refuse a file of predictions that cannot be written.

    Raises:
        OutputError: its folder is not there or cannot be written, or it is a folder.

    """
    folder = predictions.parent
    if not folder.is_dir():
        raise OutputError(f"{predictions} cannot be written: there is no folder {folder}")
    if predictions.is_dir() or not os.access(folder, os.W_OK):
        raise OutputError(f"{predictions} cannot be written: choose another --predictions")
