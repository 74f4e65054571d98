"""How the page looks: on a phone and on a wide screen, in light and in dark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.serving.server.conftest import SAMPLES
from tests.serving.server.page.conftest import Visit, visiting
from tests.serving.server.page.frozen import GRADIO

pytestmark = pytest.mark.slow


def test_a_phone_needs_no_sideways_scrolling_and_a_finger_hits_everything(phone: Visit) -> None:
    tab = phone.tab
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
    with tab.expect_file_chooser() as camera:  # the camera's own program
        tab.tap(".take")
    assert camera.value.element.get_attribute("capture") == "environment"
    tab.locator(".word").nth(3).tap()
    tab.wait_for_selector(".word:nth-child(4)[aria-pressed=true]")
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
        tab.unroute("**/api/caption")  # delayed requests continue
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
    request: pytest.FixtureRequest, page_url: str, tmp_path: Path,
    where: str, scheme: str, scripts: str,
) -> None:  # fmt: skip
    context, axe, found = request.getfixturevalue(where), Axe(), {}
    with visiting(context, page_url + scripts, color_scheme=scheme) as visit:
        for state in states(visit, tmp_path):
            result = axe.run(visit.tab, options={"resultTypes": ["violations"]})
            assert result.response["passes"]
            if result.violations_count:
                found[state] = result.generate_report()
    assert found == {}
