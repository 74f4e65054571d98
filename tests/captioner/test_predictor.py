"""Captioner from Python: photos in, captions with their attention out."""

from __future__ import annotations

import gc
import io
import math
import weakref
from pathlib import Path

import pytest
import torch
from PIL import Image

from captioner import (
    Caption,
    Captioner,
    ConfigError,
    DeviceError,
    GenerationConfig,
    ImageFormatError,
    ImageNotFoundError,
)
from captioner.checkpoint import Checkpoint

ROOT = Path(__file__).parents[2]


@pytest.fixture
def captioner(tiny_file: Path) -> Captioner:
    return Captioner.from_pretrained(tiny_file)


def test_every_kind_of_source_gives_the_same_caption(captioner: Captioner, photo: Path) -> None:
    data = photo.read_bytes()
    with Image.open(photo) as image:
        sources = [photo, str(photo), data, io.BytesIO(data), image]
        captions = [captioner.caption(source) for source in sources]
        together = captioner.caption(sources)
    assert len({caption.text for caption in captions}) == 1
    assert [caption.text for caption in together] == [caption.text for caption in captions]
    assert [caption.image for caption in together] == [str(photo), str(photo), None, None, None]
    prepared = [captioner.prepare(source) for source in (data, bytearray(data), memoryview(data))]
    assert all(one.pixels.equal(prepared[0].pixels) for one in prepared)
    for caption in captions:
        assert caption.contact_sheet().size == captions[0].contact_sheet().size


def test_the_words_carry_what_is_known_of_them(captioner: Captioner, photo: Path) -> None:
    caption = captioner.caption(photo, GenerationConfig(captions=3))
    assert isinstance(caption, Caption)
    assert " ".join(word.text for word in caption.words) == caption.text
    assert len(caption.alternatives) == 2
    assert caption.score >= caption.alternatives[0].score >= caption.alternatives[1].score
    for word in caption.words:
        assert word.attention.shape == (3, 3)
        assert word.attention.sum().item() == pytest.approx(1, abs=1e-5)
        assert 0 < word.probability <= 1
        assert 0 < word.gate < 1


def test_an_alternative_can_be_chosen_with_its_own_words(captioner: Captioner, photo: Path) -> None:
    best = captioner.caption(photo, GenerationConfig(captions=3))
    second = best.choose(2)
    assert (second.text, second.score) == (best.alternatives[1].text, best.alternatives[1].score)
    assert " ".join(word.text for word in second.words) == second.text
    assert [other.text for other in second.alternatives] == [best.text, best.alternatives[0].text]
    assert second.words[0].attention.sum().item() == pytest.approx(1, abs=1e-5)
    said = sum(math.log(word.probability) for word in second.words)
    # The score counts the end as well.
    assert second.score * (len(second.words) + 1) ** 0.5 < said < 0
    assert best.choose(0) is best
    for number in (-1, 3):
        with pytest.raises(ConfigError, match="this caption has 2"):
            best.choose(number)


def test_the_record_is_that_of_the_contract(captioner: Captioner, photo: Path) -> None:
    record = captioner.caption(str(photo)).record(attention=True)
    assert list(record) == ["image", "caption", "score", "words", "alternatives", "model"]
    assert record["image"] == str(photo)
    assert record["model"] == {"name": "tiny", "version": "1"}
    word = record["words"][0]
    assert list(word) == ["word", "probability", "gate", "attention"]
    attention = word["attention"]
    assert (attention["rows"], attention["columns"]) == (3, 3)
    assert attention["box"] == [0, 0, 1, 1]
    assert sum(attention["weights"]) == pytest.approx(1, abs=1e-4)
    assert "attention" not in captioner.caption(photo).record()["words"][0]


