"""Where a visitor has been: reload, Back and Forward, and what the browser keeps for them."""

from __future__ import annotations

from typing import Any

from tests.serving.server.conftest import SAMPLES
from tests.serving.server.page.conftest import Visit

KEPT = """async () => {
  const asked = indexedDB.open("captioner");
  const database = await new Promise((done) => { asked.onsuccess = () => done(asked.result); });
  const keys = database.transaction("waiting").objectStore("waiting").getAllKeys();
  const kept = await new Promise((done) => { keys.onsuccess = () => done(keys.result); });
  database.close();
  return kept;
}"""
"""The keys of the photos that the browser keeps."""
LEFT = """async (ages) => {
  const asked = indexedDB.open("captioner", 1);
  asked.onupgradeneeded = () => asked.result.createObjectStore("waiting");
  const database = await new Promise((done) => { asked.onsuccess = () => done(asked.result); });
  const transaction = database.transaction("waiting", "readwrite");
  const keys = ages.map((minutes) => Date.now() - 60000 * minutes);
  for (const key of keys) transaction.objectStore("waiting").put(new Blob(["photo"]), key);
  await new Promise((done) => { transaction.oncomplete = done; });
  database.close();
  return keys;
}"""
"""Leave photos of so many minutes ago, as tabs do that are closed while they wait."""
REVOKED = """() => {
  const revoke = URL.revokeObjectURL;
  window.revoked = [];
  URL.revokeObjectURL = (url) => { window.revoked.push(url); revoke.call(URL, url); };
  return document.querySelector(".photo").src;
}"""
"""Note what is revoked from now on; and the photo's address."""
SLOW = """const get = IDBObjectStore.prototype.get;
IDBObjectStore.prototype.get = function (key) {
  const again = () => { if (!window.released) get.call(this, key).onsuccess = again; };
  again();
  return get.call(this, key);
};"""
"""A browser that takes its time to find the photo that waits: until `released`."""


def test_reload_back_and_the_link_to_the_api_keep_photo_and_caption(visit: Visit) -> None:
    tab = visit.tab
    first = visit.words()
    visit.choose(SAMPLES / "rocket.jpg")
    words = visit.words()
    tab.reload()
    visit.settled()
    assert visit.words() == words != first
    with visit.context.expect_page() as opened:
        tab.click("text=HTTP API")
    assert opened.value.url.endswith("/docs") and visit.words() == words
    opened.value.close()
    tab.goto(server_of(tab) + "/docs")
    tab.go_back()
    visit.settled()
    assert visit.words() == words
    assert tab.locator("img.photo").evaluate("image => image.naturalWidth") > 100
    visit.forget()
    tab.go_back()
    visit.settled()
    assert visit.words() == first
    visit.forget()
    tab.go_forward()
    visit.settled()
    assert visit.words() == words


def test_reload_and_back_keep_a_photo_that_still_waits(visit: Visit) -> None:
    tab, held = visit.tab, []
    first = visit.words()
    tab.route("**/page/captions", lambda route: held.append(route))
    tab.click("text=Search settings")
    for _ in range(2):  # one sentence is asked for, and no answer comes
        tab.locator("input[name=captions]").press("ArrowLeft")
    visit.choose(SAMPLES / "rocket.jpg", state="waiting")
    tab.wait_for_function("document.querySelector('.photo').src.startsWith('blob:')")
    blob = tab.evaluate(REVOKED)
    tab.go_back()
    visit.settled()
    assert visit.words() == first
    assert tab.evaluate("window.revoked") == [blob]  # or the browser would hold every photo
    tab.go_forward()
    tab.wait_for_selector('.viewer[data-state="waiting"]')
    tab.wait_for_function("document.querySelector('.photo').src.startsWith('blob:')")
    tab.unroute("**/page/captions")
    tab.reload()
    visit.settled()
    assert tab.locator(".json").get_attribute("download") == "rocket.json"
    assert not tab.locator(".others").is_visible()  # one sentence was asked for
    assert tab.evaluate(KEPT) == []  # the browser keeps it no longer than it waits
    tab.route("**/page/captions", lambda route: held.append(route))
    visit.forget()
    tab.click("[data-sample=chelsea]")
    tab.wait_for_selector('.viewer[data-state="waiting"]')
    tab.unroute("**/page/captions")
    tab.reload()
    visit.settled()
    assert tab.locator(".json").get_attribute("download") == "chelsea.json"


def test_what_a_closed_tab_left_is_deleted_at_the_next_visit(visit: Visit) -> None:
    _, fresh = visit.tab.evaluate(LEFT, [11, 1])
    assert len(visit.tab.evaluate(KEPT)) == 2
    visit.tab.reload()
    visit.settled()
    assert visit.tab.evaluate(KEPT) == [fresh]  # another tab may wait for it still


def test_settings_that_change_while_the_photo_is_looked_for_go_with_it(visit: Visit) -> None:
    tab, held = visit.tab, []
    tab.click("text=Search settings")
    tab.route("**/page/captions", lambda route: held.append(route))
    visit.choose(SAMPLES / "rocket.jpg", state="waiting")
    tab.wait_for_function(f"({KEPT})().then((keys) => keys.length)")  # or there is none to look for
    tab.unroute("**/page/captions")
    tab.add_init_script(SLOW)
    tab.reload()
    tab.wait_for_selector('.viewer[data-state="waiting"]')
    asked = len(visit.requests)
    tab.click("text=Search settings")
    tab.locator("input[name=captions]").press("ArrowRight")
    assert tab.locator(".viewer").get_attribute("data-state") == "waiting"
    tab.evaluate("window.released = true")
    visit.settled()
    assert tab.locator(".json").get_attribute("download") == "rocket.json"
    assert tab.locator(".sentences li").count() == 4
    sent = [url for url in visit.requests[asked:] if url.endswith("/page/captions")]
    assert len(sent) == 1


def server_of(tab: Any) -> str:
    return tab.evaluate("location.origin")
