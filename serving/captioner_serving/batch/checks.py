"""What can be refused of a run before its model is loaded, which takes seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from captioner.errors import ConfigError, DataError
from captioner.generation.config import GenerationConfig
from captioner_serving.batch.config import BatchConfig
from captioner_serving.batch.inputs.left_out import LeftOut
from captioner_serving.batch.inputs.sources import Inputs
from captioner_serving.batch.journal.commits import check_settings, settings_of
from captioner_serving.batch.journal.files import RunFiles
from captioner_serving.batch.outputs.exports import check_output
from captioner_serving.batch.outputs.maps import check_maps_folder

__all__ = ["check_run", "run_settings"]


def check_run(
    inputs: Inputs,
    config: BatchConfig,
    *,
    output: str | None,
    generation: GenerationConfig,
    ray: str | None = None,
) -> None:
    """Refuse what cannot work, and leave no trace of it.

    Args:
        inputs: what is to be captioned.
        config: of the run.
        output: its file; None: there is none.
        generation: the checkpoint's own.
        ray: the cluster, where there is one.

    Raises:
        ConfigError: settings that cannot work, or other ones than `output` was begun with.
        DataError: the inputs are not there, or hold no photo.
        OutputError: the output cannot be written, or is somebody else's.
        MissingExtraError: an optional part is needed.

    """
    asked = config.asked_of(generation)
    begun = False
    own: Sequence[Path] = ()
    if output is not None:
        check_output(output)
        files = RunFiles.beside(output, config.review)
        files.check_apart(inputs)
        files.check_review()
        own = files.all
        begun = _check_begun(files, run_settings(asked, config, output), restart=config.restart)
    elif config.review is not None:
        raise ConfigError("review needs an output that is a file: with -, nothing else is kept")
    if config.maps_to is not None:
        check_maps_folder(config.maps_to, inputs.sources)
    if config.sidecar is not None and (packed := inputs.without_folder()):
        raise ConfigError(f"sidecar: {packed} has no folder for a file beside each photo")
    if ray is not None and config.maps is not None:
        raise ConfigError("a Ray cluster draws no maps: draw them without --ray")
    if ray is not None and config.workers is not None:
        raise ConfigError("a Ray cluster decodes on each of its CPUs: leave --workers out")
    inputs.check()
    # A folder whose photos are all captioned and gone is no mistake, nor is an empty shard.
    if not begun and config.shard is None and inputs.countable:
        _check_any(inputs, LeftOut(own))


def run_settings(generation: GenerationConfig, config: BatchConfig, output: str) -> dict[str, Any]:
    """What two runs must share to write one output, beside the model."""
    settings = {**asdict(generation), **config.settings()}
    settings["review"] = RunFiles.beside(output, config.review).review_name
    return settings


def _check_begun(files: RunFiles, settings: dict[str, Any], *, restart: bool) -> bool:
    """Whether an earlier run has begun the output, which then must have been this one."""
    known = settings_of(files.progress)
    if known is None:
        files.check_unused()
        return False
    if not restart:
        known.pop("model", None)  # nobody knows this one's weights yet
        check_settings(str(files.output), known, settings)
    return not restart


def _check_any(inputs: Inputs, left_out: LeftOut) -> None:
    if next(inputs.photos(left_out), None) is None:
        more = f"; {left_out}" if str(left_out) else ""
        raise DataError(f"the inputs hold no photo{more}")
