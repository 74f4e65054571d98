"""The page in a real browser."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from PIL import Image, ImageChops, ImageStat

from captioner.predictor import Captioner
from tests.serving.server.conftest import SAMPLES, Server, serve

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

QUIET = ["--no-sandbox", "--disable-background-networking", "--disable-component-update"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the bundled checkpoint: the tiny one looks everywhere, and shows no heat."""
    with serve(tmp_path_factory.mktemp("page")) as running:
        yield running


@pytest.fixture(scope="module")
def captioner() -> Captioner:
    return Captioner.from_pretrained()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield running
        running.close()


class Visit:
    """One visitor's tab, with what it asked for and what went wrong in it."""

    def __init__(self, browser: Any, server: Server, **options: Any) -> None:
        self.context = browser.new_context(
            **{"viewport": {"width": 1280, "height": 900}, **options}
        )
        self.tab = self.context.new_page()
        self.hosts: set[str | None] = set()
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.tab.on("request", self._note)
        self.tab.on("pageerror", lambda error: self.errors.append(str(error)))
        self.tab.on("console", lambda said: said.type == "error" and self.errors.append(said.text))
        self.tab.goto(server.url)
        self.tab.wait_for_selector('.viewer[data-state="shown"]')
        self.settled()

    def _note(self, request: Any) -> None:
        self.requests.append(request.url)
        if not request.url.startswith(("data:", "blob:")):
            self.hosts.add(urlsplit(request.url).hostname)

    def settled(self) -> None:
        """Wait until the first word's heat is on the photo."""
        self.tab.wait_for_function("+(document.querySelector('.heat').dataset.word ?? -1) >= 0")

    def drop(self, path: Path, *, state: str = "shown") -> None:
        self.tab.evaluate(
            "document.querySelector('.viewer').dataset.state = 'waiting';"
            "document.querySelector('.heat').dataset.word = -1"
        )
        self.tab.set_input_files('#photo input[type="file"]', path)
        self.tab.wait_for_selector(f'.viewer[data-state="{state}"]')
        if state == "shown":
            self.settled()

    def heat(self) -> str:
        return self.tab.evaluate("document.querySelector('.heat').toDataURL()")

    def words(self) -> list[str]:
        return self.tab.locator(".word").all_inner_texts()


@pytest.fixture
def visit(browser: Any, server: Server) -> Iterator[Visit]:
    made = Visit(browser, server)
    yield made
    made.context.close()
    assert made.errors == []
    assert made.hosts == {"127.0.0.1"}


def test_a_sample_is_there_before_anybody_has_done_anything(visit: Visit) -> None:
    assert len(visit.words()) > 1
    assert visit.tab.locator("img.photo").evaluate("image => image.naturalWidth") > 100
    assert "never" not in visit.tab.inner_text(".limits") and visit.tab.inner_text(".limits")
    assert visit.tab.locator(".alternatives li").count() == 2


def test_a_photo_turned_by_exif_is_shown_as_the_viewer_sees_it(
    visit: Visit, tmp_path: Path, captioner: Captioner
) -> None:
    photo = Image.open(SAMPLES / "coffee.jpg").rotate(-90, expand=True)
    exif = Image.Exif()
    exif[0x0112] = 8
    photo.save(tmp_path / "turned.jpg", exif=exif, quality=95)
    visit.drop(tmp_path / "turned.jpg")
    width, height = visit.tab.locator("img.photo").evaluate(
        "i => [i.naturalWidth, i.naturalHeight]"
    )
    assert width > height
    expected = captioner.caption(tmp_path / "turned.jpg")
    assert visit.words() == [word.text for word in expected.words]


def test_hover_and_focus_show_a_word_without_asking_the_server(visit: Visit) -> None:
    asked = len(visit.requests)
    visit.tab.locator(".word").nth(1).hover()
    first = visit.heat()
    assert visit.tab.locator(".heat").get_attribute("data-word") == "1"
    visit.tab.locator(".word").nth(2).hover()
    assert visit.heat() != first
    assert "sure" in visit.tab.inner_text(".about")
    visit.tab.locator(".word").nth(1).focus()
    assert visit.heat() == first
    assert [url for url in visit.requests[asked:] if not url.startswith("data:")] == []


