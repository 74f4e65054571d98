"""The files of `captioner evaluate`: read once, before torch is imported, which takes seconds."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from captioner.errors import CaptionerError, ConfigError, DataError, OutputError
from captioner.familiarity_file import familiarity_file
from captioner.files import identity, refuse_input
from captioner.geometry import Framing, TransformConfig
from captioner.header import bundled_checkpoint, check_style_of, read_header, read_transform
from captioner.paths import there_is_no
from captioner.verbs.model import check_model
from captioner_training.pages.folder import check_file, check_report_folder, report_files

if TYPE_CHECKING:  # what reads them is imported late, for --help is to be there at once
    from captioner_training.data.images import CaptionedImage
    from captioner_training.evaluation.boxes import Boxes
    from captioner_training.evaluation.predictions import Predictions, Target

__all__ = ["PATHS", "EvaluateFiles", "read_files"]

_READ = ("data", "captions", "boxes", "score", "training", "compare", "corpus")
PATHS = (*_READ, "predictions", "report", "unlike")
"""The options that are paths."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class EvaluateFiles:
    """What the files say; None where none was named.

    images: of the split; none where captions are scored without them. split: the same for scoring.
    boxes: on what the model sees of each photo; of a photo as a whole where there is no model.
    corpus: the split of which this is a part. training: the images of the training. other: the
    report to compare with. score: captions that were made elsewhere.
    """

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


def read_files(arguments: argparse.Namespace) -> EvaluateFiles:
    """Read everything but photos and weights; refuse what would be overwritten or not be written.

    Raises:
        ConfigError: the beam size is out of range, there is no such dtype, or what is read would be
            overwritten.
        CheckpointError, DeviceError, MissingExtraError, OutputError, DataError: what was asked for
            cannot be had; where several things are wrong, a DataError that names them all.

    """
    from captioner_training.evaluation.boxes import check_boxes, read_boxes
    from captioner_training.evaluation.comparison import read_report
    from captioner_training.evaluation.java import check_java
    from captioner_training.evaluation.predictions import (
        Predictions,
        read_corpus,
        read_predictions,
        read_targets,
        targets,
    )

    attempt = _Attempts()
    attempt(partial(_check_written, arguments))
    tokenizer, framing = "words", Framing(TransformConfig(mode="squash"))
    if arguments.score is None:
        tokenizer, framing = attempt(partial(_model, arguments)) or (tokenizer, framing)
    if arguments.unlike is not None:
        attempt(partial(_check_unlike, arguments))
    if arguments.official:
        attempt(check_java)
    images = attempt(partial(_images, arguments, tokenizer)) or []
    split = targets(images)
    if arguments.score is not None and not arguments.data and not arguments.images:
        split = attempt.file(arguments.captions, read_targets) or []
    ids = {one.id for one in split}
    # Of a split that cannot be read nothing is known, but what is wrong with the other files is.
    files = EvaluateFiles(
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
    return files


def _model(arguments: argparse.Namespace) -> tuple[Any, Framing]:
    """Look at the model that is asked for: how it splits words, and what it sees of a photo."""
    check_model(arguments).asked(beam_size=arguments.beam_size)
    checkpoint = arguments.checkpoint or bundled_checkpoint()
    check_style_of(checkpoint, arguments.style or "")
    return read_header(checkpoint).get("tokenizer", "words"), Framing(read_transform(checkpoint))


def _images(arguments: argparse.Namespace, tokenizer: Any) -> list[CaptionedImage]:
    from captioner_training.data.reading import read_coco, read_dataset

    if arguments.data:
        return read_dataset(arguments.data, split=arguments.split, tokenizer=tokenizer)
    if arguments.images is not None:
        return read_coco(arguments.captions, arguments.images, tokenizer=tokenizer)
    return []


def _check_unlike(arguments: argparse.Namespace) -> None:
    if not arguments.unlike.is_dir():
        raise DataError(there_is_no("folder", arguments.unlike))
    statistics = familiarity_file(arguments.checkpoint or bundled_checkpoint())
    if not statistics.is_file():
        raise DataError(f"--unlike: there is no {statistics}: run `captioner familiarity`")


def _check_written(arguments: argparse.Namespace) -> None:
    from captioner_training.evaluation.predictions import check_replaceable

    read = [*(getattr(arguments, name) for name in _READ), arguments.checkpoint]
    if arguments.predictions is not None:
        refuse_input("--predictions", arguments.predictions, read)
        check_file(arguments.predictions)
    if arguments.report is not None:
        _check_report(arguments, read)
    if arguments.predictions is not None:
        check_replaceable(arguments.predictions)


def _check_report(arguments: argparse.Namespace, read: Sequence[Path | None]) -> None:
    """Refuse a report that cannot be written, or would be written over what belongs to none."""
    from captioner_training.evaluation.comparison import read_report

    for file in report_files(arguments.report):
        refuse_input("--report", file, read[1:])  # a report may lie in the folder of the data
        if arguments.predictions is not None and identity(file) & identity(arguments.predictions):
            raise ConfigError(
                f"--predictions {arguments.predictions} is a file that --report writes: name "
                "another"
            )
    check_report_folder(arguments.report)
    there = [file for file in report_files(arguments.report) if file.exists()]
    if not there:
        return
    try:
        read_report(arguments.report / "report.json")
    except DataError:
        raise OutputError(
            f"{there[0]} is there, and no report of `captioner evaluate`: name another --report"
        ) from None
