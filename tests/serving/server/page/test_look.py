"""How the page looks: on a phone and on a wide screen, in light, in dark and in a frame."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.serving.server.conftest import SAMPLES, Server, serve
from tests.serving.server.page.conftest import DESK, Visit, visiting
from tests.serving.server.page.frozen import GRADIO
from tests.web import Handler, hosting

pytestmark = pytest.mark.slow


def test_a_phone_needs_no_sideways_scrolling_and_a_finger_hits_everything(phone: Visit) -> None:
    tab = phone.tab
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
    with tab.expect_file_chooser() as camera:  # the camera's own program
        tab.tap(".take")
    assert camera.value.element.get_attribute("capture") == "environment"
    tab.locator(".word").nth(3).tap()
    assert tab.locator(".heat").get_attribute("data-word") == "3"
    width, shown = tab.locator(".heat").evaluate("c => [c.width, c.clientWidth]")
    assert width == pytest.approx(3 * shown, abs=3)  # sharp on a high-density screen
    tab.locator(".word").first.press("Escape")
    assert tab.inner_text(".about").startswith("Tap a word")
    tab.click("text=Search settings")
    small = phone.tab.evaluate(
        """[...document.querySelectorAll('.captioner :is(button, a, input, select, summary)')]
          .map(x => [x, (x.closest('label.control') ?? x).getBoundingClientRect()])
          .filter(([x, box]) => box.height > 0 && (box.height < 44 || box.width < 44))
          .map(([x, box]) => x.className + ' ' + box.width + ' x ' + box.height)"""
    )
    # a word may be as short as "a": WCAG 2.5.5 lets a target in a sentence be
    assert [item for item in small if not item.startswith("word")] == []
    heights = phone.tab.evaluate(
        "[...document.querySelectorAll('.word')].map(x => x.getBoundingClientRect().height)"
    )
    assert min(heights) >= 44
    tab.evaluate("scrollTo(0, 400)")
    assert tab.locator(".stage").bounding_box()["y"] >= 0  # beside its words
    tab.locator(".text").focus()  # and makes room for the keyboard
    assert tab.evaluate("getComputedStyle(document.querySelector('.stage')).position") != "sticky"


def test_on_a_phone_words_and_failures_come_without_scrolling(phone: Visit, tmp_path: Path) -> None:
    for sample in ("coffee", "camera"):  # landscape, and square
        phone.choose(SAMPLES / f"{sample}.jpg")
        phone.tab.wait_for_function(
            "document.querySelector('.sentence').getBoundingClientRect().bottom <= innerHeight"
            " && document.querySelector('.photo').getBoundingClientRect().top >= 0"
        )
    pictures = phone.tab.evaluate(
        "[...document.querySelectorAll('img, canvas')].filter(x => !x.closest('.samples')"
        " && x.getBoundingClientRect().width > 100).map(x => x.className)"
    )
    assert pictures == ["photo", "heat"]  # the photo is there once
    (tmp_path / "no.jpg").write_bytes(b"no photo")
    phone.tab.evaluate("scrollTo(0, 500)")
    phone.choose(tmp_path / "no.jpg", state="failed")
    assert "no.jpg is not a" in phone.failure()
    phone.tab.wait_for_function("scrollY === 0")
    assert phone.tab.locator(".failure").bounding_box()["y"] < 600  # with the way to another photo


def states(visit: Visit, folder: Path) -> Iterator[str]:
    """Go through every state of the page."""
    tab = visit.tab
    yield "one"
    tab.route("**/api/caption", lambda route: None)
    visit.choose(SAMPLES / "rocket.jpg", state="waiting")
    yield "waiting"
    with visit.changing():
        tab.unroute("**/api/caption")  # what was held goes on
    (folder / "cut.jpg").write_bytes((SAMPLES / "rocket.jpg").read_bytes()[:9000])
    visit.choose(SAMPLES / "chelsea.jpg", folder / "cut.jpg", SAMPLES / "camera.jpg")
    visit.strip()
    yield "many"
    tab.locator(".strip li button").first.press("?")
    yield "keys"
    tab.keyboard.press("Escape")
    tab.fill(".text", "A cat that looks past the camera.")
    yield "corrected"
    visit.save(".train")
    yield "training"
    tab.click(".about .term summary >> nth=0")
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


@pytest.mark.parametrize(
    ("where", "scheme", "scripts"), [("pocket", "dark", ""), ("desk", "light", GRADIO)]
)
def test_axe_finds_no_violation_in_any_state(
    request: pytest.FixtureRequest,
    page_url: str,
    tmp_path: Path,
    where: str,
    scheme: str,
    scripts: str,
) -> None:
    context, axe, found = request.getfixturevalue(where), Axe(), {}
    with visiting(context, page_url + scripts, color_scheme=scheme) as visit:
        for state in states(visit, tmp_path):
            result = axe.run(visit.tab, options={"resultTypes": ["violations"]})
            assert result.response["passes"]
            if result.violations_count:
                found[state] = result.generate_report()
    assert found == {}


SHIFTS = """window.shifts = []; new PerformanceObserver((list) => shifts.push(...list.getEntries()))
  .observe({ type: 'layout-shift', buffered: true });"""


PAINTED = """new Promise((done) =>
  requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 50))))"""
"""Wait until the page is painted and its shifts are reported."""


@pytest.mark.parametrize("where", ["desk", "pocket"])
def test_nothing_moves_while_a_caption_arrives(
    request: pytest.FixtureRequest, page_url: str, where: str
) -> None:
    with visiting(request.getfixturevalue(where), page_url, script=SHIFTS) as visit:
        tab = visit.tab
        tab.evaluate("document.body.insertAdjacentHTML('afterbegin', '<p id=push>push</p>')")
        tab.wait_for_function("shifts.length > 0")  # what moves is seen
        tab.evaluate("push.remove()")
        for photo in ("rocket", "chelsea"):  # the list opens, and is there
            tab.route("**/api/caption", lambda route: None)
            visit.choose(SAMPLES / f"{photo}.jpg", state="waiting")
            tab.evaluate(PAINTED)
            tab.evaluate("shifts.splice(0)")
            tab.unroute("**/api/caption")
            tab.wait_for_selector('.viewer[data-state="shown"]')
            visit.settled()
            tab.wait_for_timeout(200)
            moved = tab.evaluate("shifts.splice(0).reduce((sum, each) => sum + each.value, 0)")
            assert moved < 0.001  # a line in the list becomes two: 0.0001


# As a Space: the page in a frame of another site, behind a proxy


class Frame(Handler):
    """Another site, whose page shows the URL in its query string in a frame."""

    def do_GET(self) -> None:  # noqa: N802
        _, _, shown = self.path.partition("?")
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        page = f'<!doctype html><iframe src="{shown}" width=1200 height=800></iframe>'
        self.wfile.write(page.encode())


@pytest.fixture
def site() -> Iterator[str]:
    with hosting(Frame) as address:
        yield address.replace("127.0.0.1", "localhost")


@pytest.fixture
def space(site: str, tmp_path: Path, saved_tiny: Path) -> Iterator[Server]:
    hosts = ("--host", "0.0.0.0", "--trusted-proxy", "10.0.0.0/8")
    options = (*hosts, "--frame-ancestor", site, "--checkpoint", saved_tiny)
    with serve(tmp_path / "space", *options) as running:
        yield running


def test_the_page_captions_in_a_frame_of_another_site(
    site: str, space: Server, browser: Any
) -> None:
    tab = browser.new_page(**DESK)
    shown = space.url.replace("0.0.0.0", "127.0.0.1")
    tab.goto(f"{site}/?{shown}/")
    frame = tab.frame_locator("iframe")
    frame.locator('.viewer[data-state="shown"]').wait_for(timeout=60_000)
    frame.locator(".intake .file").set_input_files([SAMPLES / "rocket.jpg", SAMPLES / "coffee.jpg"])
    frame.locator(".strip li[data-state=done]").nth(1).wait_for(timeout=60_000)
    assert frame.locator(".word").count() > 0
    tab.close()