def test_the_keyboard_alone_is_enough(visit: Visit) -> None:
    tab = visit.tab
    tab.locator(".word").nth(0).focus()
    tab.keyboard.press("ArrowRight")
    assert tab.evaluate("document.activeElement.textContent") == visit.words()[1]
    tab.keyboard.press("End")
    tab.keyboard.press("ArrowRight")  # round to the first
    assert tab.locator(".heat").get_attribute("data-word") == "0"
    tab.keyboard.press("Enter")
    assert tab.locator(".word").nth(0).get_attribute("aria-pressed") == "true"
    tab.keyboard.press("Escape")
    assert tab.locator(".heat").get_attribute("data-word") == "-1"
    reached = set()
    for _ in range(60):
        tab.keyboard.press("Tab")
        reached.add(
            tab.evaluate("document.activeElement.className + document.activeElement.dataset.sample")
        )
    for name in ("play", "strength", "colors", "smooth", "copy", "json", "coffee"):
        assert any(name in item for item in reached), name


def test_a_screen_reader_hears_what_is_shown(visit: Visit) -> None:
    tab = visit.tab
    label = tab.locator(".word").nth(0).get_attribute("aria-label")
    assert re.fullmatch(r"\w+, \d+ % sure, looked (at|in|nowhere).+", label)
    assert tab.locator('.viewer [role="status"]').inner_text().startswith("Caption: ")
    assert tab.locator(".sentence").get_attribute("role") == "toolbar"
    assert tab.locator("img.photo").get_attribute("alt") == " ".join(visit.words())
    unnamed = tab.evaluate(
        "[...document.querySelectorAll('.viewer :is(button, a, input, select), .samples button')]"
        ".filter(x => !(x.ariaLabel || x.textContent.trim() || x.labels?.length)).length"
    )
    assert unnamed == 0


def test_play_runs_through_the_words(visit: Visit) -> None:
    visit.tab.evaluate(
        "window.seen = []; new MutationObserver(() => seen.push(document.querySelector('.heat')"
        ".dataset.word)).observe(document.querySelector('.heat'), {attributes: true})"
    )
    visit.tab.click(".play")
    assert visit.tab.inner_text(".play") == "Pause"
    visit.tab.wait_for_function("document.querySelector('.play').textContent.trim() === 'Play'")
    seen = [int(word) for word in visit.tab.evaluate("[...new Set(seen)]")]
    assert set(range(len(visit.words()))) <= set(seen)


@pytest.mark.parametrize("colors", ["inferno", "viridis", "spotlight"])
@pytest.mark.parametrize("smooth", [True, False])
def test_the_overlay_is_the_library_s(
    visit: Visit, captioner: Captioner, colors: str, smooth: bool
) -> None:
    tab = visit.tab
    tab.select_option(".colors", colors)
    tab.set_checked(".smooth", smooth)
    tab.locator(".word").nth(3).click()
    shown = tab.evaluate(
        """() => {
          const heat = document.querySelector('.heat'), both = document.createElement('canvas');
          Object.assign(both, { width: heat.width, height: heat.height });
          const context = both.getContext('2d');
          context.drawImage(document.querySelector('.photo'), 0, 0, heat.width, heat.height);
          context.drawImage(heat, 0, 0);
          return both.toDataURL();
        }"""
    )
    picture = Image.open(io.BytesIO(base64.b64decode(shown.split(",")[1])))
    caption = captioner.caption(SAMPLES / "coffee.jpg")
    expected = caption.overlay(4, smooth=smooth, colors=colors)
    expected = expected.resize(picture.size, Image.Resampling.LANCZOS)
    difference = ImageChops.difference(picture.convert("RGB"), expected)
    assert max(ImageStat.Stat(difference).mean) < 3
    plain = caption.open_photo().resize(picture.size, Image.Resampling.LANCZOS)
    changed = ImageChops.difference(picture.convert("RGB"), plain)
    assert max(ImageStat.Stat(changed).mean) > 3  # or there would be nothing to compare


def test_beam_and_sentences_change_the_caption(visit: Visit) -> None:
    tab = visit.tab
    tab.click("text=Search settings")
    slider = tab.locator('input[type="range"][aria-label*="Sentences"]')
    for _ in range(20):
        if slider.input_value() == "4":
            break
        slider.fill("3")  # Gradio may fill the accordion after it has opened it
        slider.press("ArrowRight")
        tab.wait_for_timeout(200)
    tab.wait_for_function("document.querySelectorAll('.alternatives li').length === 3")


