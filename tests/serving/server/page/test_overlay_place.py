"""The page marks the place that the model looked at: its own drawing, and the pictures to save."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from tests.serving.server.conftest import Server, serve
from tests.serving.server.page.conftest import Visit
from tests.spots import CASES, lit_place, make_spot_checkpoint, near, pictures_in


@pytest.fixture(scope="module", params=["crop", "pad"])
def mode(request: pytest.FixtureRequest) -> str:
    """How the model's checkpoint makes a photo square."""
    return str(request.param)


@pytest.fixture(scope="module")
def server(mode: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose model looks at the brightest place."""
    folder = tmp_path_factory.mktemp(mode)
    make_spot_checkpoint(mode).save(folder / "spot.safetensors")
    with serve(folder / "tmp", "--checkpoint", folder / "spot.safetensors") as running:
        yield running


def marked(visit: Visit) -> Image.Image:
    """The photo as the page shows it, with what its own script has drawn on it."""
    shown = visit.tab.locator("img.photo")
    shown.scroll_into_view_if_needed()
    return Image.open(io.BytesIO(visit.tab.screenshot(clip=shown.bounding_box())))


def saved(visit: Visit, name: str) -> Image.Image:
    with visit.tab.expect_download() as download:
        visit.tab.click(f'[data-picture="{name}"]')
    return Image.open(download.value.path())


def test_the_page_marks_the_spot(mode: str, visit: Visit, tmp_path: Path) -> None:
    for case in (case for case in CASES.values() if case.mode == mode):
        (tmp_path / "photo.jpg").write_bytes(case.photo)
        visit.choose(tmp_path / "photo.jpg")
        for smooth in (True, False):
            visit.tab.set_checked(".smooth", smooth)
            assert near(lit_place(marked(visit), case.photo), case.at)
            assert near(lit_place(saved(visit, "overlay.png"), case.photo), case.at)
        _, sheet = pictures_in(saved(visit, "sheet.png"))
        assert near(lit_place(sheet, case.photo), case.at)
