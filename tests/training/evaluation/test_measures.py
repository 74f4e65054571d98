"""Measures of a split that is captioned."""

from __future__ import annotations

import math
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from captioner.captioner import Captioner
from captioner.photos.transform import Box
from captioner_training.data.images import CaptionedImage, ImageStore
from captioner_training.evaluation.deletion import measure_deletion
from captioner_training.evaluation.evaluate import Evaluation, measure
from captioner_training.evaluation.fit_trust import pooled_grids
from captioner_training.evaluation.grounding import BoxedObject
from tests.conftest import make_consensus, make_tiny, make_trust
from tests.training.evaluation.test_trust import captioned


def measured(
    captioner: Captioner, images: list[CaptionedImage], *, boxes: Any = None, **options: Any
) -> Evaluation:
    defaults: dict[str, Any] = {
        "official": False, "calibration": False, "deletion": False, "beam_size": None,
        "style": None,
    }  # fmt: skip
    report = {"split": {"images": len(images), "hash": ""}}
    return measure(captioner, images, Namespace(**defaults | options), report=report, boxes=boxes)


class _Noted(ImageStore):
    """Writes down which photos are read, in whatever process."""

    note: Path

    def read(self, name: str) -> bytes:
        with self.note.open("a") as file:
            file.write(f"{name}\n")
        return super().read(name)


@pytest.fixture
def images(tmp_path: Path) -> list[CaptionedImage]:
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(5):
        noise = np.random.default_rng(10 + number).normal(128, 40 * number, (60, 60))
        photo = Image.fromarray(noise.clip(0, 255).astype(np.uint8)).convert("RGB")
        photo.save(photos / f"{number}.png")
    store = _Noted(photos)
    store.note = tmp_path / "opened"
    words = (("a", "dog", "runs"), ("the", "red", "ball"))
    captions = tuple(map(" ".join, words))
    return [
        CaptionedImage(name=f"{at}.png", id=at, store=store, captions=captions, words=words)
        for at in range(5)
    ]


@pytest.fixture
def captioner() -> Captioner:
    checkpoint = make_tiny()
    short = replace(checkpoint.generation, maximum_length=4)
    captioner = Captioner(replace(checkpoint, generation=short), device="cpu", dtype="float32")
    captioner.trust = make_trust()
    return captioner


def test_each_photo_is_opened_and_encoded_once(
    images: list[CaptionedImage], captioner: Captioner, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(Captioner, "batch_size", 2)
    encoded: list[int] = []
    watch = captioner.model.encoder.register_forward_hook(
        lambda _, pixels, __: encoded.append(len(pixels[0]))
    )
    evaluation = measured(captioner, images, calibration=True, deletion=True, beam_size=2)
    report, rows = evaluation.report, evaluation.rows
    opened = (tmp_path / "opened").read_text().split()
    assert sorted(opened) == sorted(one.name for one in images) and sum(encoded) == len(images)

    watch.remove()
    assert captioner.trust is not None
    told = captioner.trust.familiarity.of(pooled_grids(captioner, images))
    assert [row["familiarity"] for row in rows] == pytest.approx(told)
    found = captioner.caption(tmp_path / "photos" / "3.png", beam_size=2)
    assert found.text == rows[3]["caption"]  # of the second batch
    assert found.trust == pytest.approx(rows[3]["trust"])
    calibration, deletion = report["calibration"], report["deletion"]
    assert calibration["tokens"] == 5 * 2 * 4  # three words and the end
    words = sum(part["words"] for part in deletion.values())
    assert words == sum(len(row["caption"].split()) for row in rows)
    # Whose validation photos fitted trust is not known.
    assert "optimistic" in report["trust"]["note"]


def test_a_split_is_captioned_as_photos_are(
    images: list[CaptionedImage], captioner: Captioner, tmp_path: Path
) -> None:
    def texts(**options: Any) -> list[str]:
        return [row["caption"] for row in measured(captioner, images, **options).rows]

    captioner.consensus = make_consensus()
    photos = [tmp_path / "photos" / image.name for image in images]
    likeliest = [captioner.caption(photo, consensus=False).text for photo in photos]
    chosen = [captioner.caption(photo).text for photo in photos]
    assert texts() == chosen != likeliest
    assert measured(captioner, images).report["consensus"]
    assert not measured(captioner, images, beam_size=1).report["consensus"]
    captioner.consensus = None
    assert texts() == likeliest


def test_the_cross_entropy_of_references_is_in_nats_per_token(
    images: list[CaptionedImage], captioner: Captioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Captioner, "batch_size", 2)
    decoder, vocabulary = captioner.checkpoint.model.decoder, captioner.vocabulary
    with torch.no_grad():  # every word has the same probability everywhere, that of the bias
        for weights in decoder.parameters():
            weights.zero_()
        decoder.output_bias[vocabulary.encode(["dog"])] = 3.0
    captioner = Captioner(captioner.checkpoint, device="cpu", dtype="float32")
    # 14 tokens: "dog" has e^3 / (e^3 + 13), each other 1 / (e^3 + 13). Of the eight tokens of an
    # image's references, "a dog runs" and "the red ball" with their ends, one is "dog". The third
    # image is alone in the second batch. Two of the three tokens of its reference are "dog".
    total = math.log(math.exp(3) + 13)
    images[2] = replace(images[2], captions=("dog dog",), words=(("dog", "dog"),))
    report = measured(captioner, images[:3], calibration=True, beam_size=1).report
    calibration = report["calibration"]
    assert calibration["cross_entropy"] == pytest.approx(total - 12 / 19)
    # All three draws are of the third image with a probability of 1 / 27, of others with 8 / 27.
    # Bootstrap samples overestimate the calibration error, so it has no interval.
    low, high = total - 2, total - 3 / 8
    assert calibration["intervals"] == {"cross_entropy": pytest.approx([low, high])}


def test_a_measure_that_fails_leaves_the_others_complete(
    images: list[CaptionedImage], captioner: Captioner, capsys: pytest.CaptureFixture[str]
) -> None:
    boxes = {0: [BoxedObject("person", Box(0, 0, 1, 1)), BoxedObject("kite", Box(0, 0, 1, 1))]}
    evaluation = measured(captioner, images[:3], calibration=True, beam_size=1, boxes=boxes)
    report, printed = evaluation.report, capsys.readouterr().err
    for part, kind in (("person_boxes", "people"), ("object_boxes", "an object")):
        reason = f"no caption names {kind} with boxes in its image"
        assert report[part]["error"]["detail"] == reason
        assert f"captioner: {part}: {reason}" in printed
    assert report["calibration"]["tokens"] == 3 * 2 * 4 and not evaluation.is_complete
    whole = measured(captioner, images[:3], beam_size=1)
    assert whole.is_complete and not replace(whole, others=[evaluation]).is_complete


def test_the_deletion_test_keeps_content_words_and_function_words_apart() -> None:
    found: Any = measure_deletion(
        [captioned("a dog", effects=(8.5, 1.0)), captioned("cat runs", effects=(2.0, 6.5))]
    )
    content, function = found["content"], found["function"]
    assert content["words"] == 3 and content["effect"] == pytest.approx((1.0 + 2.0 + 6.5) / 3)
    # A draw has the first image twice, each once, or the second twice.
    assert content["intervals"]["effect"] == pytest.approx([1.0, 4.25])
    assert function["words"] == 1 and function["effect"] == 8.5
