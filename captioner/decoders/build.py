"""From a configuration to a decoder."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from captioner.decoders.config import DecoderConfig
from captioner.decoders.decoder import Decoder
from captioner.decoders.kinds import KINDS

__all__ = ["build_decoder"]


def build_decoder(config: DecoderConfig, *, grid_dim: int, vocabulary_size: int) -> Decoder:
    """Make the decoder that the configuration names, with random weights.

    Args:
        config: the kind and its free sizes.
        grid_dim: D, the features of a grid cell: the encoder decides it.
        vocabulary_size: words and special tokens.

    Raises:
        ConfigError: its sizes cannot work together.

    """
    module, name = KINDS[config.kind].split(":")
    made = getattr(import_module(module), name)
    return cast(Decoder, made(config, grid_dim=grid_dim, vocabulary_size=vocabulary_size))
