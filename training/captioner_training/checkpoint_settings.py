"""The settings that a checkpoint's weights depend on, from its header and without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from captioner.checkpoint import odd_header
from captioner.decoders.config import DecoderConfig
from captioner.vision.encoder import EncoderConfig
from captioner.vision.transform import TransformConfig

__all__ = ["checkpoint_settings"]

_PARTS = {"encoder": EncoderConfig, "decoder": DecoderConfig, "transform": TransformConfig}


def checkpoint_settings(
    path: Path, header: Mapping[str, Any], *parts: str
) -> dict[str, dict[str, Any]]:
    """Lay out parts of a header; what an older file leaves out has its default.

    Args:
        path: of the checkpoint.
        header: as read_header gives it.
        parts: of encoder, decoder, transform.

    Returns:
        the settings of each part by their names, without dropout, which no weight depends on;
        lists in place of tuples, which JSON does not have.

    Raises:
        CheckpointFormatError: a part is missing, or is none.

    """
    found: dict[str, dict[str, Any]] = {}
    for part in parts:
        known = asdict(_PARTS[part]())
        try:
            there = {**known, **header[part]}
        except (KeyError, TypeError) as error:
            raise odd_header(path, error) from error
        found[part] = {name: _listed(there[name]) for name in known if name != "dropout"}
    return found


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