def test_what_is_saved_is_what_was_seen(visit: Visit, tmp_path: Path) -> None:
    tab = visit.tab
    tab.click("[data-sample=rocket]")
    tab.wait_for_function("document.querySelector('[data-picture]').download.startsWith('rocket')")
    sizes = {}
    for picture in ("overlay.png", "sheet.png", "words.webp"):
        with tab.expect_download() as saved:
            tab.click(f'[data-picture="{picture}"]')
        saved.value.save_as(tmp_path / picture)
        assert saved.value.suggested_filename.startswith("rocket-")
        with Image.open(tmp_path / picture) as image:
            sizes[picture] = image.size, getattr(image, "n_frames", 1)
    with Image.open(SAMPLES / "rocket.jpg") as photo:
        assert sizes["overlay.png"][0] == photo.size
    assert sizes["words.webp"][1] == len(visit.words()) + 2
    with tab.expect_download() as saved:
        tab.click(".json")
    saved.value.save_as(tmp_path / "record.json")
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["caption"] == " ".join(visit.words()) and record["image"] == "rocket"


def test_the_alt_text_is_copied_as_a_sentence(browser: Any, server: Server) -> None:
    visit = Visit(browser, server, permissions=["clipboard-read", "clipboard-write"])
    visit.tab.click(".copy")
    visit.tab.wait_for_function("document.querySelector('.about').textContent.startsWith('Copied')")
    text = visit.tab.evaluate("navigator.clipboard.readText()")
    assert text == " ".join(visit.words()).capitalize() + "."
    visit.context.close()


def test_a_photo_may_be_dropped_or_pasted_anywhere(visit: Visit) -> None:
    script = """async ([kind, name]) => {
      const blob = await (await fetch(document.querySelector('.samples img').src)).blob();
      const data = new DataTransfer();
      data.items.add(new File([blob], name, { type: 'image/jpeg' }));
      const event = kind === 'paste' ? new ClipboardEvent('paste', { clipboardData: data })
        : new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true });
      document.querySelector('.viewer').dispatchEvent(event);
      if (kind === 'paste') window.dispatchEvent(event);
      return event.defaultPrevented;
    }"""
    for kind in ("drop", "paste"):  # the second replaces the first
        visit.tab.evaluate(script, [kind, f"{kind}ped.jpg"])
        visit.tab.wait_for_function(
            f"document.querySelector('.json').download === '{kind}ped.json'"
        )


def test_a_bad_photo_is_told_in_words_and_the_next_one_works(visit: Visit, tmp_path: Path) -> None:
    data = (SAMPLES / "rocket.jpg").read_bytes()
    (tmp_path / "cut.jpg").write_bytes(data[: len(data) // 3])
    visit.drop(tmp_path / "cut.jpg", state="failed")
    said = visit.tab.inner_text('.failure[role="alert"]')
    assert "cut.jpg is cut off" in said and "/" not in said
    visit.tab.click('#photo button[aria-label="Remove Image"]')
    visit.tab.wait_for_selector('.viewer[data-state="empty"]')
    visit.drop(SAMPLES / "chelsea.jpg")
    assert visit.words()
    visit.errors.clear()  # the browser's own, about the preview of half a photo


def test_a_phone_needs_no_sideways_scrolling(browser: Any, server: Server) -> None:
    visit = Visit(
        browser,
        server,
        viewport={"width": 360, "height": 740},
        device_scale_factor=3,
        is_mobile=True,
        has_touch=True,
    )
    tab = visit.tab
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
    tab.locator(".word").nth(3).tap()
    assert tab.locator(".heat").get_attribute("data-word") == "3"
    width, shown = tab.locator(".heat").evaluate("c => [c.width, c.clientWidth]")
    assert width == pytest.approx(3 * shown, abs=3)  # sharp on a high-density screen
    small = tab.evaluate(
        "[...document.querySelectorAll('.word, .viewer .control')]"
        ".filter(x => x.getBoundingClientRect().height < 44).length"
    )
    assert small == 0
    visit.context.close()


def luminance(color: str) -> float:
    channels = [int(float(value)) / 255 for value in re.findall(r"[\d.]+", color)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_light_and_dark(browser: Any, server: Server, scheme: str) -> None:
    """WCAG 2.1, 1.4.3: a contrast of at least 4.5."""
    visit = Visit(browser, server, color_scheme=scheme)
    background = visit.tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (luminance(background) > 0.5) == (scheme == "light")
    for part in ("#header p", "#header span", ".about", ".limits", ".alternatives li", ".word"):
        color = visit.tab.locator(part).first.evaluate("x => getComputedStyle(x).color")
        low, high = sorted((luminance(color), luminance(background)))
        assert (high + 0.05) / (low + 0.05) >= 4.5, part
    visit.context.close()
