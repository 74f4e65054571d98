"""Every state of the page, one after another, for checks of each state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.serving.server.conftest import SAMPLES
from tests.serving.server.page.conftest import Visit


def states(visit: Visit, folder: Path) -> Iterator[str]:
    tab = visit.tab
    yield "one"
    tab.route("**/api/caption", lambda route: None)
    visit.choose(SAMPLES / "rocket.jpg", state="waiting")
    yield "waiting"
    visit.forget()
    tab.unroute("**/api/caption")  # what was held goes on
    visit.settled()
    (folder / "cut.jpg").write_bytes((SAMPLES / "rocket.jpg").read_bytes()[:9000])
    visit.choose(SAMPLES / "chelsea.jpg", folder / "cut.jpg", SAMPLES / "camera.jpg")
    visit.strip()
    yield "many"
    tab.locator(".strip li button").first.press("?")
    yield "keys"
    tab.keyboard.press("Escape")
    tab.fill(".text", "A cat that looks past the camera.")
    yield "corrected"
    with tab.expect_download():
        tab.click(".train")
    tab.wait_for_selector(".commands:not([hidden])")
    yield "training"
    tab.click(".about .term >> nth=0")
    tab.click("text=Search settings")
    yield "explained"
    tab.click("text=Search settings")
    tab.locator(".strip button[title='cut.jpg']").click()
    visit.failure()
    yield "error"
    tab.click(".clear")
    yield "asked"
    tab.click(".clear")
    tab.wait_for_selector('.viewer[data-state="empty"]')
    yield "empty"
