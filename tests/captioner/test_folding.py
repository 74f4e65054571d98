"""`captioner.folding`: the folded network is the same function."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from captioner.folding import fold_batch_norm
from captioner.vision.encoder import Encoder, EncoderConfig


@pytest.mark.parametrize("stride", [32, 16])
@pytest.mark.parametrize("name", ["efficientnet_v2_b0", "resnet18", "mobilenet_v3_small"])
def test_the_grid_stays_the_same(name: str, stride: int) -> None:
    torch.manual_seed(0)
    encoder = Encoder(EncoderConfig(name=name, stride=stride)).eval()
    for module in encoder.modules():
        if isinstance(module, nn.BatchNorm2d):  # statistics that are not 0 and 1
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)
    images = torch.randn(2, 3, 96, 96)
    with torch.no_grad():
        before = encoder(images).features
        fold_batch_norm(encoder)
        after = encoder(images).features
    assert not any(isinstance(module, nn.BatchNorm2d) for module in encoder.modules())
    assert before.std() > 1e-3
    torch.testing.assert_close(after, before, rtol=1e-3, atol=1e-4 * float(before.abs().max()))
