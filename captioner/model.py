"""The captioning model: encoder and decoder, and the teacher-forced forward of training."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from captioner.decoders.lstm import Decoder, DecoderConfig, DecoderOutput
from captioner.encoder import Encoder, EncoderConfig, Grid

__all__ = ["CaptionModel", "ModelConfig"]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Everything that decides the shapes of a model's tensors."""

    encoder: EncoderConfig
    decoder: DecoderConfig


class CaptionModel(nn.Module):
    """A CNN encoder and an attention LSTM decoder.

    Args:
        config: the shapes.
        encoder: an encoder that is there already (pretrained, say); None builds a fresh one.

    """

    def __init__(self, config: ModelConfig, *, encoder: Encoder | None = None) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config.encoder) if encoder is None else encoder
        self.decoder = Decoder(config.decoder)

    def encode(self, images: Tensor) -> Grid:
        """Turn images (B, 3, H, W) into a grid with features (B, L, D)."""
        grid: Grid = self.encoder(images)
        return grid

    def forward(self, images: Tensor, tokens: Tensor) -> DecoderOutput:
        """Teacher forcing: images (B, 3, H, W) and K captions each (B, K, T)."""
        output: DecoderOutput = self.decoder(self.encode(images).features, tokens)
        return output
