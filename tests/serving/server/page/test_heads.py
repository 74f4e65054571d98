"""The attention's heads, where a model has several: one of them on the photo, or their mean."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving.server.conftest import Server, serve
from tests.serving.server.page.conftest import Visit
from tests.test_front_ends import VARIANTS, made

HEADS = 4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a tiny model of four heads."""
    folder: Path = tmp_path_factory.mktemp("heads")
    made(VARIANTS[f"lstm-scaled_dot-{HEADS}"]).save(folder / "heads.safetensors")
    with serve(folder / "server", "--checkpoint", folder / "heads.safetensors") as running:
        yield running


def pick(visit: Visit, head: str) -> None:
    visit.forget()
    visit.tab.select_option(".head", head)
    visit.settled()


def test_a_head_is_shown_saved_and_kept(visit: Visit) -> None:
    tab: Any = visit.tab
    assert tab.locator(".head option").all_inner_texts() == ["Mean", "1", "2", "3", "4"]
    assert tab.locator(".heads").is_visible() and tab.locator(".head").input_value() == ""
    tab.locator(".word").nth(1).click()
    mean, words = visit.heat(), visit.words()
    drawn = {mean}
    for head in range(1, HEADS + 1):
        pick(visit, str(head))
        assert tab.locator(".heat").get_attribute("data-word") == "1"  # the word that was chosen
        assert tab.locator(".head").input_value() == str(head) and visit.words() == words
        drawn.add(visit.heat())
    assert len(drawn) == 1 + HEADS
    assert tab.locator("[data-picture='overlay.png']").get_attribute("href").endswith("&head=4")
    visit.forget()
    tab.locator(".sentences li button:first-child").nth(1).click()
    visit.settled()
    assert visit.words() != words and tab.locator(".head").input_value() == "4"
    tab.reload()
    visit.settled()
    assert tab.locator(".head").input_value() == "4"
    visit.forget()
    tab.locator(".sentences li button:first-child").first.click()
    visit.settled()
    pick(visit, "")
    tab.locator(".word").nth(1).hover()
    assert visit.heat() == mean
    assert "head=" not in tab.locator("[data-picture='overlay.png']").get_attribute("href")


def test_a_finger_reaches_the_heads(phone: Visit) -> None:
    box = phone.tab.locator(".heads").bounding_box()
    assert box["height"] == phone.tab.locator(".play").bounding_box()["height"] >= 44
    assert box["x"] + box["width"] <= 360
    assert phone.tab.evaluate("document.documentElement.scrollWidth") <= 360
