"""What `captioner evaluate` is about: read and checked before any photo is captioned."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from captioner.errors import CaptionerError, ConfigError, DataError, OutputError
from captioner.files import identity, refuse_input, writing
from captioner.paths import bundled_checkpoint, checkpoint_file, expanded, there_is_no
from captioner.predictor import Captioner
from captioner.trust.trust import trust_file
from captioner.vision.transform import Transform, TransformConfig
from captioner.vocabulary import tokenize
from captioner_training.data.images import CaptionedImage
from captioner_training.data.reading import read_coco, read_dataset
from captioner_training.evaluation.boxes import Boxes, check_boxes, read_boxes
from captioner_training.evaluation.java import check_java
from captioner_training.evaluation.predictions import (
    Predictions,
    Target,
    check_replaceable,
    read_predictions,
    read_targets,
    read_whole_split,
    targets,
)
from captioner_training.evaluation.report import read_report

__all__ = ["EvaluationInputs", "compared_with", "is_report", "read_inputs"]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class EvaluationInputs:
    """What is scored, and what with; None where none was named.

    source: the checkpoint that captions, or captions that were made elsewhere.
    images: of the split; none where captions are scored without them.
    split: the same images for scoring.
    boxes: on what the model sees of each photo; of a photo as a whole where there is no model.
    corpus: the split of which this is a part.
    training: the images of the training.
    others: reports, and checkpoints on the same split, to compare with.
    """

    source: Captioner | Predictions
    images: Sequence[CaptionedImage]
    split: Sequence[Target]
    boxes: Boxes | None
    corpus: Sequence[Target] | None
    training: Sequence[Target] | None
    others: Sequence[EvaluationInputs | Mapping[str, Any]] = ()

    @property
    def scored(self) -> int:
        """How many images have a caption, or get one."""
        source = self.source
        lacking = source.captions.count(None) if isinstance(source, Predictions) else 0
        return len(self.split) - lacking


class _Attempts:
    """Collects errors, so that all are said at once; a wrong use is said by itself."""

    def __init__(self) -> None:
        self.errors: list[CaptionerError] = []

    def __call__(self, work: Callable[[], T]) -> T | None:
        try:
            return work()
        except ConfigError:
            raise
        except CaptionerError as error:
            self.errors.append(error)
            return None

    def file(self, path: Path | None, read: Callable[[Path], T]) -> T | None:
        """Read a file, if one is named."""
        if path is not None and not path.is_file():
            self.errors.append(DataError(there_is_no("file", path)))
        elif path is not None:
            return self(partial(read, path))
        return None

    def together(self) -> CaptionerError:
        """Put the errors into one."""
        if len(self.errors) == 1:
            return self.errors[0]
        return DataError("\n".join(error.detail for error in self.errors))


def read_inputs(arguments: argparse.Namespace, read: Sequence[Path | None]) -> EvaluationInputs:
    """Read everything but photos; refuse what would be overwritten or not be written.

    Args:
        arguments: of the command.
        read: what the command reads, the data first.

    Raises:
        ConfigError: the beam size is out of range, there is no such dtype, or what is read would be
            overwritten.
        CheckpointError, DeviceError, MissingExtraError, OutputError, DataError: what was asked for
            cannot be had; where several things are wrong, a DataError that names them all.
    """
    attempt = _Attempts()
    attempt(partial(_check_outputs, arguments, read))
    captioner = predictions = None
    if arguments.score is None:
        captioner = attempt(partial(_captioner, arguments, arguments.checkpoint, arguments.style))
    if arguments.unlike is not None and captioner is not None and captioner.trust is None:
        file = trust_file(arguments.checkpoint or bundled_checkpoint())
        message = f"--unlike: nothing is known of these weights in {file}: run `captioner trust`"
        attempt.errors.append(DataError(message))
    if arguments.unlike is not None and not arguments.unlike.is_dir():
        attempt.errors.append(DataError(there_is_no("folder", arguments.unlike)))
    if arguments.official:
        attempt(check_java)
    whole = Transform(TransformConfig(mode="squash"))
    framing = whole if captioner is None else captioner.transform
    images = attempt(partial(_images, arguments, captioner)) or []
    split = targets(images)
    if arguments.score is not None:
        if not arguments.data and not arguments.images:
            split = attempt.file(arguments.captions, read_targets) or []
        predictions = attempt.file(arguments.score, partial(read_predictions, images=split))
    # Of a split that cannot be read nothing is known, but what is wrong with the other files is.
    boxes = partial(check_boxes, ids={one.id for one in split}) if split else read_boxes
    found: dict[str, Any] = {
        "boxes": attempt.file(arguments.boxes, partial(boxes, transform=framing)),
        "corpus": attempt.file(arguments.corpus, partial(read_whole_split, split=split)),
        "training": attempt.file(arguments.training, read_targets),
    }
    others: list[EvaluationInputs | Mapping[str, Any] | None] = []
    for name in compared_with(arguments):
        if is_report(name):
            others.append(attempt.file(expanded(name), read_report))
        elif (model := attempt(partial(_captioner, arguments, name, None))) is not None:
            attempt(partial(_check_tokens, model, captioner))
            read_boxes_of = partial(boxes, transform=model.transform)
            own = {
                "source": model,
                "images": attempt(partial(_images, arguments, model)) or [],
                "boxes": found["boxes"] and attempt.file(arguments.boxes, read_boxes_of),
            }
            others.append(EvaluationInputs(split=split, **{**found, **own}))
    found["others"] = others
    source = captioner or predictions
    if attempt.errors or source is None:
        raise attempt.together()
    return EvaluationInputs(source=source, images=images, split=split, **found)


def is_report(name: str) -> bool:
    """Whether --compare names a report, rather than a checkpoint."""
    return name.endswith(".json")


def compared_with(arguments: argparse.Namespace) -> list[str]:
    """Return what --compare names, without the checkpoint itself and repetitions.

    Raises ConfigError: nothing else is named, or a checkpoint beside captions of a file.
    """
    if arguments.score is not None and not all(map(is_report, arguments.compare)):
        raise ConfigError("--compare takes report.json files if --score is used")
    own = arguments.checkpoint or "bundled"
    names = {name if is_report(name) else checkpoint_file(name): name for name in arguments.compare}
    if arguments.score is None:
        names.pop(checkpoint_file(own), None)
    if arguments.compare and not names:
        raise ConfigError(f"--compare {own} is the checkpoint itself: name another")
    return [*names.values()]


def _captioner(
    arguments: argparse.Namespace, checkpoint: str | None, style: str | None
) -> Captioner:
    """Load a checkpoint, and refuse what it cannot be asked for."""
    captioner = Captioner.from_pretrained(
        checkpoint, device=arguments.device, dtype=arguments.dtype
    )
    config = captioner.generation.for_request(beam_size=arguments.beam_size, style=style)
    captioner.vocabulary.style(config.style)
    return captioner


def _check_tokens(model: Captioner, other: Captioner | None) -> None:
    """Refuse to compare scores on other tokens."""
    kinds = [(it.vocabulary.tokenizer, it.vocabulary.lowercase) for it in (model, other or model)]
    if other is not None and kinds[0] != kinds[1]:
        raise DataError(
            f"{model.name} and {other.name} split captions into different tokens: their scores "
            "cannot be compared"
        )


def _images(arguments: argparse.Namespace, captioner: Captioner | None) -> list[CaptionedImage]:
    words = tokenize if captioner is None else captioner.vocabulary.tokenize
    if arguments.data:
        return read_dataset(arguments.data, split=arguments.split, words=words)
    if arguments.images is not None:
        return read_coco(arguments.captions, arguments.images, words=words)
    return []


def _check_outputs(arguments: argparse.Namespace, read: Sequence[Path | None]) -> None:
    """Refuse files that cannot be written, or would be written over what is something else."""
    predictions, report, save = arguments.predictions, arguments.report, arguments.save
    if predictions is not None:
        refuse_input("--predictions", predictions, read)
    for file in () if save is None else (save, trust_file(save)):
        if os.path.lexists(file):
            raise OutputError(f"{file} is there already: choose another --save, or remove it")
    if save is not None and predictions is not None and identity(save) & identity(predictions):
        raise ConfigError(f"--save {save} is the file of --predictions: name another")
    for option, file in (("--predictions", predictions), ("--save", save)):
        if file is None:
            continue
        if not file.parent.is_dir():
            raise OutputError(f"{file} cannot be written: there is no folder {file.parent}")
        if file.is_dir() or not os.access(file.parent, os.W_OK):
            raise OutputError(f"{file} cannot be written: choose another {option}")
    if report is not None:
        files = [report / f"report.{suffix}" for suffix in ("json", "html")]
        for file in files:
            refuse_input("--report", file, read[1:])  # a report may lie in the folder of the data
            if predictions is not None and identity(file) & identity(predictions):
                raise ConfigError(
                    f"--predictions {predictions} is a file that --report writes: name another"
                )
        with writing(f"--report {report}"):
            report.mkdir(parents=True, exist_ok=True)
        if not os.access(report, os.W_OK):
            raise OutputError(f"--report {report} cannot be written: choose another folder")
        if there := [file for file in files if file.exists()]:
            try:
                read_report(files[0])
            except DataError as error:
                raise OutputError(
                    f"{there[0]} is there, and no report of `captioner evaluate`: name another "
                    "--report"
                ) from error
    if predictions is not None:
        check_replaceable(predictions)
