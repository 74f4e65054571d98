"""The captioning model: encoder and decoder, and the teacher-forced forward of training."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from captioner.decoders.config import DecoderConfig
from captioner.decoders.decoder import DecoderOutput, build_decoder
from captioner.vision.encoder import Encoder, EncoderConfig, Grid, prepare_encoder

__all__ = ["CaptionModel", "ModelConfig", "prepare_model"]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Everything that decides the shapes of a model's tensors but the size of its vocabulary."""

    encoder: EncoderConfig
    decoder: DecoderConfig


class CaptionModel(nn.Module):
    """A CNN encoder and a decoder.

    Args:
        config: the shapes.
        vocabulary_size: words and special tokens.
        encoder: an encoder that is there already (pretrained, say); None builds a fresh one.
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
        """Turn normalised images (B, 3, H, W) into a grid with features (B, L, D).

        The images are cast to the dtype of the encoder.
        """
        grid: Grid = self.encoder(images.to(next(self.encoder.parameters()).dtype))
        return grid

    def forward(self, images: Tensor, tokens: Tensor) -> DecoderOutput:
        """Teacher forcing: images (B, 3, H, W) and K captions each (B, K, T)."""
        output: DecoderOutput = self.decoder(self.encode(images).features, tokens)
        return output


def prepare_model(model: CaptionModel, *, device: torch.device, dtype: torch.dtype) -> CaptionModel:
    """Turn a model into one for captioning: folded, tabulated, in one dtype, on one device.

    What comes out is for use only: it cannot be trained, and its tensors are not those of a
    checkpoint. The model that is given is used up: give a copy of one that is still wanted.
    """
    ready = model.requires_grad_(False).float().eval()
    ready.decoder.tabulate()  # in float32, so that half precision rounds once, after it
    prepare_encoder(ready.encoder, device=device, dtype=dtype)
    return ready.to(device, dtype)
