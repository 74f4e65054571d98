"""A model made ready for use: the same function with fewer and cheaper operations."""

from __future__ import annotations

import torch

from captioner.folding import fold_batch_norm
from captioner.model import CaptionModel
from captioner.vision.encoder import Encoder
from captioner.vision.fusing import fuse_silu

__all__ = ["prepare_encoder", "prepare_model"]


def prepare_model(model: CaptionModel, *, device: torch.device, dtype: torch.dtype) -> CaptionModel:
    """Turn a model into one for captioning: folded, tabulated, in one dtype, on one device.

    What comes out is for use only: it cannot be trained, and its tensors are not those of a
    checkpoint. The model that is given is used up: give a copy of one that is still wanted.
    """
    ready = model.requires_grad_(False).float().eval()
    ready.decoder.tabulate()  # in float32, so that half precision rounds once, after it
    prepare_encoder(ready.encoder, device=device, dtype=dtype)
    return ready.to(device, dtype)


def prepare_encoder(encoder: Encoder, *, device: torch.device, dtype: torch.dtype) -> Encoder:
    """Do as `prepare_model` does with an encoder alone, which is used up."""
    ready = encoder.requires_grad_(False).float().eval()
    fold_batch_norm(ready)  # in float32, as above
    ready.to(device, dtype)
    ready.to(memory_format=torch.channels_last)
    if device.type == "cpu" and dtype is torch.bfloat16:
        fuse_silu(ready)
    return ready
