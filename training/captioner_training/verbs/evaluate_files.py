"""The files of `captioner evaluate`, looked at before torch is imported, which takes seconds."""

from __future__ import annotations

import argparse

from captioner.errors import ConfigError, DataError
from captioner.familiarity_file import familiarity_file
from captioner.files import identity, refuse_input
from captioner.header import bundled_checkpoint
from captioner.paths import there_is_no
from captioner.verbs.model import check_model
from captioner_training.data.unprepared import check_readable
from captioner_training.evaluation.comparison import read_report
from captioner_training.pages.folder import check_file, check_report_folder, report_files

__all__ = ["PATHS", "check_files"]

_READ = ("data", "captions", "boxes", "score", "training", "compare", "corpus")
PATHS = (*_READ, "predictions", "report", "unlike")
"""The options that are paths."""


def check_files(arguments: argparse.Namespace) -> None:
    """Refuse what cannot be read, cannot be written, or would be overwritten.

    Raises:
        CheckpointError: there is no such checkpoint, or it is none.
        ConfigError: the beam size is out of range, there is no such dtype, or what is read would be
            overwritten.
        DeviceError: this machine has no such device.
        DataError: the data set, the captions or the boxes are not there.
        OutputError: the predictions or the report cannot be written.

    """
    if arguments.data:
        check_readable(arguments.data, arguments.split)
    for name in _READ[1:]:
        path = getattr(arguments, name)
        if path is not None and not path.is_file():
            raise DataError(there_is_no("file", path))
    _check_written(arguments)
    if arguments.score is None:
        check_model(arguments).asked(beam_size=arguments.beam_size)
    if arguments.unlike is not None:
        _check_unlike(arguments)
    if arguments.compare is not None:
        read_report(arguments.compare)


def _check_unlike(arguments: argparse.Namespace) -> None:
    if not arguments.unlike.is_dir():
        raise DataError(there_is_no("folder", arguments.unlike))
    checkpoint = arguments.checkpoint or bundled_checkpoint()
    if arguments.score is None and not familiarity_file(checkpoint).is_file():
        raise DataError(
            f"--unlike: there is no {familiarity_file(checkpoint)}: run `captioner familiarity`"
        )


def _check_written(arguments: argparse.Namespace) -> None:
    read = [*(getattr(arguments, name) for name in _READ), arguments.checkpoint]
    if arguments.predictions is not None:
        refuse_input("--predictions", arguments.predictions, read)
        check_file(arguments.predictions)
    if arguments.report is None:
        return
    for file in report_files(arguments.report):
        refuse_input("--report", file, read[1:])  # a report may lie in the folder of the data
        if arguments.predictions is not None and identity(file) & identity(arguments.predictions):
            raise ConfigError(
                f"--predictions {arguments.predictions} is a file that --report writes: name "
                "another"
            )
    check_report_folder(arguments.report)
