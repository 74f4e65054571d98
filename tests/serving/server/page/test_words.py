"""The caption, word by word: pointed at, walked through, explained, taken home."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageChops, ImageStat

from captioner.predictor import Captioner
from tests.serving.server.conftest import SAMPLES, Server
from tests.serving.server.page.conftest import DESK, Visit, visiting


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


def test_a_picture_unlike_all_photos_comes_with_a_warning(visit: Visit, tmp_path: Path) -> None:
    warning = visit.tab.locator(".unlike")
    assert not warning.is_visible()  # of the sample
    squares = bytes(255 * ((at // 16 + at) % 2) for at in range(256))
    board = Image.frombytes("L", (16, 16), squares).resize((240, 240), Image.Resampling.NEAREST)
    board.save(tmp_path / "board.png")
    visit.choose(tmp_path / "board.png")
    assert warning.is_visible() and "unlike the photos" in warning.inner_text()
    assert "unlike the photos" in visit.tab.inner_text('[role="status"]')
    visit.choose(SAMPLES / "coffee.jpg")
    assert not warning.is_visible()
    assert "unlike" not in visit.tab.inner_text('[role="status"]')


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
            tab.evaluate(
                "(x => x.className + x.dataset.sample + x.dataset.term + x.tagName)"
                "(document.activeElement)"
            )
        )
    for name in (
        "play", "strength", "colors", "smooth", "copy", "json", "coffee", "choose", "take", "paste",
        "sure", "legend", "average", "SUMMARY",
    ):  # fmt: skip
        assert any(name in item for item in reached), name


def test_a_screen_reader_hears_what_is_shown(visit: Visit) -> None:
    tab = visit.tab
    label = tab.locator(".word").nth(0).get_attribute("aria-label")
    assert re.fullmatch(r"\w+, \d+ % sure, looked (at|in|nowhere).+", label)
    assert tab.locator('.viewer [role="status"]').inner_text().startswith("Caption: ")
    assert tab.locator(".sentence").get_attribute("role") == "toolbar"
    assert tab.locator("img.photo").get_attribute("alt") == " ".join(visit.words())
    unnamed = tab.evaluate(
        "[...document.querySelectorAll('#columns :is(button, a, input, select)')]"
        ".filter(x => !(x.ariaLabel || x.textContent.trim() || x.labels?.length)).length"
    )
    assert unnamed == 0


OUTLINED = """() => [...document.querySelectorAll('.word')].filter(word => {
  const style = getComputedStyle(word), paper = getComputedStyle(document.body).backgroundColor;
  const edge = style.borderTopColor;
  return ![paper, 'rgba(0, 0, 0, 0)'].includes(edge) || style.outlineStyle !== 'none';
}).map(word => word.textContent)"""


@pytest.mark.parametrize("forced", ["none", "active"])
def test_one_word_is_outlined_at_a_time(visit: Visit, forced: str) -> None:
    tab, words = visit.tab, visit.words()
    tab.emulate_media(forced_colors=forced)
    assert len(tab.evaluate(OUTLINED)) == 1  # the first that is shown
    tab.locator(".word").nth(3).click()
    tab.locator(".word").nth(5).hover()
    assert tab.evaluate(OUTLINED) == [words[5]]
    tab.mouse.move(5, 5)
    assert tab.evaluate(OUTLINED) == [words[3]]
    tab.keyboard.press("ArrowRight")
    assert tab.evaluate(OUTLINED) == [words[4]]
    tab.locator(".word").nth(6).hover()
    assert tab.evaluate(OUTLINED) == [words[6]]


def test_a_touch_says_what_a_number_means(visit: Visit) -> None:
    tab = visit.tab
    for name, said in {
        "sure": "likely", "looked": "attention", "drew": "seen there", "heat": "even share",
        "average": "on average",
    }.items():  # fmt: skip
        term = tab.locator(f"[data-term={name}]").first
        term.click()
        (shown,) = [text for text in tab.locator(".meaning").all_inner_texts() if text]
        assert said in shown
        assert term.get_attribute("aria-expanded") == "true"
    tab.locator("[data-term=average]").first.click()
    assert not any(tab.locator(".meaning").all_inner_texts())


def test_an_alternative_has_words_attention_and_alt_text(clipboard: None, visit: Visit) -> None:
    tab, before, heat = visit.tab, visit.words(), visit.heat()
    second = tab.locator(".sentences li button:first-child").nth(1)
    said = second.inner_text()
    visit.forget()
    second.click()
    visit.settled()
    assert " ".join(visit.words()) == said != " ".join(before)
    assert second.get_attribute("aria-pressed") == "true"
    assert tab.evaluate("document.activeElement.textContent") == said  # the focus stays
    tab.locator(".word").last.hover()
    assert visit.heat() != heat and "sure" in tab.inner_text(".about")
    tab.click(".copy")
    tab.wait_for_function("document.querySelector('.about').textContent.startsWith('Copied')")
    assert tab.evaluate("navigator.clipboard.readText()") == said.capitalize() + "."
    with tab.expect_download() as saved:
        tab.click(".json")
    record = json.loads(Path(saved.value.path()).read_text())
    assert record["caption"] == said and record["alternatives"][0]["caption"] == " ".join(before)
    tab.reload()
    visit.settled()
    assert " ".join(visit.words()) == said


def test_the_sentence_that_was_chosen_last_is_shown(visit: Visit) -> None:
    tab, held = visit.tab, []
    first, second, third = tab.locator(".sentences li button:first-child").all()
    late = re.compile(r"/page/captions/[^/]+\?sentence=1$")
    tab.route(late, lambda route: held.append(route))
    for last in (third, first):  # the latter is there already
        second.click()
        while not held:
            tab.wait_for_timeout(10)
        said = last.inner_text()
        last.click()
        tab.wait_for_function("said => document.querySelector('.photo').alt === said", arg=said)
        with tab.expect_response(late):
            held.pop().continue_()
        tab.wait_for_timeout(200)
        assert " ".join(visit.words()) == said
        visit.forget()
        if last is third:
            first.click()
            visit.settled()


@pytest.fixture
def clocked(browser: Any, server: Server) -> Iterator[Visit]:
    """A visitor whose clock may be set: it is that of all tabs, which have a store of their own."""
    context = browser.new_context(**DESK)
    with visiting(context, server) as made:
        yield made
    context.close()


def test_play_runs_through_the_words(clocked: Visit) -> None:
    visit = clocked
    tab, pinned = visit.tab, visit.tab.locator(".heat").get_attribute("data-word")
    tab.clock.install(time=0)
    tab.clock.pause_at(1)  # or a slow machine lets a word pass between two lines
    tab.click(".play")
    assert tab.inner_text(".play") == "Pause"
    for position, word in enumerate(visit.words()):
        assert tab.locator(".heat").get_attribute("data-word") == str(position)
        assert tab.locator(".word.current").inner_text() == word
        tab.clock.run_for(850)
    assert tab.inner_text(".play") == "Play"
    assert tab.locator(".heat").get_attribute("data-word") == pinned


@pytest.mark.parametrize(
    ("colors", "smooth"), [("inferno", True), ("viridis", False), ("spotlight", True)]
)
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


def test_what_is_saved_is_what_was_seen(visit: Visit, tmp_path: Path) -> None:
    tab = visit.tab
    visit.forget()
    tab.click("[data-sample=rocket]")
    visit.settled()
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


def test_the_alt_text_is_copied_as_a_sentence(clipboard: None, visit: Visit) -> None:
    visit.tab.click(".copy")
    visit.tab.wait_for_function("document.querySelector('.about').textContent.startsWith('Copied')")
    text = visit.tab.evaluate("navigator.clipboard.readText()")
    assert text == " ".join(visit.words()).capitalize() + "."
