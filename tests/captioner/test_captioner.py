"""Captioner from Python: photos in, captions with their attention out."""

from __future__ import annotations

import gc
import inspect
import io
import math
import os
import threading
import weakref
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from captioner import (
    Caption,
    Captioner,
    ConfigError,
    GenerationConfig,
    ImageFormatError,
    ImageNotFoundError,
    ImageTooLargeError,
)
from captioner.captioner import CaptionOptions
from captioner.checkpoint import Checkpoint
from captioner.inference import device
from captioner.inference.device import best_dtype
from captioner.model.lstm import LSTMDecoder
from captioner.photos.open import open_image
from tests.captioner.pictures import exif
from tests.conftest import ROOT

SAMPLES = ROOT / "assets" / "samples"


def test_every_kind_of_source_gives_the_same_caption(captioner: Captioner, photo: Path) -> None:
    data = photo.read_bytes()
    with Image.open(photo) as image:
        sources = [photo, str(photo), bytearray(data), io.BytesIO(data), image]
        captions = [captioner.caption(source) for source in sources]
        together = captioner.caption(sources)
    assert len({caption.text for caption in captions}) == 1
    assert [caption.text for caption in together] == [caption.text for caption in captions]
    names = [str(photo), str(photo), None, None, str(photo)]
    assert [caption.image for caption in together] == names
    assert all(caption.size == (120, 80) for caption in captions)
    with Image.open(io.BytesIO(data)) as image:
        assert captioner.caption(image).image is None
    with os.fdopen(os.open(photo, os.O_RDONLY), "rb") as file:
        assert captioner.caption(file).image is None  # its name is a number


def test_a_photo_that_is_decoded_at_a_reduced_size_keeps_its_own_size(
    captioner: Captioner, tmp_path: Path
) -> None:
    path = tmp_path / "large.jpg"
    Image.new("RGB", (2400, 1400), "seagreen").save(path, exif=exif(6))
    caption = captioner.caption(path)
    assert caption.size == (1400, 2400)
    assert caption.attention_map(0).shape == caption.overlay(0).size[::-1] == (2400, 1400)


def test_an_alternative_can_be_chosen_with_its_own_words(captioner: Captioner, photo: Path) -> None:
    best = captioner.caption(photo, GenerationConfig(captions=3))
    second = best.choose(2)
    assert second.sentences == (best.sentences[2], *best.sentences[:2])
    assert " ".join(word.text for word in second.words) == second.text
    assert second.words[0].attention.sum().item() == pytest.approx(1, abs=1e-5)
    said = sum(math.log(word.probability) for word in second.words)
    # The score counts the end as well.
    assert second.score * (len(second.words) + 1) ** 0.5 < said < 0
    assert best.choose(0) is best
    for number in (-1, 3):
        with pytest.raises(ConfigError, match="the caption has 2"):
            best.choose(number)


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
    with pytest.raises(ImageFormatError, match=r"bad\.jpg"):  # one by itself has no other place
        captioner.caption(bad, errors="return")  # type: ignore[call-overload]
    assert captioner.caption([]) == []


