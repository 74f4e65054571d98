"""The captioning model: an encoder and a decoder."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from captioner.model.config import DecoderConfig
from captioner.model.decoder import DecoderOutput, build_decoder
from captioner.model.encoder import Encoder, EncoderConfig, Grid


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The configuration of a model. Together with the vocabulary size it determines all shapes."""

    encoder: EncoderConfig
    decoder: DecoderConfig


class CaptionModel(nn.Module):
    """An encoder and a decoder.

    Args:
        config: the configuration of both.
        vocabulary_size: the number of words and special tokens.
        encoder: an existing encoder, such as a pretrained one; None: a new one.
    """

    def __init__(
        self, config: ModelConfig, *, vocabulary_size: int, encoder: Encoder | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config.encoder) if encoder is None else encoder
        self.decoder = build_decoder(
            config.decoder, grid_dim=self.encoder.channels(), vocabulary_size=vocabulary_size
        )

    def encode(self, images: Tensor) -> Grid:
        """Encode normalised images (B, 3, H, W) into a grid with features (B, L, D).

        Images are cast to the encoder's dtype.
        """
        grid: Grid = self.encoder(images.to(next(self.encoder.parameters()).dtype))
        return grid

    def forward(self, images: Tensor, tokens: Tensor) -> DecoderOutput:
        """Run teacher forcing on images (B, 3, H, W) with K captions each (B, K, T)."""
        output: DecoderOutput = self.decoder(self.encode(images).features, tokens)
        return output
