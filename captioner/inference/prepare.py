"""Conversion of models for inference. The result gives the same captions and cannot be trained."""

from __future__ import annotations

import copy

import torch

from captioner.inference.batch_norm import fold_batch_norm
from captioner.inference.decoders import can_pack, fast_decoder, pack_linear
from captioner.model.encoder import Encoder
from captioner.model.model import CaptionModel


def prepare_model(model: CaptionModel, *, device: torch.device, dtype: torch.dtype) -> CaptionModel:
    """Return a copy of a model with folded BatchNorms and a fast decoder."""
    ready = copy.deepcopy(model).requires_grad_(False).float().eval()
    ready.decoder = fast_decoder(ready.decoder)  # in float32, so that half precision rounds once
    prepare_encoder(ready.encoder, device=device, dtype=dtype)
    ready.to(device, dtype)
    if device.type == "cpu" and dtype is torch.float32 and can_pack():
        pack_linear(ready.decoder)
    return ready


def prepare_encoder(encoder: Encoder, *, device: torch.device, dtype: torch.dtype) -> Encoder:
    """Fold and convert an encoder, in place."""
    ready = encoder.requires_grad_(False).float().eval()
    fold_batch_norm(ready)  # in float32, so that half precision rounds once
    return ready.to(device, dtype).to(memory_format=torch.channels_last)
