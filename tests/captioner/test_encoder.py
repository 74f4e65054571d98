"""The encoder's grid: real cells, the right stride, frozen when frozen."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import nn

from captioner import Captioner, CheckpointNotFoundError, ConfigError, MissingExtraError
from captioner.backbones import convolutions
from captioner.backbones.convolutions import SameConv2d
from captioner.backbones.networks import encoder_names
from captioner.checkpoint import Checkpoint
from captioner.inference.prepare import fold_batch_norm
from captioner.model.encoder import Encoder, EncoderConfig
from captioner.model.model import CaptionModel
from captioner.photos.transform import TransformConfig


@pytest.fixture(autouse=True)
def quick_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw weights from a normal distribution, which is faster than a truncated one."""

    def normal(tensor: torch.Tensor, mean: float = 0.0, std: float = 1.0, *_: float) -> Any:
        return nn.init.normal_(tensor, mean, std)

    monkeypatch.setattr(nn.init, "trunc_normal_", normal)


@pytest.mark.parametrize("name", ["swin_t", "timm/swin_tiny_patch4_window7_224"])
def test_a_transformer_makes_a_grid(name: str) -> None:
    torch.manual_seed(0)
    encoder = Encoder(EncoderConfig(name=name)).eval()
    images = torch.randn(1, 3, 224, 224).repeat(2, 1, 1, 1)
    images[1, :, :56, -56:] = torch.randn(3, 56, 56)
    with torch.no_grad():
        grid = encoder(images)
    assert grid.rows == grid.columns == 7
    assert grid.features.shape == (2, 49, encoder.channels())
    # Where the second image differs, in the upper right corner, its cells differ most.
    changes = (grid.features[1] - grid.features[0]).norm(dim=1)
    row, column = divmod(int(changes.argmax()), 7)
    assert row < 3 and column > 3
    # Replicated cells would be equal; dead ones are 0 in networks with random weights and a ReLU.
    assert torch.pdist(grid.features[0]).max() > 0


def test_networks_of_other_families_are_refused() -> None:
    assert {"resnet101", "swin_b", "regnet_y_400mf", "efficientnet_v2_b0"} < set(encoder_names())
    others = set(torchvision.models.list_models(module=torchvision.models)) - set(encoder_names())
    starts = ("alexnet", "densenet", "googlenet", "inception", "maxvit", "mnasnet", "shuffle",
              "squeeze", "vit")  # fmt: skip
    assert len(others) == 23 and all(name.startswith(starts) for name in others)
    for name in others:
        with pytest.raises(
            ConfigError, match=f"'{name}' is not a supported network of torchvision, timm/NAME"
        ):
            EncoderConfig(name=name)


