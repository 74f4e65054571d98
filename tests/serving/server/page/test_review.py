"""Review of many photos: kept texts, remaining photos, and the keyboard."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from tests.serving.server.conftest import SAMPLES
from tests.serving.server.page.conftest import STORED, Visit, make_photos

pytestmark = pytest.mark.slow

LONG = "an elderly woman wearing sunglasses and another person standing " * 2 + "near the water"
ANSWER = {"caption": "a dog", "words": [], "alternatives": []}
LOGIN = "<!doctype html><title>Sign in</title><form><input name=user></form>\n"


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    """A cup that is no doubt one, a rocket unlike all photos, and a file that is no photo."""
    (tmp_path / "notes.jpg").write_bytes(b"no photo")
    return [SAMPLES / "coffee.jpg", SAMPLES / "rocket.jpg", tmp_path / "notes.jpg"]


def current(visit: Visit) -> str:
    return str(visit.tab.locator(".strip [aria-current=true]").get_attribute("title"))


def test_a_reload_in_the_middle_of_a_drop_loses_no_photo(visit: Visit, tmp_path: Path) -> None:
    tab, held = visit.tab, visit.held()  # the server has answered none of them
    tab.set_input_files(".intake .file", make_photos(tmp_path, 6))
    visit.wait_until(lambda: visit.store("(store) => store.count()") == 6 and len(held) == 4)
    tab.wait_for_timeout(100)
    assert len(held) == 4  # at a time
    tab.wait_for_function(STORED)  # or the page asks before it is left
    tab.unroute("**/api/caption")
    tab.reload()
    tab.wait_for_selector(".strip li:nth-child(6)")
    assert len(visit.strip()) == 6
    assert not tab.locator(".strip [data-state=failed]").count()


def test_doubt_is_in_the_list_and_in_every_download(visit: Visit, photos: list[Path]) -> None:
    tab = visit.tab
    visit.choose(*photos)
    cup, rocket, _ = visit.strip()
    assert cup.endswith(".") and rocket.startswith("Perhaps: ")
    marks = tab.locator(".strip .marks").all_inner_texts()
    assert "unfamiliar" in marks[1] and marks[2] == ""
    tab.locator(".strip li button").nth(1).click()
    tab.wait_for_selector(".viewer[data-unfamiliar]")
    assert tab.input_value(".text") == ""
    assert tab.get_attribute(".text", "placeholder") == rocket
    rows = list(csv.DictReader(visit.taken_home("csv").lstrip("\ufeff").splitlines()))
    # An empty alt text would mean that the photo is decorative.
    assert rows[1]["alt"] == rocket.removeprefix("Perhaps: ")
    assert "unfamiliar" in rows[1]["marks"].split(", ") and rows[1]["reviewed"] == "false"
    tab.locator(".text").press_sequentially("x")
    assert tab.locator(".strip [data-reviewed]").count() == 1
    tab.press(".text", "Backspace")  # nobody has accepted a text
    assert not tab.locator(".strip [data-reviewed]").count()
    tab.click(".use")
    assert tab.input_value(".text") == rocket.removeprefix("Perhaps: ")
    rows = list(csv.DictReader(visit.taken_home("csv").lstrip("\ufeff").splitlines()))
    assert rows[1]["alt"] == rocket.removeprefix("Perhaps: ") and rows[1]["marks"] == ""


def test_the_keyboard_is_enough_to_review(visit: Visit, photos: list[Path]) -> None:
    tab = visit.tab
    visit.choose(*photos)
    visit.strip()
    assert tab.inner_text(".review") == "To review 3"
    tab.keyboard.press("J")  # with caps lock
    assert current(visit) == "rocket.jpg"
    tab.keyboard.press("ArrowDown")  # the focus is in the list
    assert current(visit) == "notes.jpg"
    tab.keyboard.press("ArrowDown")  # there is no next photo
    assert current(visit) == "notes.jpg"
    for key in ("Control+k", "Alt+k", "Meta+k", "Control+ArrowUp", "Alt+Delete"):
        tab.keyboard.press(key)  # the browser's
    assert current(visit) == "notes.jpg" and tab.locator(".strip li").count() == 3
    tab.keyboard.press("k")
    tab.keyboard.press("ArrowUp")
    assert current(visit) == "coffee.jpg"
    visit.settled()
    tab.focus(".text")
    tab.keyboard.type("jk ")  # text, and no way through the photos
    tab.keyboard.press("Shift+Enter")  # a line break
    assert current(visit) == "coffee.jpg" and "\n" in tab.input_value(".text")
    tab.locator(".text").dispatch_event("keydown", {"key": "Enter", "isComposing": True})
    tab.locator(".text").dispatch_event("keydown", {"key": "Enter", "keyCode": 229})  # in Safari
    assert current(visit) == "coffee.jpg"  # an input method has used the key
    visit.forget()
    tab.keyboard.press("Enter")
    assert current(visit) == "rocket.jpg"
    visit.settled()  # the text is hidden until the photo is shown
    tab.wait_for_function("document.activeElement.matches('.text')")
    tab.keyboard.type("A rocket on its pad.")
    tab.keyboard.press("Enter")
    assert current(visit) == "notes.jpg"
    assert tab.inner_text(".review") == "To review 1"
    tab.click(".review")
    assert tab.locator(".strip li:visible").count() == 1
    tab.click(".dismiss")
    assert tab.locator(".strip li").count() == 2 and "notes.jpg" in tab.inner_text(".removed")
    tab.click(".removed button")
    assert tab.locator(".strip li").count() == 3 and current(visit) == "notes.jpg"
    tab.keyboard.press("Delete")
    visit.reload()
    assert len(visit.strip()) == 2
    tab.locator(".strip button[title='rocket.jpg']").click()
    assert tab.input_value(".text") == "A rocket on its pad."


def test_a_photo_that_was_removed_while_it_waited_is_captioned_after_undo(visit: Visit) -> None:
    tab = visit.tab
    tab.route("**/api/caption", lambda _: None)  # no answer
    tab.set_input_files(".intake .file", [SAMPLES / "rocket.jpg", SAMPLES / "chelsea.jpg"])
    tab.wait_for_selector(".strip [data-state=waiting]")
    removed = current(visit)
    tab.locator(".strip [aria-current=true]").press("Delete")
    tab.unroute("**/api/caption")
    tab.click(".removed button")
    visit.settled()
    assert current(visit) == removed and visit.words()
    visit.strip()
    tab.fill(".text", "Mine.")
    tab.locator(".strip [aria-current=true]").press("Delete")
    tab.click(".removed button")
    assert tab.input_value(".text") == "Mine."
    # Nor does one come back that waited when the list was emptied, nor a text.
    held = visit.held()
    visit.choose(SAMPLES / "camera.jpg", state="waiting")
    tab.locator(".strip li button").first.click()
    tab.fill(".text", "Mine.")
    visit.wait_until(lambda: held)
    tab.click(".clear")
    tab.click(".clear")
    tab.wait_for_selector('.viewer[data-state="empty"]')
    held[0].fulfill(body=f"{json.dumps({'records': [ANSWER]})}\n")
    tab.wait_for_timeout(200)
    visit.reload()
    assert not tab.locator(".strip").is_visible()


def test_an_answer_of_somebody_else_is_an_error_in_its_photo_s_place(visit: Visit) -> None:
    """As of a login proxy, which answers everything with 200 and its form."""
    for kind, body in {"text/html": LOGIN, "application/json": "{}\n"}.items():
        answer = {"content_type": kind, "body": body}
        visit.tab.route("**/api/caption", lambda route, _, answer=answer: route.fulfill(**answer))
        visit.choose(SAMPLES / "rocket.jpg", state="failed")
        assert "Unexpected answer" in visit.failure()
        visit.tab.unroute("**/api/caption")
    visit.tab.click(".retry")
    visit.settled()


def test_photo_caption_and_alt_text_are_in_view_at_one_place(visit: Visit, tmp_path: Path) -> None:
    tab = visit.tab
    tab.set_viewport_size({"width": 1366, "height": 768})
    with Image.open(SAMPLES / "chelsea.jpg") as photo:
        photo.resize((200, 260)).save(tmp_path / "portrait.jpg")
        photo.resize((128, 96)).save(tmp_path / "small.jpg")
    doubt = {"probability": 0.5, "trust": 0.3, "doubtful": True}
    words = [{"word": word, **doubt} for word in LONG.split()]
    known = {"caption": LONG, "trust": 0.01, "unfamiliar": True}
    visit.answer(SAMPLES / "rocket.jpg", {**known, "words": words, "alternatives": []})
    places = set()
    for name in ("", "portrait.jpg", "small.jpg"):
        if name:
            visit.choose(tmp_path / name)
        for part in (".photo", ".sentence", ".doubts", ".text", ".copy", ".decorative"):
            box = tab.locator(part).bounding_box()
            assert box["y"] >= 0 and box["y"] + box["height"] <= 768, (name, part)
        places |= {tab.locator(".text").bounding_box()["y"]} if name else set()
    assert len(places) == 1
    for length, is_long in ((125, False), (126, True)):
        tab.fill(".text", "x" * length)
        assert bool(tab.locator(".length.long").count()) == is_long
        assert str(length) in tab.inner_text(".length")


def test_the_list_is_one_stop_and_enter_and_escape_go_to_the_text_and_back(
    visit: Visit, photos: list[Path]
) -> None:
    tab = visit.tab
    visit.choose(*photos)
    visit.strip()
    assert tab.locator(".strip li button[tabindex='0']").count() == 1
    tab.locator(".strip [aria-current=true]").press("ArrowDown")
    assert tab.locator(".strip li button[tabindex='0']").get_attribute("title") == "rocket.jpg"
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.activeElement.matches('.text')")
    tab.keyboard.press("Escape")
    assert tab.evaluate("document.activeElement.title") == "rocket.jpg"
    tab.keyboard.press("d")
    assert tab.is_checked(".decorative")
    tab.keyboard.press("p")
    assert not tab.locator(".heat").is_visible()
    tab.keyboard.press("p")
    assert tab.locator(".heat").is_visible()
    tab.keyboard.press("?")
    assert tab.locator(".keys").is_visible()
    tab.keyboard.press("d")  # not while the keys are shown
    assert tab.is_checked(".decorative")
    tab.keyboard.press("Escape")
    tab.locator(".keys").wait_for(state="hidden")
    tab.keyboard.press("k")
    assert tab.locator(".strip [data-reviewed]").count() == 1  # walking is no review


def test_a_text_may_be_written_before_the_caption_is_there(visit: Visit) -> None:
    tab, held = visit.tab, visit.held()
    visit.choose(SAMPLES / "rocket.jpg", state="waiting")
    tab.locator(".strip li button").press("Enter")
    tab.keyboard.type("x")
    tab.keyboard.press("Backspace")
    assert tab.locator(".strip [data-mark]").get_attribute("data-mark") == ""
    tab.keyboard.type("A rocket at ")
    visit.wait_until(lambda: held)
    held[0].continue_()
    visit.settled()
    tab.keyboard.type("night.")
    assert tab.input_value(".text") == "A rocket at night."
    assert visit.strip() == ["A rocket at night."]


def test_worst_captions_come_first_on_demand(visit: Visit, tmp_path: Path) -> None:
    tab = visit.tab
    states = ("likely right", "likely wrong", "check")
    for name, trust in zip("abc", (0.9, 0.001, 0.35), strict=True):
        shutil.copy(SAMPLES / "coffee.jpg", tmp_path / f"{name}.jpg")
        words = [{"word": "cup", "probability": 0.5, "trust": trust}]
        record = {"caption": "a cup", "trust": trust, "words": words, "alternatives": []}
        visit.answer(tmp_path / f"{name}.jpg", record)
    assert tuple(tab.locator(".strip .marks").all_inner_texts()) == states
    tab.click(".worst")
    assert tab.locator(".strip .marks").all_inner_texts() == [*states[1:], states[0]]
    tab.locator(".strip li button").first.click()
    tab.press(".text", "Enter")  # the next in this order
    assert current(visit) == "c.jpg"