def test_a_photo_that_needs_too_much_memory_fails_alone(
    captioner: Captioner, photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    huge = photo.with_name("huge.jpg")

    def open_or_fail(source: Any, **options: Any) -> Image.Image:
        if source == huge:
            raise MemoryError
        return open_image(source, **options)

    monkeypatch.setattr("captioner.captioner.open_image", open_or_fail)
    error, caption = captioner.caption([huge, photo], errors="return")
    assert isinstance(error, ImageTooLargeError) and "huge.jpg needs too much" in str(error)
    assert isinstance(caption, Caption)


def test_an_iterator_reads_two_batches_ahead_at_most(captioner: Captioner, photo: Path) -> None:
    taken = 0

    def endless() -> Iterator[Path]:
        nonlocal taken
        while True:
            taken += 1
            yield photo

    captions = captioner.caption_iter(endless(), batch_size=3)
    assert taken == 0
    expected = captioner.caption(photo).text
    for number in range(1, 10):
        assert next(captions).text == expected
        assert taken <= number + 2 * 3 + 2
    captions.close()
    for thread in threading.enumerate():
        if thread.name.startswith("decoding"):
            thread.join(60)
            assert not thread.is_alive()


@pytest.mark.parametrize(
    ("arguments", "settings", "value"),
    [
        (({"beam_size": 3},), {}, "dict"),
        ((GenerationConfig(style="rude"),), {}, "rude"),
        ((), {"beam_sise": 3}, "'beam_sise': did you mean beam_size"),
        ((), {"beam_size": 0}, "beam_size 0"),
        ((), {"errors": "ignore"}, "'ignore'"),
        ((), {"batch_size": 0}, "batch_size is 0"),
        ((), {"batch_size": 1.5}, r"batch_size is 1\.5"),
    ],
)
def test_settings_are_checked_before_the_first_caption(
    captioner: Captioner, photo: Path, arguments: tuple[Any, ...], settings: Any, value: str
) -> None:
    for call in (captioner.caption, captioner.caption_iter):
        with pytest.raises(ConfigError, match=value):
            call([photo], *arguments, **settings)


def test_errors_of_an_iterator_follow_the_captions_before_them(
    captioner: Captioner, photo: Path, tmp_path: Path
) -> None:
    missing = tmp_path / "missing.jpg"
    captions = captioner.caption_iter([photo, photo, missing, photo], batch_size=4)
    assert isinstance(next(captions), Caption) and isinstance(next(captions), Caption)
    with pytest.raises(ImageNotFoundError, match=r"missing\.jpg"):
        next(captions)
    kept = captioner.caption_iter([missing, photo], errors="return", batch_size=1)
    assert [type(result) for result in kept] == [ImageNotFoundError, Caption]

    def broken() -> Iterator[Path]:
        yield photo
        raise OSError("the disk is gone")

    captions = captioner.caption_iter(broken())
    assert isinstance(next(captions), Caption)
    with pytest.raises(OSError, match="the disk is gone"):
        next(captions)


def test_one_open_image_may_be_in_a_list_many_times(captioner: Captioner, photo: Path) -> None:
    """Threads decode the list."""
    expected = captioner.caption(photo).text
    with Image.open(photo) as image, photo.open("rb") as file:
        assert {it.text for it in captioner.caption([image] * 20)} == {expected}
        assert captioner.caption([file, photo])[0].text == expected


def test_a_stored_error_holds_no_photos(captioner: Captioner, tmp_path: Path) -> None:
    photo = Image.new("RGB", (60, 40))
    held = weakref.ref(photo)
    gc.disable()  # which would find a cycle, some time
    try:
        error = captioner.caption([photo, tmp_path / "gone.jpg"], errors="return")[1]
        del photo
        assert isinstance(error, ImageNotFoundError) and held() is None
    finally:
        gc.enable()


def test_two_dtypes_of_one_checkpoint_leave_it_unchanged(
    tiny_checkpoint: Checkpoint, photo: Path
) -> None:
    model = tiny_checkpoint.model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ConfigError, match=r"dtype torch\.int8 has no fractions: use auto, float32"):
        Captioner(tiny_checkpoint, dtype=torch.int8)
    half = Captioner(tiny_checkpoint, dtype="bfloat16")
    exact = Captioner(tiny_checkpoint, dtype=torch.float32)
    grids = [captioner.encode(captioner.prepare(photo).pixels[None]) for captioner in (half, exact)]
    assert [grid.features.dtype for grid in grids] == [torch.bfloat16, torch.float32]
    # Rounding may prune another hypothesis of the beam; a sentence in both has the same score.
    scores, exact_scores = (
        {sentence.text: sentence.score for sentence in (caption, *caption.alternatives)}
        for caption in (half.caption(photo, captions=5), exact.caption(photo, captions=5))
    )
    shared = scores.keys() & exact_scores.keys()
    assert len(shared) >= 3
    for text in shared:
        assert scores[text] == pytest.approx(exact_scores[text], abs=0.1)
    assert half.fingerprint == exact.fingerprint == tiny_checkpoint.fingerprint()
    # The model that was given is still one to train: nothing folded, cast, or switched off.
    assert model.training and all(parameter.requires_grad for parameter in model.parameters())
    after = model.state_dict()
    assert after.keys() == before.keys() and type(model.decoder) is LSTMDecoder
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert {tensor.dtype for tensor in after.values()} == {torch.float32, torch.int64}
    assert not any(isinstance(part, torch.nn.BatchNorm2d) for part in exact.model.modules())


@pytest.mark.parametrize(
    ("cpuinfo", "dtype", "reason"),
    [  # of Intel's Sapphire Rapids and Ice Lake, an ARM of Amazon's, and AMD's Zen 5
        ("flags\t\t: fpu avx512_bf16 amx_bf16\n", "bfloat16", "amx_bf16"),
        ("vendor_id\t: GenuineIntel\nflags\t\t: avx512_bf16\nbugs\t: bf16\n", "float32", "no fast"),
        ("Features\t: fp asimd i8mm bf16 dgh\n", "bfloat16", "bf16"),
        ("vendor_id\t: AuthenticAMD\nflags\t\t: avx512_bf16\n", "bfloat16", "AMD's avx512"),
    ],
)
def test_bfloat16_where_the_cpu_has_it(
    cpuinfo: str, dtype: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    flags = inspect.unwrap(device._cpu_flags)  # tests/processor replaces it
    monkeypatch.setattr(device, "_cpu_flags", flags)
    monkeypatch.setattr("captioner.inference.device.Path", lambda _: tmp_path / "cpuinfo")
    monkeypatch.setattr("platform.system", lambda: "Linux")
    best, why = best_dtype(torch.device("cpu"))
    assert best is getattr(torch, dtype) and reason in why


def test_settings_are_given_by_name(captioner: Captioner, photo: Path) -> None:
    names = {field.name for field in fields(GenerationConfig)}
    assert names < CaptionOptions.__annotations__.keys()
    config = GenerationConfig(beam_size=3, captions=2)
    assert captioner.caption(photo, beam_size=3, captions=2) == captioner.caption(photo, config)
    assert len(captioner.caption(photo, config, captions=7).alternatives) == 6


def test_a_seeded_sample_does_not_depend_on_the_batch(
    captioner: Captioner, photo: Path, tmp_path: Path
) -> None:
    for name, color in (("red", "red"), ("blue", "blue")):
        Image.new("RGB", (90, 60), color).save(tmp_path / f"{name}.png")
    config = GenerationConfig(sample=True, seed=3, captions=2, maximum_length=8)
    alone = captioner.caption(photo, config)
    batch = captioner.caption([tmp_path / "red.png", tmp_path / "blue.png", photo], config)
    for one, other in zip(batch[2].sentences, alone.sentences, strict=True):
        assert one.text == other.text
    many = captioner.caption(photo, config, captions=30)
    assert len(Caption.from_record(many.record()).alternatives) == 29
    draws = {captioner.caption(photo, config, seed=seed).text for seed in range(5)}
    assert len(draws) > 1
