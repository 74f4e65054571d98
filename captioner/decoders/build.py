"""From a configuration to a decoder."""

from __future__ import annotations

from captioner.decoders.config import DecoderConfig
from captioner.decoders.decoder import Decoder
from captioner.decoders.lstm import LSTMDecoder
from captioner.decoders.top_down import TopDownDecoder
from captioner.decoders.transformer import TransformerDecoder
from captioner.errors import ConfigError

__all__ = ["DECODERS", "build_decoder"]

DECODERS: dict[str, type[Decoder]] = {
    "lstm": LSTMDecoder,
    "top_down": TopDownDecoder,
    "transformer": TransformerDecoder,
}
"""The decoders by the name that DecoderConfig.kind takes."""


def build_decoder(config: DecoderConfig, *, grid_dim: int, vocabulary_size: int) -> Decoder:
    """Make the decoder that the configuration names, with random weights.

    Args:
        config: the kind and its free sizes.
        grid_dim: D, the features of a grid cell: the encoder decides it.
        vocabulary_size: words and special tokens.

    Raises:
        ConfigError: no decoder has that name, or its sizes cannot work together.

    """
    if config.kind not in DECODERS:
        raise ConfigError(f"decoder kind {config.kind!r} is not one of {', '.join(DECODERS)}")
    return DECODERS[config.kind](config, grid_dim=grid_dim, vocabulary_size=vocabulary_size)
