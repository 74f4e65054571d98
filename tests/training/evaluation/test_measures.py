"""Measures of a split that is captioned."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from captioner.captioner import Captioner
from captioner.checkpoint import Checkpoint
from captioner.deletion import WordEffect
from captioner.errors import GenerationError
from captioner.generation.beam_search import Hypothesis
from captioner.model.encoder import Grid
from captioner.vision.transform import Box
from captioner_training.data.captioned import Captioned
from captioner_training.data.images import CaptionedImage, ImageStore
from captioner_training.evaluation import deletion as deletion_module
from captioner_training.evaluation import familiarity
from captioner_training.evaluation import split as split_module
from captioner_training.evaluation.boxes import BoxedObject
from captioner_training.evaluation.deletion import (
    DeletionTest,
    summarize_content,
    summarize_effects,
)
from captioner_training.evaluation.familiarity import measure_familiarity, pooled_grids
from captioner_training.evaluation.measures import CaptionedSplit
from captioner_training.evaluation.report import measure_parts
from tests.conftest import make_consensus, make_tiny, make_trust
from tests.launcher import Run
from tests.training.runs import write_split


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
    images: list[CaptionedImage],
    captioner: Captioner,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(split_module, "BATCH", 2)
    encoded: list[int] = []
    watch = captioner.model.encoder.register_forward_hook(
        lambda _, pixels, __: encoded.append(len(pixels[0]))
    )
    split = CaptionedSplit(captioner, images, calibration=True, deletion=True, beam_size=2)
    report: dict[str, object] = {}
    assert not measure_parts(report, split.parts())
    rows = split.rows()
    opened = (tmp_path / "opened").read_text().split()
    assert sorted(opened) == sorted(one.name for one in images) and sum(encoded) == len(images)

    watch.remove()
    assert captioner.trust is not None
    told = captioner.trust.familiarity.of(pooled_grids(captioner, images))
    assert [row.familiarity for row in rows] == pytest.approx(told)
    found = captioner.caption(tmp_path / "photos" / "3.png", split.config)
    assert found.trust == pytest.approx(rows[3].trust)
    calibration, deletion = report["calibration"], report["deletion"]
    assert isinstance(calibration, dict) and isinstance(deletion, dict)
    assert calibration["tokens"] == 5 * 2 * 4  # three words and the end
    kinds = [part for kind, part in deletion.items() if kind != "all_content"]
    words = sum(part["words"] for part in kinds)
    assert words == sum(len(row.caption.split()) for row in rows)


def test_a_split_is_captioned_as_photos_are(
    images: list[CaptionedImage], captioner: Captioner, tmp_path: Path
) -> None:
    captioner.consensus = make_consensus()
    split = CaptionedSplit(captioner, images)
    photos = [tmp_path / "photos" / image.name for image in images]
    likeliest = [captioner.caption(photo, consensus=False).text for photo in photos]
    chosen = [captioner.caption(photo).text for photo in photos]
    assert split.set.captions == chosen != likeliest
    assert split.facts()["consensus"]
    assert not CaptionedSplit(captioner, images, beam_size=1).facts()["consensus"]
    captioner.consensus = None
    assert CaptionedSplit(captioner, images).set.captions == likeliest


def test_the_cross_entropy_of_references_is_in_nats_per_token(
    images: list[CaptionedImage], captioner: Captioner
) -> None:
    decoder, vocabulary = captioner.checkpoint.model.decoder, captioner.vocabulary
    with torch.no_grad():  # every word has the same probability everywhere, that of the bias
        for weights in decoder.parameters():
            weights.zero_()
        decoder.output_bias[vocabulary.encode(["dog"])] = 3.0
    captioner = Captioner(captioner.checkpoint, device="cpu", dtype="float32")
    # 14 tokens: "dog" has e^3 / (e^3 + 13), each other 1 / (e^3 + 13). Of the eight tokens of an
    # image's references, "a dog runs" and "the red ball" with their ends, one is "dog".
    total = math.exp(3) + 13
    nats = (8 * math.log(total) - 3) / 8
    split = CaptionedSplit(captioner, images[:3], calibration=True, deletion=True, beam_size=1)
    report: dict[str, object] = {}
    measure_parts(report, split.parts())
    calibration = report["calibration"]
    assert isinstance(calibration, dict)
    assert calibration["cross_entropy"] == pytest.approx(nats)
    # All are alike. Bootstrap samples overestimate the calibration error, so it has no interval.
    assert calibration["intervals"] == {"cross_entropy": pytest.approx([nats, nats])}
    assert [row.cross_entropy for row in split.rows()] == pytest.approx([nats] * 3)
    assert [row.reference_tokens for row in split.rows()] == [8] * 3


def test_a_measure_that_fails_leaves_the_others_complete(
    images: list[CaptionedImage], captioner: Captioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise GenerationError("no numbers")

    monkeypatch.setattr(DeletionTest, "add", fail)
    split = CaptionedSplit(captioner, images[:3], calibration=True, deletion=True, beam_size=1)
    report: dict[str, object] = {}
    assert measure_parts(report, split.parts())
    failed = report["deletion"]
    assert isinstance(failed, dict) and failed["error"]["detail"] == "no numbers"
    assert isinstance(calibration := report["calibration"], dict)
    assert calibration["tokens"] == 3 * 2 * 4
    for category, part in (("", "person_boxes"), ("kite", "object_boxes")):
        boxes = {0: [BoxedObject(category, Box(0, 0, 1, 1))]}
        assert part in split.parts(boxes=boxes).keys() - split.parts().keys()


def test_the_deletion_test_depends_on_neither_batches_nor_later_images(
    images: list[CaptionedImage], tiny_checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = torch.randn(5, 9, 576, generator=torch.Generator().manual_seed(0))
    vocabulary = tiny_checkpoint.vocabulary
    captioned = [
        Captioned(
            image=image,
            hypothesis=Hypothesis(tokens, 0.0, torch.zeros(len(tokens) + 1)),
            words=vocabulary.decode(tokens),
            attention=None,
        )
        for image, tokens in zip(images, ([4, 5], [6], [7, 8, 9], [5, 4], [9, 6]), strict=True)
    ]

    def deletions(*parts: slice, images: int | None = None) -> list[float]:
        """Return the number of content words, their mean fall, and the ends of its interval."""
        test = DeletionTest(
            tiny_checkpoint.model.decoder,
            vocabulary=vocabulary,
            autocast=torch.autocast("cpu", enabled=False),
            insertion=False,
            images=images,
        )
        for part in parts:
            test.add(Grid(features[part], 3, 3), captioned[part])
        found: Any = test.content()
        return [found["words"], found["deletion"], *found["intervals"]["deletion"]]

    whole, three = deletions(slice(5)), deletions(slice(3))
    assert whole[0] == 6 and three[0] == 4 and whole[1] != pytest.approx(three[1], abs=1e-3)
    monkeypatch.setattr(deletion_module, "_BATCH", 2)
    assert deletions(slice(5)) == pytest.approx(whole, abs=1e-5)
    assert deletions(slice(2), slice(2, 5)) == pytest.approx(whole, abs=1e-5)
    assert deletions(slice(2), slice(2, 5), images=3) == pytest.approx(three, abs=1e-5)


def test_familiarity_is_compared_with_that_of_every_picture_of_a_folder(
    images: list[CaptionedImage],
    captioner: Captioner,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Of four pairs three are in order, and one is a tie.
    assert familiarity.auroc(np.array([0.9, 0.5]), np.array([0.5, 0.1])) == 3.5 / 4
    folder = tmp_path / "photos"
    (folder / "1.txt").write_text("no picture")
    monkeypatch.setattr(familiarity, "_BATCH", 2)
    found = measure_familiarity(captioner, np.zeros((1, 577), np.float32), folder)
    assert found["unlike"] == 5


def test_the_deletion_test_begins_each_caption_as_its_style_does(
    images: list[CaptionedImage], styled: Checkpoint
) -> None:
    grid = Grid(torch.randn(2, 9, 576, generator=torch.Generator().manual_seed(0)), 3, 3)
    found = []
    for styles in (("long", "short"), ("short", "long"), ("", "short")):
        captioned = [
            Captioned(
                image=replace(image, style=style),
                hypothesis=Hypothesis([4, 5], 0.0, torch.zeros(3)),
                words=["a", "dog"],
                attention=None,
            )
            for image, style in zip(images, styles, strict=False)
        ]
        test = DeletionTest(
            styled.model.decoder,
            vocabulary=styled.vocabulary,
            autocast=torch.autocast("cpu", enabled=False),
        )
        test.add(grid, captioned)
        found.append(test.result())
    assert found[0] == found[2] != found[1]


def test_the_summary_keeps_words_with_a_shut_gate_apart() -> None:
    def word(image: int, place: int, deletion: float, gate: float) -> WordEffect:
        return WordEffect(image, place, 1, deletion, 0.5, 0.0, 0.0, 1.0, gate)

    effects = [
        word(0, 0, 9.0, 0.5),
        word(0, 1, 1.5, 0.5),
        word(1, 0, 2.5, 0.6),
        word(1, 1, 7.0, 0.05),
    ]
    found = summarize_effects(effects, [["a", "dog"], ["cat", "runs"]])
    content = found["content"]
    assert isinstance(content, dict)
    assert content["words"] == 2 and content["effect"] == pytest.approx(1.5)
    assert content["intervals"]["effect"] == pytest.approx([1.0, 2.0])
    shut, function = found["content_shut_gate"], found["function"]
    assert isinstance(shut, dict) and shut["effect"] == pytest.approx(6.5)
    assert isinstance(function, dict) and function["effect"] == pytest.approx(8.5)
    # All content words: 1.5 and 1 of one gate, 6.5 of another, less 0.5 by chance each.
    whole = summarize_content(effects, [["a", "dog"], ["cat", "runs"]])
    assert whole is not None and whole["words"] == 3
    assert whole["effect"] == pytest.approx((1.0 + 2.0 + 6.5) / 3)
    assert summarize_content(effects[:1], [["a", "dog"]]) is None


def test_captions_beyond_the_first_batch_are_scored_on_their_own_photos(
    tiny_file: Path, tmp_path: Path, run_main: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference of each photo is what the model says of it alone."""
    monkeypatch.setattr(split_module, "BATCH", 4)
    chance = np.random.default_rng(0)
    colors = chance.integers(0, 256, (9, 2, 2, 3), dtype=np.uint8)
    pictures = [Image.fromarray(one).resize((64, 64), Image.Resampling.NEAREST) for one in colors]
    captioner = Captioner.from_pretrained(tiny_file, dtype="float32")
    texts = [caption.text for caption in captioner.caption(pictures)]
    assert texts[:4] != texts[4:8]
    write_split(tmp_path, "val", pictures, [[text] for text in texts])
    done = run_main("evaluate", tmp_path, "--checkpoint", tiny_file, "--dtype", "float32", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["nltk"]["exact"] == 100