@pytest.mark.parametrize(
    ("name", "last_stage", "stride"),
    [
        ("resnet18", None, 16),
        ("convnext_tiny", None, 16),
        ("mobilenet_v3_small", None, 16),
        ("timm/resnet18", None, 16),
        ("resnet18", 2, 4),
    ],
)
def test_half_the_stride_has_new_cells_between_those_of_the_whole(
    name: str, last_stage: int | None, stride: int
) -> None:
    """Dilation (Yu and Koltun 2016): every second cell equals a cell of the strided network."""
    coarse, fine = (
        Encoder(EncoderConfig(name=name, last_stage=last_stage, stride=each)).eval()
        for each in (2 * stride, stride)
    )
    fine.load_state_dict(coarse.state_dict())
    image = torch.randn(1, 3, 128, 192)
    grid = fine(image)
    assert (grid.rows, grid.columns) == (128 // stride, 192 // stride)
    every_second = grid.features.view(grid.rows, grid.columns, -1)[::2, ::2].flatten(0, 1)
    # mobilenet's squeeze-and-excitation averages over other cells, but only below the last stage
    assert torch.allclose(every_second, coarse(image).features[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "stage", "stride"), [("resnet18", 2, 8), ("efficientnet_v2_b0", 4, 16)]
)
def test_a_grid_can_be_an_early_stages(name: str, stage: int, stride: int) -> None:
    """The cells are those that the whole backbone computes on its way."""
    whole = Encoder(EncoderConfig(name=name)).eval()
    early = Encoder(EncoderConfig(name=name, last_stage=stage, stride=stride)).eval()
    kept = {key: value for key, value in whole.state_dict().items() if key in early.state_dict()}
    early.load_state_dict(kept)
    image = torch.randn(2, 3, 64, 96)
    maps = image
    for part in list(whole.stages)[: stage + 1]:
        maps = part(maps)
    grid = early(image)
    assert (grid.rows, grid.columns) == (64 // stride, 96 // stride)
    assert torch.equal(grid.features, maps.flatten(2).transpose(1, 2))
    assert len(early.stages) == stage + 1


def test_coordinates_are_the_centres_of_cells() -> None:
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
    encoder.fine_tune(from_stage=None)
    assert not encoder.train()(torch.randn(1, 3, 64, 64)).features.requires_grad


def test_activations_that_keep_their_input_are_never_computed_in_place() -> None:
    """A network whose SiLU is not in place, as in timm, may read its input again."""
    encoder = Encoder(EncoderConfig(name="efficientnet_v2_b0"))
    activations = [part for part in encoder.modules() if isinstance(part, torch.nn.SiLU)]
    own, *others = activations
    own.inplace = False
    encoder.fine_tune(from_stage=None)
    assert not own.inplace and all(part.inplace for part in others)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "resnet99"}, "'resnet99'.*resnet"),
        ({"name": "mobilenet_v3_small", "stride": 8}, "stride 8 is impossible"),
        ({"name": "resnet18", "last_stage": -1}, "last_stage -1 is out of range"),
        ({"name": "resnet18", "last_stage": 5}, "stages 0 to 4; there is no 5"),
        (
            {"name": "resnet18", "last_stage": 3},
            "resnet18 up to stage 3 has a stride of 16, or 8 with",
        ),
        ({"name": "timm/resnet81"}, "no model 'resnet81', did you mean resnet18"),
        ({"name": "timm/hf-hub:somebody/model"}, "no model"),
        ({"name": "timm/vit_tiny_patch16_224"}, "with stride 32"),
        ({"name": "timm/resnet18", "last_stage": 9}, "last_stage 9"),
        ({"name": "convnext_tiny", "last_stage": 1, "stride": 2}, "cannot be halved"),
    ],
)
def test_errors_name_the_value_and_the_remedy(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Encoder(EncoderConfig(**settings))


def test_what_a_network_cannot_do_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="stages 0 to 12; there is no 40"):
        Encoder(EncoderConfig(name="mobilenet_v3_small")).fine_tune(from_stage=40)
    with pytest.raises(ConfigError, match="efficientnet_v2_b0 has no pretrained weights"):
        Encoder(EncoderConfig(name="efficientnet_v2_b0"), pretrained=True)
    patches = EncoderConfig(name="timm/vit_tiny_patch16_224", stride=16)
    with pytest.raises(ConfigError, match="224 cannot take images of \\(96, 96\\)"):
        Encoder(patches)(torch.zeros(1, 3, 96, 96))
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'captioner\[timm\]'"):
        Encoder(EncoderConfig(name="timm/resnet18"))