def test_one_bad_image_fails_alone(captioner: Captioner, photo: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jpg"
    bad.write_text("no image")
    several = [photo, bad, tmp_path / "missing.jpg", photo]
    results = captioner.caption(several, errors="return")
    assert isinstance(results[1], ImageFormatError)
    assert isinstance(results[2], ImageNotFoundError)
    assert isinstance(results[0], Caption) and isinstance(results[3], Caption)
    assert results[0].text == results[3].text == captioner.caption(photo).text
    with pytest.raises(ImageFormatError, match=r"bad\.jpg"):
        captioner.caption([photo, bad])
    assert captioner.caption([]) == []


def test_an_error_that_is_kept_keeps_no_photos(captioner: Captioner, tmp_path: Path) -> None:
    photo = Image.new("RGB", (60, 40))
    held = weakref.ref(photo)
    gc.disable()  # which would find a cycle, some time
    try:
        error = captioner.caption([photo, tmp_path / "gone.jpg"], errors="return")[1]
        del photo
        assert isinstance(error, ImageNotFoundError) and held() is None
    finally:
        gc.enable()


def test_pictures_have_the_photos_own_size_and_turn(captioner: Captioner, tmp_path: Path) -> None:
    """A phone's photo: stored lying, to be shown upright, and decoded small for the model."""
    turned = tmp_path / "turned.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (900, 600), "navy").save(turned, exif=exif)
    caption = captioner.caption(turned)
    assert caption.overlay(1).size == (600, 900)
    assert caption.overlay(-1).size == (600, 900)


def test_pictures_of_a_photo_that_has_gone_say_so(captioner: Captioner, photo: Path) -> None:
    caption = captioner.caption(photo)
    photo.unlink()
    with pytest.raises(ImageNotFoundError, match=r"photo\.jpg"):
        caption.contact_sheet()


def test_bf16_says_what_float32_says(tiny_file: Path, photo: Path) -> None:
    exact = Captioner.from_pretrained(tiny_file, dtype="float32").caption(photo)
    half = Captioner.from_pretrained(tiny_file, dtype="bfloat16").caption(photo)
    assert half.words[0].text == exact.words[0].text
    assert half.words[0].attention.sum().item() == pytest.approx(1, abs=1e-5)
    assert half.score == pytest.approx(exact.score, abs=0.1)


def test_one_checkpoint_serves_in_two_dtypes_and_stays_as_it_is(
    tiny_checkpoint: Checkpoint, photo: Path
) -> None:
    model = tiny_checkpoint.model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    half = Captioner(tiny_checkpoint, dtype="bfloat16")
    exact = Captioner(tiny_checkpoint, dtype="float32")
    grids = [captioner.encode(captioner.prepare(photo).pixels[None]) for captioner in (half, exact)]
    assert [grid.features.dtype for grid in grids] == [torch.bfloat16, torch.float32]
    assert half.caption(photo).score == pytest.approx(exact.caption(photo).score, abs=0.1)
    assert half.fingerprint == exact.fingerprint == tiny_checkpoint.fingerprint()
    # The model that was given is still one to train: nothing folded, cast, or switched off.
    assert model.training and all(parameter.requires_grad for parameter in model.parameters())
    after = model.state_dict()
    assert after.keys() == before.keys() and model.decoder.words_in is None
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert {tensor.dtype for tensor in after.values()} == {torch.float32, torch.int64}
    assert not any(isinstance(part, torch.nn.BatchNorm2d) for part in exact.model.modules())


def test_dtypes_that_are_not_known_are_named(tiny_file: Path) -> None:
    with pytest.raises(ConfigError, match="dtype 'float8' is not one of auto, float32, bfloat16"):
        Captioner.from_pretrained(tiny_file, dtype="float8")


def test_devices_that_are_not_here_are_named(tiny_file: Path) -> None:
    with pytest.raises(DeviceError, match=r"'toaster'.*try auto"):
        Captioner.from_pretrained(tiny_file, device="toaster")
    if not torch.cuda.is_available():
        with pytest.raises(DeviceError, match=r"'cuda'.*try auto"):
            Captioner.from_pretrained(tiny_file, device="cuda")
