"""Several tabs, many photos and earlier downloads: no text is lost."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.launcher import Run
from tests.serving.server.conftest import SAMPLES
from tests.serving.server.page.conftest import STORED, Visit, make_photos

pytestmark = pytest.mark.slow

WORDS = [{"word": word, "probability": 0.5, "trust": 0.6} for word in ("a", "dog")]
RECORD = {
    "caption": "a dog", "score": -1.0, "trust": 0.6, "words": WORDS, "alternatives": [],
    "model": {"name": "bundled", "version": "4"},
}  # fmt: skip
DROP_FOLDER = """([name, paths]) => {
  const isFolder = (path) => !path.includes(".");
  const entry = (path) => ({ name: path.split("/").at(-1), isFile: !isFolder(path),
    isDirectory: isFolder(path), fullPath: "/" + path,
    file: (done) => done(new File([path], path.split("/").at(-1),
      { type: path.endsWith("png") ? "image/png" : "" })),
    createReader: () => { let rest = paths.filter((one) => one.startsWith(path + "/")
        && !one.slice(path.length + 1).includes("/")).map(entry);
      return { readEntries: (done) => { done(rest); rest = []; } }; } });
  const event = new Event("drop", { cancelable: true });
  event.dataTransfer = { types: ["Files"], files: [new File([], name)],
    items: [{ webkitGetAsEntry: () => entry(name) }] };
  window.dispatchEvent(event);
}"""
"""Drop a folder with these paths below it; browsers let no script make one."""

HOLD = """window.held = [];
window.setTimeout = ((later) => (run, delay) => delay === 300 ? held.push(run) : later(run, delay))(
  window.setTimeout)"""
"""Hold the writes of texts that are being typed."""

ALL_DONE = "!document.querySelector('.strip [data-state=waiting]')"


@pytest.fixture
def answered(visit: Visit) -> Iterator[Visit]:
    body = json.dumps({"records": [RECORD]})
    visit.context.route("**/api/caption", lambda route: route.fulfill(body=body))  # in all tabs
    yield visit
    visit.context.unroute("**/api/caption")


@pytest.fixture
def other(answered: Visit) -> Iterator[Any]:
    tab = answered.context.new_page()
    tab.goto(answered.tab.url)
    tab.wait_for_selector('.viewer[data-state="shown"]')
    yield tab
    tab.close()


def items(tab: Any) -> list[str]:
    return [button.get_attribute("title") for button in tab.locator(".strip li button").all()]


def wait_for_items(tab: Any, count: int) -> None:
    tab.wait_for_function(f"document.querySelectorAll('.strip li').length === {count}")


@pytest.mark.parametrize("writer", [0, 1])
def test_what_one_tab_types_stays_whatever_another_does(
    answered: Visit, other: Any, tmp_path: Path, writer: int
) -> None:
    tabs = answered.tab, other
    one, two = tabs[writer], tabs[1 - writer]
    tabs[0].set_input_files(".intake .file", make_photos(tmp_path, 4))
    for tab in tabs:
        wait_for_items(tab, 4)
        tab.wait_for_function(ALL_DONE)
    one.locator(".strip li button").first.click()
    one.fill(".text", "Words of a person.")
    two.locator(".strip li button").nth(1).click()
    two.locator("body").press("j")
    two.fill(".text", "Other words.")
    two.wait_for_function(STORED)
    two.locator(".strip li button").first.click()
    two.wait_for_function("document.querySelector('.text').value === 'Words of a person.'")
    two.check(".decorative")  # the open photo of the other tab
    one.wait_for_function("document.querySelector('.decorative').checked")
    one.wait_for_selector(".copied >> text=another tab")
    two.uncheck(".decorative")
    two.wait_for_function(STORED)
    one.locator(".strip li button").nth(3).press("Delete")
    wait_for_items(two, 3)
    two.reload()  # an undone removal is a matter of all tabs, and of reloads
    two.click(".removed button")
    for tab in tabs:
        wait_for_items(tab, 4)
        assert not tab.locator(".removed button").count()
    for tab in tabs:
        tab.wait_for_function(STORED)
        tab.reload()
        wait_for_items(tab, 4)
        texts = tab.locator(".strip li > button > span").all_inner_texts()
        assert texts == ["Words of a person.", "A dog.", "Other words.", "A dog."]
    two.set_input_files(".intake .file", SAMPLES / "rocket.jpg")
    for tab in tabs:
        tab.wait_for_selector(".strip li:nth-child(5)[data-state=done]")
        tab.wait_for_function(STORED)
    one.click(".clear")
    one.click("text=Delete 5?")
    two.wait_for_selector('.viewer[data-state="empty"] >> text=emptied in another tab')
    assert not two.locator(".strip").is_visible()


def test_words_that_are_typed_while_another_tab_empties_the_list_stay(
    answered: Visit, other: Any, tmp_path: Path
) -> None:
    tab = answered.tab
    tab.set_input_files(".intake .file", make_photos(tmp_path, 2))
    wait_for_items(other, 2)
    other.click(".clear")
    answered.strip()  # a caption that comes later would store the text before it is cleared
    tab.wait_for_function(STORED)
    tab.evaluate(HOLD)
    tab.fill(".text", "Words of a person.")
    other.click("text=Delete 2?")
    other.wait_for_selector('.viewer[data-state="empty"]')
    tab.evaluate("held.forEach((write) => write())")
    other.wait_for_selector(".strip [data-reviewed]")
    wait_for_items(tab, 1)
    tab.wait_for_function(STORED)
    tab.reload()
    tab.wait_for_function("document.querySelector('.text').value === 'Words of a person.'")


def test_a_photo_is_captioned_in_one_tab_and_a_failure_hides_no_caption(
    answered: Visit, other: Any
) -> None:
    tab, held = answered.tab, []
    answered.context.unroute("**/api/caption")
    answered.context.route("**/api/caption", lambda route: held.append(route))
    other.set_input_files(".intake .file", SAMPLES / "rocket.jpg")
    wait_for_items(tab, 1)
    pending = "navigator.locks.query().then(({ pending }) => pending.length)"
    answered.wait_until(lambda: held and tab.evaluate(pending) == 1)
    held[0].fulfill(body=json.dumps({"records": [RECORD]}))
    for window in (tab, other):
        window.wait_for_selector(".strip [data-state=done]")
    locks = "navigator.locks.query().then(({ held }) => held.length)"
    answered.wait_until(lambda: not other.evaluate(locks))
    assert len(held) == 1
    # Browsers have no locks over http: a failure meets the caption that another tab has stored.
    for window in (tab, other):
        window.evaluate("Object.defineProperty(navigator, 'locks', { value: undefined })")
    tab.set_input_files(".intake .file", SAMPLES / "coffee.jpg")
    answered.wait_until(lambda: len(held) == 3)
    mine, theirs = sorted(held[1:], key=lambda route: bool(route.request.frame.page == other))
    theirs.fulfill(body=json.dumps({"records": [RECORD]}))
    tab.wait_for_selector(".strip li:nth-child(2)[data-state=done]")
    with tab.expect_event("requestfinished"):
        mine.fulfill(status=400, body=json.dumps({"type": "x", "title": "x", "detail": "y"}))
    tab.wait_for_timeout(100)
    for window in (tab, other):
        window.wait_for_function(STORED)
        window.reload()
        window.wait_for_selector(".strip li:nth-child(2)[data-state=done]")


def test_115_photos_and_their_texts_survive_reloads_and_come_back_from_downloads(
    answered: Visit, tmp_path: Path
) -> None:
    tab, paths = answered.tab, make_photos(tmp_path, 115)
    tab.set_input_files(".intake .file", paths)
    wait_for_items(tab, 115)
    answered.strip()
    tab.locator(".strip li button").first.click()
    for number in range(9):
        tab.fill(".text", f"Text {number}.")
        tab.press(".text", "Enter")
    tab.wait_for_function(STORED)
    tab.reload()
    wait_for_items(tab, 115)
    assert tab.locator(".strip [data-reviewed]").count() == 9
    records = [json.loads(line) for line in answered.taken_home("jsonl").splitlines()]
    assert [record["reviewed"] for record in records] == 9 * [True] + 106 * [False]
    assert {record["caption_by"] for record in records[:9]} == {"person"}
    reviewed = answered.taken_home("jsonl", "Only reviewed")
    assert len(reviewed.splitlines()) == 9
    saved = answered.save(".train")
    for name, content in {"captions.zip": None, "captions.jsonl": reviewed}.items():
        download = tmp_path / name
        if content is None:
            saved.save_as(download)
        else:
            download.write_text(content)
        tab.click(".clear")
        tab.click(".clear")
        tab.wait_for_selector('.viewer[data-state="empty"]')
        renamed = paths[8].rename(tmp_path / f"renamed-{name}.png")  # its content is known
        paths[8] = renamed
        Image.new("RGB", (9, 9)).save(paths[7])  # its name is known
        tab.set_input_files(".intake .file", paths[1:3])
        wait_for_items(tab, 2)
        tab.wait_for_function(STORED)
        tab.set_input_files(".intake .file", download)
        tab.wait_for_selector(".reason >> text=2 of 9 texts are back")
        tab.set_input_files(".intake .file", [paths[0], *paths[3:20]])
        tab.wait_for_function("document.querySelectorAll('[data-reviewed]').length === 9")
        texts = tab.locator(".strip [data-reviewed] > button > span").all_inner_texts()
        assert sorted(texts) == [f"Text {number}." for number in range(9)]


def test_equal_names_have_their_folder_or_a_number(answered: Visit, tmp_path: Path) -> None:
    tab, (path,) = answered.tab, make_photos(tmp_path, 1)
    for _ in range(2):
        tab.set_input_files(".intake .file", path)
    wait_for_items(tab, 2)
    paths = ["trip/000.png", "trip/day/000.png", "trip/day/notes.txt", "trip/day"]
    tab.evaluate(DROP_FOLDER, ["trip", paths])
    wait_for_items(tab, 4)
    assert items(tab) == ["000.png", "000 (2).png", "trip/000.png", "day/000.png"]


@pytest.mark.needs("exiftool")
def test_corrections_of_two_tabs_reach_the_photos(
    answered: Visit, other: Any, tmp_path: Path, run_main: Run
) -> None:
    tab, folder = answered.tab, tmp_path / "photos"
    folder.mkdir()
    tab.set_input_files(".intake .file", make_photos(folder, 24, "jpg"))
    for window in (tab, other):
        wait_for_items(window, 24)
        window.wait_for_function(ALL_DONE)
    for number in range(6):
        window = (tab, other)[number // 3]
        window.locator(".strip li button").nth(number).click()
        window.fill(".text", f"Text {number}, by a person")
    other.locator(".strip li button").nth(6).click()
    other.check(".decorative")
    other.wait_for_function(STORED)
    tab.wait_for_function(STORED)
    tab.reload()
    wait_for_items(tab, 24)
    assert tab.locator(".strip [data-reviewed]").count() == 7
    expected = [f"Text {number}, by a person" for number in range(6)] + [None] + 17 * ["A dog."]
    for kind in ("jsonl", "csv"):
        download, photos = tmp_path / f"page.{kind}", tmp_path / kind
        download.write_text(answered.taken_home(kind))
        assert tab.inner_text(".answer") == f"Saved captions.{kind}: 24 of 24 photos."
        shutil.copytree(folder, photos)
        result = run_main("convert", download, "--root", photos, "--sidecar", "xmp", "--embed")
        assert result.returncode == 0, result.stderr
        assert "6 by a person" in result.stderr and "1 decorative skipped" in result.stderr
        command = ["exiftool", "-j", "-XMP-dc:Description", *sorted(photos.glob("*.jpg"))]
        read = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        assert [photo.get("Description") for photo in read] == expected