@pytest.mark.parametrize(
    ("name", "stride"),
    [
        ("regnet_y_400mf", 32),  # computes while it is made
        ("timm/test_vit", 16),
        ("timm/test_vit_relpos", 16),  # has tables that it does not save
    ],
)
def test_other_backbones_train_are_saved_and_caption(
    name: str, stride: int, tiny_checkpoint: Checkpoint, tmp_path: Path, photo: Path
) -> None:
    torch.manual_seed(0)
    encoder = EncoderConfig(name=name, stride=stride)
    config = replace(tiny_checkpoint.model.config, encoder=encoder)
    model = CaptionModel(config, vocabulary_size=len(tiny_checkpoint.vocabulary))
    model.encoder.fine_tune(from_stage=0)
    before = [part.clone() for part in model.encoder.parameters()]
    images, tokens = torch.randn(2, 3, 160, 160), torch.randint(4, 9, (2, 1, 5))
    output = model.train()(images, tokens)
    model.decoder.logits(output.deep).log_softmax(-1)[..., 4].mean().neg().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    after = model.encoder.parameters()
    assert any(not torch.equal(*pair) for pair in zip(before, after, strict=True))

    checkpoint = replace(tiny_checkpoint, model=model.eval(), transform=TransformConfig(size=160))
    checkpoint.save(tmp_path / "own.safetensors", dtype=torch.float32)
    captioner = Captioner.from_pretrained(tmp_path / "own.safetensors", dtype="float32")
    with torch.no_grad():
        trained = model.encode(images).features
        again = captioner.model.encode(images.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(again.features, trained, rtol=1e-3, atol=1e-3)
    caption = captioner.caption(photo)
    assert caption.words[0].attention.shape == (again.rows, again.columns)


@pytest.mark.parametrize(
    ("name", "stride"), [("efficientnet_v2_b0", 32), ("resnet18", 16), ("timm/regnetx_002", 32)]
)
def test_a_folded_encoder_is_the_same_function(name: str, stride: int) -> None:
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
    assert not any(type(module) is nn.BatchNorm2d for module in encoder.modules())
    assert before.std() > 1e-3
    torch.testing.assert_close(after, before, rtol=1e-3, atol=1e-4 * float(before.abs().max()))


def test_efficientnet_v2_b0_is_torchvisions_with_tensorflows_padding() -> None:
    """The same parameters, outputs and gradients as the network of torchvision's own blocks."""
    network = torchvision.models.efficientnet
    fused, mobile = network.FusedMBConvConfig, network.MBConvConfig
    settings = [  # table 4 of Tan and Le 2021, and Keras's efficientnet_v2.py
        fused(1, 3, 1, 32, 16, 1), fused(4, 3, 2, 16, 32, 2), fused(4, 3, 2, 32, 48, 2),
        mobile(4, 3, 2, 48, 96, 3), mobile(6, 3, 1, 96, 112, 5), mobile(6, 3, 2, 112, 192, 8),
    ]  # fmt: skip
    theirs = network.EfficientNet(
        settings, dropout=0.0, stochastic_depth_prob=0.1, last_channel=1280,
        norm_layer=partial(nn.BatchNorm2d, eps=1e-3),
    ).features  # fmt: skip
    for parent, name, conv in convolutions.convolutions(theirs):
        if conv.stride == (2, 2):
            setattr(parent, name, SameConv2d(conv))
    encoder = Encoder(EncoderConfig(name="efficientnet_v2_b0"))
    encoder.stages.load_state_dict(theirs.state_dict())
    images = torch.randn(2, 3, 64, 96)
    for training in (True, False):  # in training both skip blocks, drawn from the same seed
        outputs = []
        for stages in (theirs, encoder.stages):
            torch.manual_seed(0)
            outputs.append(stages.train(training)(images))
            stages.load_state_dict(theirs.state_dict())
        torch.testing.assert_close(*outputs, rtol=0, atol=0)


def test_stochastic_depth_reaches_every_block_or_is_refused() -> None:
    encoder = Encoder(EncoderConfig(name="efficientnet_v2_b0")).train()
    encoder.stages.train()
    torch.manual_seed(0)
    encoder.set_stochastic_depth(0.999)  # every block with a shortcut becomes the identity
    with torch.no_grad():
        maps = encoder.stages[:2](torch.randn(1, 3, 64, 64))
        inside = encoder.stages[2][0](maps)
        torch.testing.assert_close(encoder.stages[2][1](inside.clone()), inside)
    for settings in ({"name": "resnet18"}, {"name": "timm/resnet18"},
                     {"name": "efficientnet_v2_b0", "last_stage": 1, "stride": 2}):  # fmt: skip
        plain = Encoder(EncoderConfig(**settings))
        with pytest.raises(ConfigError, match=r"stochastic_depth is 0.2, but .* no layers"):
            plain.set_stochastic_depth(0.2)
        plain.set_stochastic_depth(0.0)
    Encoder(EncoderConfig(name="swin_t")).set_stochastic_depth(0.2)


def test_pretrained_weights_are_torchvisions_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    model = torchvision.models.mobilenet_v3_small()
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    weights = torchvision.models.MobileNet_V3_Small_Weights.DEFAULT
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "hub"))
    monkeypatch.setattr(weights.value, "url", (tmp_path / "weights.pth").as_uri())
    # torchvision checks a hash in the file's name, which a file made here cannot have.
    monkeypatch.setattr(type(weights), "get_state_dict", _without_hash)
    encoder = Encoder(EncoderConfig(name="mobilenet_v3_small"), pretrained=True)
    assert torch.equal(encoder.stages[0][0].weight, model.features[0][0].weight)  # type: ignore[index]

    monkeypatch.setattr(weights.value, "url", (tmp_path / "missing.pth").as_uri())
    with pytest.raises(CheckpointNotFoundError, match=r"mobilenet_v3_small.*missing.*TORCH_HOME"):
        Encoder(EncoderConfig(name="mobilenet_v3_small"), pretrained=True)


def _without_hash(self: torchvision.models.WeightsEnum, **kwargs: object) -> object:
    kwargs.pop("check_hash", None)
    return torch.hub.load_state_dict_from_url(self.url, **kwargs)  # type: ignore[arg-type]
