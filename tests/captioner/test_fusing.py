"""`captioner.vision.fusing`: a convolution and its SiLU in one pass are the same function."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from captioner.checkpoint import load_checkpoint
from captioner.folding import fold_batch_norm
from captioner.header import bundled_checkpoint
from captioner.vision import fusing
from captioner.vision.encoder import Encoder, EncoderConfig
from captioner.vision.fusing import fuse_silu

SQUEEZES = 16  # SiLUs inside squeeze and excitation, of a few numbers each, stay as they are


def test_a_processor_without_bfloat16_keeps_two_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """There the fused operation fails, and convolution and SiLU by themselves do not."""
    monkeypatch.setattr(fusing, "can_fuse", lambda: False)
    plain = nn.Sequential(nn.Conv2d(3, 8, 3), nn.SiLU())
    fuse_silu(plain)
    assert [type(one) for one in plain] == [nn.Conv2d, nn.SiLU]


@pytest.mark.skipif(not fusing.can_fuse(), reason="oneDNN has no bfloat16 here")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("stride", [32, 16])
def test_the_grid_stays_the_same(stride: int, dtype: torch.dtype) -> None:
    encoder = Encoder(EncoderConfig(name="efficientnet_v2_b0", stride=stride)).eval()
    trained = load_checkpoint(bundled_checkpoint()).model.encoder
    encoder.load_state_dict(trained.state_dict())
    fold_batch_norm(encoder)
    images = torch.randn(2, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        exact = encoder(images).features
        encoder.to(dtype=dtype, memory_format=torch.channels_last)
        apart = encoder(images.to(dtype)).features.float()
        fuse_silu(encoder)
        together = encoder(images.to(dtype)).features.float()
    assert sum(isinstance(module, nn.SiLU) for module in encoder.modules()) == SQUEEZES
    assert exact.std() > 1e-2
    if dtype is torch.float32:
        torch.testing.assert_close(together, exact, rtol=1e-3, atol=1e-4 * float(exact.abs().max()))
    else:  # rounded less often, and so as near to the truth
        assert (together - exact).abs().mean() < 1.05 * (apart - exact).abs().mean()
