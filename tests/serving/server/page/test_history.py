"""Where a visitor has been: the browser keeps photos and captions, for Back and reload."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.serving.server.conftest import SAMPLES
from tests.serving.server.page.conftest import STORED, Visit, visiting
from tests.serving.server.page.frozen import GRADIO

pytestmark = pytest.mark.slow

PUT = """(store, [key, fields]) => {
  const found = store.get(key);
  found.onsuccess = () => store.put({ ...found.result, ...fields }, key);
}"""
"""Add a photo, or change fields of it."""
KEYS = "(store) => store.getAllKeys()"
DROP_MANY = """(count) => {
  const dataTransfer = new DataTransfer();
  for (let i = 0; i < count; i++) dataTransfer.items.add(new File(["x"], i + ".jpg"));
  window.dispatchEvent(new DragEvent("drop", { dataTransfer, cancelable: true }));
}"""
"""Drop so many files."""
REVOKED = """() => {
  const revoke = URL.revokeObjectURL;
  window.revoked = [];
  URL.revokeObjectURL = (url) => { window.revoked.push(url); revoke.call(URL, url); };
  return document.querySelector(".photo").src;
}"""
"""Note what is revoked from now on; and the photo's address."""


@pytest.fixture
def whole(desk: Any, page_url: str) -> Iterator[Visit]:
    """The page with Gradio's scripts, which change the browser's history too."""
    with visiting(desk, page_url + GRADIO) as visit:
        yield visit


def test_reload_back_and_the_link_to_the_api_keep_photo_and_caption(whole: Visit) -> None:
    visit, tab = whole, whole.tab
    first = visit.words()
    visit.choose(SAMPLES / "rocket.jpg")
    words, asked = visit.words(), visit.posts()
    visit.reload()
    assert visit.words() == words != first
    assert tab.locator("img.photo").evaluate("image => image.naturalWidth") > 100
    assert tab.locator("text=HTTP API").get_attribute("target") == "_blank"
    tab.goto(tab.evaluate("document.querySelector('a[href$=docs]').href"))
    tab.go_back()
    visit.settled()
    assert visit.words() == words
    for go, expected in ((tab.go_back, first), (tab.go_forward, words)):
        with visit.changing():
            go()
        assert visit.words() == expected
    assert visit.posts() == asked  # the browser has it still
    visit.save("[data-picture=sheet]")  # and sends it again where that is needed


def test_reload_and_back_keep_a_photo_that_still_waits(visit: Visit) -> None:
    tab, first = visit.tab, visit.words()
    tab.click("text=Search settings")
    for _ in range(2):  # one sentence is asked for
        with visit.changing():
            tab.locator("input[name=captions]").press("ArrowLeft")
    visit.held()
    visit.choose(SAMPLES / "rocket.jpg", state="waiting")
    tab.wait_for_function("document.querySelector('.photo').src.startsWith('blob:')")
    blob = tab.evaluate(REVOKED)
    tab.go_back()
    visit.settled()
    assert visit.words() == first
    assert blob in tab.evaluate("window.revoked")  # or the browser would hold every photo
    tab.go_forward()
    tab.wait_for_selector('.viewer[data-state="waiting"]')
    tab.unroute("**/api/caption")
    visit.reload()
    assert visit.record()["image"] == "rocket.jpg"
    assert not tab.locator(".others").is_visible()  # one sentence was asked for


def test_settings_of_another_model_are_not_asked_of_this_one(visit: Visit) -> None:
    """As `minimum_trust` of one without trust: every request would be refused."""
    tab = visit.tab
    usual = visit.record()["style"]
    visit.choose(SAMPLES / "rocket.jpg")
    tab.wait_for_function(STORED)
    (key,) = visit.store(KEYS)
    settings = {"captions": 2, "unknown": 0.3, "style": "of another model"}
    visit.store(PUT, [key, {"record": None, "settings": settings}])
    tab.reload()
    tab.wait_for_selector('.viewer:is([data-state="shown"], [data-state="failed"])')
    assert tab.locator(".failure").is_hidden(), visit.failure()
    record = visit.record()
    assert (record["image"], record["style"]) == ("rocket.jpg", usual)
    assert len(record["alternatives"]) == 1  # what it knows is kept


def test_what_is_old_or_too_much_is_deleted(visit: Visit) -> None:
    tab = visit.tab
    now = tab.evaluate("Date.now()")
    old, fresh, removed, worded = (now - 3_600_000 * hours for hours in (169, 167, 2, 1000))
    fields = {"name": "x", "problem": {"title": "x", "detail": "x"}}
    more = {removed: {"removed": removed}, worded: {"text": "A person's words."}}
    for key in (old, fresh, removed, worded):
        visit.store(PUT, [key, {**fields, **more.get(key, {})}])
    visit.reload()
    assert visit.store(KEYS) == [worded, fresh]  # a person's words stay
    assert "until" in tab.inner_text(".kept")
    tab.route("**/api/caption", lambda route: None)
    tab.evaluate("navigator.storage.estimate = async () => ({ quota: 1e6, usage: 0 })")
    tab.evaluate(DROP_MANY, 301)
    tab.wait_for_selector(".reason >> text=3 of 301 photos were not added")
    assert tab.locator(".strip li").count() == 300


def test_where_nothing_is_kept_the_page_asks_before_photos_are_lost(
    desk: Any, page_url: str
) -> None:
    refuses = "IDBFactory.prototype.open = () => { throw new Error('nothing is kept here'); }"
    with visiting(desk, page_url, script=refuses) as visit:
        tab, first = visit.tab, visit.words()
        visit.choose(SAMPLES / "rocket.jpg")
        assert visit.words() != first
        tab.click(".text")  # browsers ask only whoever has touched the page
        tab.reload()
        assert visit.dialogs == ["beforeunload"]
        tab.wait_for_selector('.viewer[data-state="empty"] >> text=no longer stored')
        assert not tab.locator(".sentence").is_visible()
        visit.choose(SAMPLES / "chelsea.jpg")
        assert visit.record()["image"] == "chelsea.jpg"
