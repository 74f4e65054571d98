"""Every front end marks the place that the model looked at, on photos of any shape and turn.

The model of tests/spots.py looks at the brightest cell of what a checkpoint that crops or pads lets
it see. Where that is on the photo is worked out in spots.py, and nowhere with the product's code.
"""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from PIL import Image

from captioner import Caption, Captioner
from tests.spots import (
    CASES,
    Case,
    lit_place,
    make_spot_checkpoint,
    near,
    pictures_in,
    said_place,
)

Run = Callable[..., CompletedProcess[str]]

MODES = ("crop", "pad")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints, crop.safetensors and pad.safetensors, and each one's photos in a folder."""
    made = tmp_path_factory.mktemp("spots")
    for mode in MODES:
        make_spot_checkpoint(mode).save(made / f"{mode}.safetensors")
        (made / mode).mkdir()
    for number, case in enumerate(CASES.values()):
        (made / case.mode / f"{number}.jpg").write_bytes(case.photo)
    return made


@pytest.fixture(scope="module")
def captioners(folder: Path) -> dict[str, Captioner]:
    return {
        mode: Captioner.from_pretrained(folder / f"{mode}.safetensors", dtype="float32")
        for mode in MODES
    }


def cases_of(mode: str) -> Iterator[tuple[str, Case]]:
    """The cases of a checkpoint, each with the file name of its photo."""
    for number, case in enumerate(CASES.values()):
        if case.mode == mode:
            yield f"{number}.jpg", case


def opened(address: str) -> Image.Image:
    """The picture in a data: address."""
    return Image.open(io.BytesIO(base64.b64decode(address.partition("base64,")[2])))


def check_sheet(sheet: Image.Image, case: Case) -> None:
    photo, marked = pictures_in(sheet)
    x, y = lit_place(marked, photo)
    scale = case.size[0] / photo.width
    assert near((x * scale, y * scale), case.at)


@pytest.fixture(params=CASES.values(), ids=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture
def caption(captioners: dict[str, Captioner], case: Case) -> Caption:
    return captioners[case.mode].caption(case.photo)


def test_python(caption: Caption, case: Case) -> None:
    assert caption.text == "spot"
    assert near(said_place(caption.record(attention=True), case.size), case.at)
    for smooth in (True, False):
        overlay = caption.overlay("spot", smooth=smooth)
        assert overlay.size == case.size and near(lit_place(overlay, case.photo), case.at)
    (frame,) = pictures_in(caption.animation()[-1])
    assert near(lit_place(frame, case.photo), case.at)
    check_sheet(caption.contact_sheet(), case)


def test_notebook(caption: Caption, case: Case) -> None:
    photo, marked = map(opened, re.findall(r'src="(data:[^"]+)"', caption._repr_html_()))
    x, y = lit_place(marked, photo)
    assert near((x * case.size[0] / photo.width, y * case.size[1] / photo.height), case.at)
