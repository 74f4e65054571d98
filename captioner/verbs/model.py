"""The options on the model that verbs share."""

from __future__ import annotations

import argparse

from captioner.bundled import bundled_checkpoint
from captioner.generation.config import GenerationConfig

__all__ = ["check_model"]


def check_model(arguments: argparse.Namespace) -> GenerationConfig:
    """Refuse a --checkpoint, --device or --dtype that cannot be; give the checkpoint's generation.

    Raises:
        CheckpointError: there is no such checkpoint, or it is none.
        ConfigError: there is no such dtype.
        DeviceError: this machine has no such device.

    """
    from captioner.checkpoint import read_generation
    from captioner.device import find_device, find_dtype

    find_dtype(arguments.dtype, find_device(arguments.device))
    return read_generation(arguments.checkpoint or bundled_checkpoint())
