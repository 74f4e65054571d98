"""TensorBoard's photos, and what is written above them."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

from captioner.drawing.sheet import contact_sheet
from captioner.vision.transform import TransformConfig
from captioner_training import log
from captioner_training.data.images import CaptionedImage, ImageStore
from captioner_training.evaluation.captioned import Captioned
from captioner_training.log import Board
from tests.spots import CASES, lit_place, near, pictures_in


def test_a_caption_of_characters_has_no_spaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    titles = []

    def sheet(*arguments: Any, title: str, **options: Any) -> Image.Image:
        titles.append(title)
        return contact_sheet(*arguments, title=title, **options)

    monkeypatch.setattr(log, "contact_sheet", sheet)
    Image.new("RGB", (60, 40), "green").save(tmp_path / "1.jpg")
    image = CaptionedImage(name="1.jpg", id=1, store=ImageStore(tmp_path), captions=(), words=())
    hypothesis: Any = SimpleNamespace(log_probabilities=torch.zeros(4))
    one = Captioned(
        image=image,
        hypothesis=hypothesis,
        words=["狗", "和", "led"],
        attention=torch.full((3, 2, 2), 0.25),
    )
    writer = Board(tmp_path / "events", step=0, tokenizer="characters")
    writer.photos([one], TransformConfig(mode="squash", size=64), step=1)
    writer.writer.close()
    assert titles == ["狗和led"]


@pytest.mark.parametrize("name", ["crop, wide", "pad, tall, turned"])
def test_the_sheet_marks_the_spot(tmp_path: Path, name: str) -> None:
    from tensorboard.backend.event_processing import event_accumulator as reading

    case = CASES[name]
    (tmp_path / "1.jpg").write_bytes(case.photo)
    image = CaptionedImage(name="1.jpg", id=1, store=ImageStore(tmp_path), captions=(), words=())
    hypothesis: Any = SimpleNamespace(log_probabilities=torch.zeros(2))
    attention = torch.zeros(1, 7, 7)
    attention[(0, *case.cell)] = 1
    one = Captioned(image=image, hypothesis=hypothesis, words=["spot"], attention=attention)
    writer = Board(tmp_path / "events", step=0, tokenizer="words")
    writer.photos([one], TransformConfig(mode=case.mode), step=1)
    writer.writer.close()
    events = reading.EventAccumulator(str(tmp_path / "events")).Reload()
    (shown,) = events.Images("photos/0")
    with Image.open(io.BytesIO(shown.encoded_image_string)) as sheet:
        _, marked = pictures_in(sheet)
    assert near(lit_place(marked, case.photo), case.at)
