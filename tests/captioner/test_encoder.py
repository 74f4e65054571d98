"""The encoder's grid: real cells, the right stride, frozen when frozen."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torchvision

from captioner import CheckpointNotFoundError, ConfigError
from captioner.vision.encoder import Encoder, EncoderConfig, SameConv2d, backbones

NAMED = (
    "resnet50",
    "resnet101",
    "efficientnet_v2_s",
    "convnext_tiny",
    "mobilenet_v3_large",
    "efficientnet_v2_b0",
)


@pytest.mark.parametrize("name", NAMED)
def test_every_named_backbone_makes_a_grid(name: str) -> None:
    encoder = Encoder(EncoderConfig(name=name)).eval()
    grid = encoder(torch.randn(1, 3, 128, 96))
    assert (grid.rows, grid.columns) == (4, 3)
    assert grid.features.shape == (1, 12, encoder.channels())
    # Replicated cells would be equal.
    assert torch.pdist(grid.features[0]).min() > 0


@pytest.mark.parametrize("name", ["resnet18", "convnext_tiny", "mobilenet_v3_small"])
def test_stride_16_has_the_cells_of_stride_32_between_new_ones(name: str) -> None:
    """Dilation (Yu and Koltun 2016): every second cell is what the strided network computes."""
    coarse = Encoder(EncoderConfig(name=name)).eval()
    fine = Encoder(EncoderConfig(name=name, stride=16)).eval()
    fine.load_state_dict(coarse.state_dict())
    image = torch.randn(1, 3, 128, 128)
    grid = fine(image)
    assert (grid.rows, grid.columns) == (8, 8)
    every_second = grid.features.view(8, 8, -1)[::2, ::2].flatten(0, 1)
    # mobilenet's squeeze-and-excitation averages over other cells, but only below the last stage
    assert torch.allclose(every_second, coarse(image).features[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "stage", "stride"),
    [("resnet18", 2, 8), ("efficientnet_v2_b0", 4, 16), ("convnext_tiny", 1, 4)],
)
def test_a_grid_can_be_an_early_stages(name: str, stage: int, stride: int) -> None:
    """The cells are those that the whole backbone computes on its way."""
    whole = Encoder(EncoderConfig(name=name)).eval()
    early = Encoder(EncoderConfig(name=name, last_stage=stage, stride=stride)).eval()
    kept = {key: value for key, value in whole.state_dict().items() if key in early.state_dict()}
    early.load_state_dict(kept)
    image = torch.randn(2, 3, 64, 96)
    maps = image
    for one in list(whole.stages)[: stage + 1]:
        maps = one(maps)
    grid = early(image)
    assert (grid.rows, grid.columns) == (64 // stride, 96 // stride)
    assert torch.equal(grid.features, maps.flatten(2).transpose(1, 2))
    assert len(early.stages) == stage + 1


def test_an_early_grid_can_be_dilated() -> None:
    config = EncoderConfig(name="resnet18", last_stage=2, stride=4)
    assert Encoder(config).eval()(torch.randn(1, 3, 64, 96)).rows == 16
    with pytest.raises(ConfigError, match="cannot be halved"):
        Encoder(EncoderConfig(name="convnext_tiny", last_stage=1, stride=2))


def test_coordinates_are_where_a_cell_is() -> None:
    """From -3 to 3: the centres of two halves are at -1.5 and 1.5, of three thirds at -2, 0, 2."""
    plain = Encoder(EncoderConfig(name="mobilenet_v3_small")).eval()
    placed = Encoder(EncoderConfig(name="mobilenet_v3_small", coordinates=True)).eval()
    placed.load_state_dict(plain.state_dict())
    image = torch.randn(1, 3, 64, 96)
    features = placed(image).features
    assert placed.channels() == plain.channels() + 2
    assert torch.equal(features[..., :-2], plain(image).features)
    x, y = features[0, :, -2:].unbind(1)
    assert x.tolist() == [-2, 0, 2, -2, 0, 2] and y.tolist() == [-1.5] * 3 + [1.5] * 3


def test_same_padding_is_tensorflows() -> None:
    # tf.nn.conv2d on 1..4 with a kernel of ones, size 3, stride 2, SAME: [1+2+3, 3+4+0].
    # On 1..5 it pads one pixel on both sides: [0+1+2, 2+3+4, 4+5+0].
    square = SameConv2d(torch.nn.Conv2d(1, 1, 3, stride=2, bias=False))
    square.weight.data = torch.zeros(1, 1, 3, 3)
    square.weight.data[..., 0, :] = 1  # the first row of the kernel: row 0 on even sizes
    even = torch.arange(1.0, 5).repeat(4, 1)[None, None]
    assert square(even)[0, 0, 0].tolist() == [6.0, 7.0]
    odd = torch.arange(1.0, 6).repeat(5, 1)[None, None]
    assert square(odd)[0, 0, 0].tolist() == [0.0, 0.0, 0.0]  # row 0 of the kernel is padding
    assert square(odd)[0, 0, 1].tolist() == [3.0, 9.0, 9.0]


def test_frozen_stages_stay_as_they_are_while_others_train() -> None:
    encoder = Encoder(EncoderConfig(name="mobilenet_v3_small"))
    encoder.fine_tune(from_stage=9)
    encoder.train()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in encoder.parameters() if p.requires_grad], lr=1.0)
    encoder(torch.randn(2, 3, 64, 64)).features.square().mean().backward()
    optimizer.step()
    changed = {
        int(name.split(".")[1])
        for name, value in encoder.state_dict().items()
        if not torch.equal(value, before[name])
    }
    assert changed and min(changed) == 9
    statistics = [name for name in before if "running" in name]
    assert all(torch.equal(encoder.state_dict()[name], before[name]) for name in statistics)


def test_frozen_encoder_keeps_nothing_for_a_gradient() -> None:
    encoder = Encoder(EncoderConfig(name="mobilenet_v3_small"))
    encoder.fine_tune(from_stage=None)
    assert not encoder.train()(torch.randn(1, 3, 64, 64)).features.requires_grad


def test_errors_name_the_value_and_the_remedy() -> None:
    with pytest.raises(ConfigError, match=r"'resnet99'.*resnet101"):
        EncoderConfig(name="resnet99")
    with pytest.raises(ConfigError, match="stride 8 is not 16 or 32"):
        EncoderConfig(stride=8)
    with pytest.raises(ConfigError, match="last_stage -1 is out of range"):
        EncoderConfig(last_stage=-1)
    with pytest.raises(ConfigError, match="stages 0 to 4; there is no 5"):
        Encoder(EncoderConfig(name="resnet18", last_stage=5))
    with pytest.raises(ConfigError, match="resnet18 up to stage 3 has a stride of 16, and 8"):
        Encoder(EncoderConfig(name="resnet18", last_stage=3))
    with pytest.raises(ConfigError, match="stages 0 to 12; there is no 40"):
        Encoder(EncoderConfig(name="mobilenet_v3_small")).fine_tune(from_stage=40)
    with pytest.raises(ConfigError, match="no weights for efficientnet_v2_b0"):
        Encoder(EncoderConfig(name="efficientnet_v2_b0"), pretrained=True)
    assert set(NAMED) <= set(backbones())


@pytest.fixture
def weight_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[http.server.ThreadingHTTPServer]:
    """A host for torchvision's weights on this machine, in place of the real one."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, directory=str(folder), **kwargs)  # type: ignore[arg-type]

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "hub"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_pretrained_weights_are_torchvisions_own(
    weight_server: http.server.ThreadingHTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    model = torchvision.models.mobilenet_v3_small()
    torch.save(model.state_dict(), tmp_path / "served" / "weights.pth")
    weights = torchvision.models.MobileNet_V3_Small_Weights.DEFAULT
    url = f"http://127.0.0.1:{weight_server.server_port}/"
    monkeypatch.setattr(weights.value, "url", url + "weights.pth")
    # torchvision checks a hash in the file's name, which a file made here cannot have.
    monkeypatch.setattr(type(weights), "get_state_dict", _without_hash)
    encoder = Encoder(EncoderConfig(name="mobilenet_v3_small"), pretrained=True)
    assert torch.equal(encoder.stages[0][0].weight, model.features[0][0].weight)  # type: ignore[index]

    monkeypatch.setattr(weights.value, "url", url + "missing.pth")
    with pytest.raises(CheckpointNotFoundError, match=r"mobilenet_v3_small.*404.*TORCH_HOME"):
        Encoder(EncoderConfig(name="mobilenet_v3_small"), pretrained=True)


def _without_hash(self: torchvision.models.WeightsEnum, **kwargs: object) -> object:
    kwargs.pop("check_hash", None)
    return torch.hub.load_state_dict_from_url(self.url, **kwargs)  # type: ignore[arg-type]
