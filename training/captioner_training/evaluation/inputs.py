"""Read and check the inputs and outputs of `captioner evaluate` before any photo is captioned."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from captioner.captioner import Captioner
from captioner.errors import CaptionerError, ConfigError, DataError, OutputError
from captioner.files import identity, refuse_input, writing
from captioner.paths import bundled_checkpoint, checkpoint_file, expanded, there_is_no
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

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class EvaluationInputs:
    """The inputs of an evaluation.

    source: the checkpoint, or captions read from a file.
    images: the split; empty if only captions are scored.
    split: ids, names and references of the images, for scoring.
    boxes: boxes of objects, relative to the area that the model sees; without a model, relative to
        the whole photo.
    corpus: the whole split, if the images are only a part of it.
    training: the training split.
    others: reports and checkpoints to compare with.
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
        """The number of images that have a caption or will get one."""
        source = self.source
        missing = source.captions.count(None) if isinstance(source, Predictions) else 0
        return len(self.split) - missing


class _ErrorCollector:
    """Collects errors to report them together. A ConfigError is raised at once."""

    def __init__(self) -> None:
        self.errors: list[CaptionerError] = []

    def __call__(self, work: Callable[[], T]) -> T | None:
        """Return the result of `work`, or None if it fails."""
        try:
            return work()
        except ConfigError:
            raise
        except CaptionerError as error:
            self.errors.append(error)
            return None

    def file(self, path: Path | None, read: Callable[[Path], T]) -> T | None:
        """Read a file; return None if it is not given or cannot be read."""
        if path is not None and not path.is_file():
            self.errors.append(DataError(there_is_no("file", path)))
        elif path is not None:
            return self(partial(read, path))
        return None

    def combined(self) -> CaptionerError:
        """Return the only error, or one error with all messages."""
        if len(self.errors) == 1:
            return self.errors[0]
        return DataError("\n".join(error.detail for error in self.errors))


def read_inputs(arguments: argparse.Namespace, read: Sequence[Path | None]) -> EvaluationInputs:
    """Read all inputs except photos, and check that the outputs can be written.

    Args:
        arguments: the parsed arguments of the command.
        read: the paths that the command reads, starting with the data.

    Raises:
        ConfigError: the beam size is out of range, the dtype is unknown, or an output would
            overwrite an input.
        CheckpointError, DeviceError, MissingExtraError, OutputError, DataError: an input cannot be
            read or an output cannot be written. Several such errors become one DataError.
    """
    attempt = _ErrorCollector()
    attempt(partial(_check_outputs, arguments, read))
    captioner = predictions = None
    if arguments.score is None:
        captioner = attempt(partial(_captioner, arguments, arguments.checkpoint, arguments.style))
    if arguments.unlike is not None and captioner is not None and captioner.trust is None:
        file = trust_file(arguments.checkpoint or bundled_checkpoint())
        message = f"--unlike needs {file} of this checkpoint: run `captioner trust`"
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
    # If the split cannot be read, the other files are still checked for their own errors.
    boxes = partial(check_boxes, ids={target.id for target in split}) if split else read_boxes
    shared: dict[str, Any] = {
        "boxes": attempt.file(arguments.boxes, partial(boxes, transform=framing)),
        "corpus": attempt.file(arguments.corpus, partial(read_whole_split, split=split)),
        "training": attempt.file(arguments.training, read_targets),
    }
    others: list[EvaluationInputs | Mapping[str, Any]] = []
    for name in compared_with(arguments):
        if is_report(name):
            if (report := attempt.file(expanded(name), read_report)) is not None:
                others.append(report)
        elif (model := attempt(partial(_captioner, arguments, name, None))) is not None:
            attempt(partial(_check_tokens, model, captioner))
            read_boxes_of = partial(boxes, transform=model.transform)
            of_model = {
                "source": model,
                "images": attempt(partial(_images, arguments, model)) or [],
                "boxes": shared["boxes"] and attempt.file(arguments.boxes, read_boxes_of),
            }
            others.append(EvaluationInputs(split=split, **{**shared, **of_model}))
    source = captioner or predictions
    if attempt.errors or source is None:
        raise attempt.combined()
    return EvaluationInputs(source=source, images=images, split=split, others=others, **shared)


def is_report(name: str) -> bool:
    """Whether --compare names a report, rather than a checkpoint."""
    return name.endswith(".json")


def compared_with(arguments: argparse.Namespace) -> list[str]:
    """Return the names given to --compare, without the checkpoint itself and repetitions.

    Raises ConfigError: no name is left, or a checkpoint is named although --score is used.
    """
    if arguments.score is not None and not all(map(is_report, arguments.compare)):
        raise ConfigError("--compare takes report.json files if --score is used")
    checkpoint = arguments.checkpoint or "bundled"
    names = {name if is_report(name) else checkpoint_file(name): name for name in arguments.compare}
    if arguments.score is None:
        names.pop(checkpoint_file(checkpoint), None)
    if arguments.compare and not names:
        raise ConfigError(f"--compare {checkpoint} is the checkpoint itself: name another")
    return [*names.values()]


def _captioner(
    arguments: argparse.Namespace, checkpoint: str | None, style: str | None
) -> Captioner:
    """Load a checkpoint and check that it supports the beam size and the style."""
    captioner = Captioner.from_pretrained(
        checkpoint, device=arguments.device, dtype=arguments.dtype
    )
    config = captioner.generation.for_request(beam_size=arguments.beam_size, style=style)
    captioner.vocabulary.style(config.style)
    return captioner


def _check_tokens(model: Captioner, other: Captioner | None) -> None:
    """Refuse to compare scores on different tokens."""
    if other is None:
        return
    ours, theirs = model.vocabulary, other.vocabulary
    if (ours.tokenizer, ours.lowercase) != (theirs.tokenizer, theirs.lowercase):
        raise DataError(
            f"{model.name} and {other.name} cannot be compared: they split captions into "
            "different tokens"
        )


def _images(arguments: argparse.Namespace, captioner: Captioner | None) -> list[CaptionedImage]:
    words = tokenize if captioner is None else captioner.vocabulary.tokenize
    if arguments.data:
        return read_dataset(arguments.data, split=arguments.split, words=words)
    if arguments.images is not None:
        return read_coco(arguments.captions, arguments.images, words=words)
    return []


def _check_outputs(arguments: argparse.Namespace, read: Sequence[Path | None]) -> None:
    """Refuse outputs that cannot be written or would overwrite other files."""
    predictions, report, save = arguments.predictions, arguments.report, arguments.save
    if predictions is not None:
        refuse_input("--predictions", predictions, read)
    for file in () if save is None else (save, trust_file(save)):
        if os.path.lexists(file):
            raise OutputError(f"{file} exists: choose another --save, or remove it")
    if save is not None and predictions is not None and identity(save) & identity(predictions):
        raise ConfigError(f"--save and --predictions are the same file {save}: change one")
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
            refuse_input("--report", file, read[1:])  # the folder of the data is allowed
            if predictions is not None and identity(file) & identity(predictions):
                raise ConfigError(
                    f"--predictions {predictions} is also written by --report: change one"
                )
        with writing(f"--report {report}"):
            report.mkdir(parents=True, exist_ok=True)
        if not os.access(report, os.W_OK):
            raise OutputError(f"--report {report} cannot be written: choose another folder")
        if existing := [file for file in files if file.exists()]:
            try:
                read_report(files[0])
            except DataError as error:
                raise OutputError(
                    f"{existing[0]} exists and is not a report of `captioner evaluate`: choose "
                    "another --report"
                ) from error
    if predictions is not None:
        check_replaceable(predictions)
