"""Conversion of models for inference. The result gives the same captions and cannot be trained."""

from __future__ import annotations

import copy
from itertools import pairwise

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

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


def fold_batch_norm(root: nn.Module) -> None:
    """Fold every BatchNorm that follows a convolution into it (Ioffe and Szegedy 2015, 3.1).

    A BatchNorm follows a convolution if it is next in a Sequential, or if it is named as in
    torchvision, such as bn1 after conv1.
    """
    for module in list(root.modules()):
        for (conv_name, conv), (norm_name, norm) in pairwise(module.named_children()):
            follows = isinstance(module, nn.Sequential) or (
                conv_name.startswith("conv") and norm_name == conv_name.replace("conv", "bn", 1)
            )
            # Not subclasses: timm's BatchNorms include an activation.
            if follows and isinstance(conv, nn.Conv2d) and type(norm) is nn.BatchNorm2d:
                setattr(module, conv_name, fuse_conv_bn_eval(conv, norm))
                setattr(module, norm_name, nn.Identity())
