"""The overlay of the page equals that of the library and marks the right place."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from captioner import Caption
from captioner.captioner import Captioner
from tests.serving.server.conftest import SAMPLES
from tests.serving.server.page.conftest import Visit, record_of
from tests.spots import CASES, lit_place, make_spot_checkpoint, near

pytestmark = pytest.mark.slow

PIXELS = """() => {
  const [photo, heat] = ['.photo', '.heat'].map((name) => document.querySelector(name));
  const canvas = document.createElement('canvas');
  Object.assign(canvas, { width: heat.width, height: heat.height });
  const context = canvas.getContext('2d');
  for (const layer of [photo, heat]) context.drawImage(layer, 0, 0, heat.width, heat.height);
  return canvas.toDataURL();
}"""
"""The photo with its heat, as the page lays one over the other."""


def test_the_overlay_is_the_library_s(visit: Visit, tmp_path: Path) -> None:
    """Pixel by pixel, where the page shows a photo in its own size and the box is a part of it."""
    tab, path = visit.tab, tmp_path / "coffee.png"
    photo = Image.open(SAMPLES / "coffee.jpg").resize((660, 500))
    photo.save(path)
    record = record_of(Captioner(make_spot_checkpoint("crop")), path)
    weights = np.geomspace(1, 100, 15) / np.geomspace(1, 100, 15).sum()  # all degrees of heat
    record["words"][0]["attention"] |= {"rows": 3, "columns": 5, "weights": weights.tolist()}
    visit.answer(path, record)
    caption = Caption.from_record(visit.record())
    for colors in ("inferno", "viridis", "spotlight"):
        for smooth, strength in ((True, 75), (False, 40)):
            tab.select_option(".colors", colors)
            tab.set_checked(".smooth", smooth)
            tab.locator(".strength").fill(str(strength))
            shown = base64.b64decode(tab.evaluate(PIXELS).partition(",")[2])
            page = np.asarray(Image.open(io.BytesIO(shown)).convert("RGB"), int)
            look = {"colors": colors, "smooth": smooth, "strength": strength / 100}
            expected = np.asarray(caption.overlay(0, photo=path, **look), int)
            assert page.shape == expected.shape
            assert np.abs(page - expected).max() <= 3, look
            assert np.abs(page - np.asarray(photo, int)).max() > 20  # or there is no heat


def test_the_page_marks_the_spot(visit: Visit, tmp_path: Path) -> None:
    for mode in ("crop", "pad"):  # the box of "squash" is the whole photo
        captioner = Captioner(make_spot_checkpoint(mode))
        cases = [case for case in CASES.values() if case.mode == mode][:2]  # plain, and turned
        for number, case in enumerate(cases):
            (path := tmp_path / f"{mode}-{number}.jpg").write_bytes(case.photo)
            visit.answer(path, record_of(captioner, path))
            shown = visit.tab.locator("img.photo")
            shown.scroll_into_view_if_needed()
            marked = visit.tab.screenshot(clip=shown.bounding_box())
            download = visit.save("[data-picture=overlay]")
            saved = Image.open(download.path())
            assert saved.size == case.size
            for picture in (Image.open(io.BytesIO(marked)), saved):
                assert near(lit_place(picture, case.photo), case.at)
