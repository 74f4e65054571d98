"""`captioner.photos.transform`: the square that the encoder sees, and the way back to the photo."""

from __future__ import annotations

import json
import re
from dataclasses import asdict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from captioner.errors import ConfigError
from captioner.generation.config import GenerationConfig
from captioner.photos.transform import Transform, TransformConfig
from tests.properties import FEW

CONFIGS = {
    "crop": TransformConfig(),
    "crop from 256": TransformConfig(resize=256),
    "pad": TransformConfig(mode="pad"),
    "pad to an odd size": TransformConfig(mode="pad", size=97),
    "squash": TransformConfig(mode="squash"),
}
every_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def transforms() -> st.SearchStrategy[TransformConfig]:
    sizes = st.integers(8, 40)
    crops = st.builds(
        lambda size, more: TransformConfig(size=size, resize=size + more), sizes, st.integers(0, 9)
    )
    whole = st.builds(TransformConfig, mode=st.sampled_from(["pad", "squash"]), size=sizes)
    return crops | whole


@FEW
@given(config=transforms(), width=st.integers(20, 150), height=st.integers(20, 150))
def test_every_place_of_the_square_is_where_its_box_says(config, width, height):
    """Red is the place from left to right, green from top to bottom: 0 to 250."""
    across, down = ((np.arange(side) + 0.5) / side * 250 for side in (width, height))
    places = np.stack([*np.broadcast_arrays(across, down[:, None]), np.full((height, width), 255)])
    photo = Image.fromarray(places.transpose(1, 2, 0).round().astype(np.uint8))
    transform = Transform(config)
    box, square = transform.box(width, height), np.asarray(transform.square(photo))
    middles = (np.arange(config.size) + 0.5) / config.size
    inside = square[..., 2] == 255  # and not the bars of a padded square
    assert inside.any()
    for axis, side in ((0, width), (1, height)):
        start, end = box[axis], box[axis + 2]
        wanted = start + middles * (end - start)
        found = square[..., axis] / 250
        seen = inside.any(axis=axis)
        coarser = max((end - start) / config.size, 1 / side) + 1 / 250
        apart = np.abs(found - (wanted if axis == 0 else wanted[:, None]))[inside]
        assert apart.max() <= coarser
        within = (wanted > coarser) & (wanted < 1 - coarser)
        assert (seen | ~within).all()  # all of the photo that the box has is there


def test_boxes_of_known_photos():
    assert Transform(CONFIGS["squash"]).box(300, 900) == (0, 0, 1, 1)
    assert Transform(CONFIGS["crop"]).box(900, 300) == pytest.approx((1 / 3, 0, 2 / 3, 1))
    assert Transform(CONFIGS["crop"]).box(300, 900) == pytest.approx((0, 1 / 3, 1, 2 / 3))
    edge = (1 - 224 / 256) / 2
    box = Transform(CONFIGS["crop from 256"]).box(500, 500)
    assert box == pytest.approx((edge, edge, 1 - edge, 1 - edge))
    small = Transform(TransformConfig(mode="pad", size=240))
    assert small.box(600, 300) == pytest.approx((0, -0.5, 1, 1.5))
    assert small.box(300, 600) == pytest.approx((-0.5, 0, 1.5, 1))
    assert small.box(600, 300).top == -0.5


@every_config
@pytest.mark.parametrize("size", [(1, 1), (1, 10000), (10000, 1), (223, 7)])
def test_any_shape_works(config, size):
    transform = Transform(config)
    pixels = transform.normalize(transform.pixels(Image.new("RGB", size, (255, 0, 0))))
    assert pixels.shape == (3, config.size, config.size)
    assert torch.isfinite(pixels).all()
    # Somewhere the photo itself shows, and not only the bars.
    assert pixels[0].max() == pytest.approx((1 - config.mean[0]) / config.std[0], abs=1e-4)


@pytest.mark.parametrize("mode", ["crop", "pad", "squash"])
def test_a_photo_that_fits_is_left_alone(mode):
    image = Image.effect_noise((224, 224), 60).convert("RGB")
    square = Transform(TransformConfig(mode=mode)).square(image)
    assert square.tobytes() == image.tobytes()
    assert square is not image


def test_enlarging_makes_no_new_brightness():
    """Bilinear, as the weights were trained: a cubic goes beyond both sides of an edge."""
    edge = Image.new("RGB", (8, 8), (60, 60, 60))
    edge.paste((190, 190, 190), (4, 0, 8, 8))
    square = Transform(TransformConfig(size=32)).square(edge)
    assert square.getextrema() == ((60, 190),) * 3


@pytest.mark.parametrize("mode", ["crop", "pad", "squash"])
def test_squares_are_torchvisions(mode):
    # torchvision resizes and crops in two steps, on whole pixels; here it is one.
    from torchvision.transforms import functional

    photo = Image.radial_gradient("L").resize((640, 480)).convert("RGB")
    config = TransformConfig(mode=mode, resize=256 if mode == "crop" else None)
    if mode == "crop":
        reference = functional.center_crop(functional.resize(photo, 256), 224)
    elif mode == "squash":
        reference = functional.resize(photo, [224, 224])
    else:
        fill = tuple(round(255 * value) for value in config.mean)
        reference = functional.pad(functional.resize(photo, [168, 224]), [0, 28], fill=fill)
    pixels = functional.normalize(functional.to_tensor(reference), config.mean, config.std)
    transform = Transform(config)
    assert (transform.normalize(transform.pixels(photo)) - pixels).abs().mean() < 0.02


def test_normalize_is_the_formula():
    config = TransformConfig()
    pixels = torch.arange(256, dtype=torch.uint8).view(1, 16, 16).expand(2, 3, 16, 16)
    mean = torch.tensor(config.mean).view(3, 1, 1)
    std = torch.tensor(config.std).view(3, 1, 1)
    result = Transform(config).normalize(pixels)
    assert result.dtype == torch.float32
    assert result.shape == (2, 3, 16, 16)
    torch.testing.assert_close(result, (pixels.float() / 255 - mean) / std, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mode", "stretch"),
        ("size", 0),
        ("size", 224.0),
        ("size", True),
        ("resize", 223),
        ("mean", (0.5, 0.5)),
        ("mean", (0.5, 0.5, float("nan"))),
        ("std", (0.5, 0.5, 0.0)),
    ],
)
def test_a_wrong_setting_is_named(field, value):
    with pytest.raises(ConfigError) as caught:
        TransformConfig(**{field: value})
    start = rf"{re.escape(f'{field} {value!r}')} is (out of range|invalid): "
    assert re.match(start, caught.value.detail)


def test_numbers_of_numpy_are_settings() -> None:
    config = TransformConfig(size=np.uint8(64), mean=tuple(np.float32([0.5, 0.25, 0])))
    assert config == TransformConfig(size=64, mean=(0.5, 0.25, 0.0))
    assert json.loads(json.dumps(asdict(config)))["size"] == 64
    search = GenerationConfig(beam_size=np.int64(3), length_penalty=np.float32(0.5))
    assert search == GenerationConfig(beam_size=3, length_penalty=0.5)
    assert search.changed(captions=np.int32(7)).beam_size == 7
    with pytest.raises(ConfigError, match="beam_size 30 is out of range"):
        GenerationConfig(beam_size=np.int64(30))
