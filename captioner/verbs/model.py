"""The options on the model that verbs share, looked at before torch is there."""

from __future__ import annotations

import argparse

from captioner.device_names import check_device, check_dtype
from captioner.generation.config import GenerationConfig
from captioner.header import bundled_checkpoint, read_generation

__all__ = ["check_model"]


def check_model(arguments: argparse.Namespace) -> GenerationConfig:
    """Refuse a --checkpoint, --device or --dtype that cannot be; give the checkpoint's generation.

    Raises:
        CheckpointError: there is no such checkpoint, or it is none.
        ConfigError: there is no such dtype.
        DeviceError: this machine has no such device.

    """
    check_device(arguments.device)
    check_dtype(arguments.dtype)
    return read_generation(arguments.checkpoint or bundled_checkpoint())
