"""Several photos: the list, corrections and downloads."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.serving.server.conftest import SAMPLES
from tests.serving.server.page.conftest import Visit

pytestmark = pytest.mark.slow


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    """Three, of which the second is damaged and the last has a name that is a formula."""
    (tmp_path / "cut.jpg").write_bytes((SAMPLES / "rocket.jpg").read_bytes()[:9000])
    (tmp_path / "=cat.jpg").write_bytes((SAMPLES / "chelsea.jpg").read_bytes())
    return [SAMPLES / "coffee.jpg", tmp_path / "cut.jpg", tmp_path / "=cat.jpg"]


def test_each_of_several_photos_opens_its_words_and_an_error_stays_with_its_own(
    visit: Visit, photos: list[Path]
) -> None:
    tab = visit.tab
    assert not tab.locator(".strip").is_visible()
    visit.choose(*photos)
    first, cut, last = visit.strip()
    assert first.lower().strip(".") == " ".join(visit.words())  # the first is on the stage
    assert cut.startswith("cut.jpg: ")
    asked = visit.posts()
    visit.forget()
    tab.locator(".strip button[title='=cat.jpg']").click()
    visit.settled()
    assert " ".join(visit.words()) == last.lower().strip(".")
    tab.locator(".strip button[title='cut.jpg']").click()
    assert "cut.jpg is cut off" in visit.failure()
    tab.go_back()
    visit.settled()
    assert " ".join(visit.words()) == last.lower().strip(".")
    visit.choose(SAMPLES / "rocket.jpg")
    visit.reload()
    assert visit.strip()[:3] == [first, cut, last] and len(visit.strip()) == 4
    assert visit.posts() == asked + 1
    tab.click(".clear")
    assert len(visit.strip()) == 4  # it asks first
    tab.click("text=Delete 4?")
    tab.wait_for_selector('.viewer[data-state="empty"]')
    visit.reload()  # the sample again
    assert not tab.locator(".strip").is_visible()


def test_what_is_corrected_is_copied_kept_and_in_every_download(
    clipboard: None, visit: Visit, photos: list[Path]
) -> None:
    tab = visit.tab
    visit.choose(*photos)
    visit.strip()
    said = " ".join(visit.words())
    assert tab.input_value(".text") == said.capitalize() + "."
    assert not tab.get_attribute(".text", "placeholder")
    assert tab.inner_text(".count") == "3, 1 without a caption"
    assert tab.text_content(".news") == "All photos are done: 3, 1 without a caption"
    assert not tab.locator(".strip [data-corrected]").count()
    tab.fill(".text", 'A "cup" <on> a plate.')
    tab.click(".copy")
    tab.wait_for_selector(".copied >> text=Copied")
    assert tab.evaluate("navigator.clipboard.readText()") == 'A "cup" <on> a plate.'
    assert tab.locator(".strip [data-corrected] span").all_inner_texts() == [
        'A "cup" <on> a plate.'
    ]
    record = visit.record()
    assert (record["caption"], record["corrected"]) == (said, 'A "cup" <on> a plate.')
    tab.locator(".strip button[title='cut.jpg']").click()
    tab.fill(".text", "A\vrocket.")  # a line break of PowerPoint, which convert refuses
    tab.locator(".strip button[title='=cat.jpg']").click()
    tab.check(".decorative")
    assert tab.input_value(".text") == "" and visit.strip()[2] == "Decorative"
    visit.reload()
    assert tab.is_checked(".decorative")
    cup, cut, cat = map(json.loads, visit.taken_home("jsonl").splitlines())
    assert (cup["caption"], cup["corrected"]) == (said, 'A "cup" <on> a plate.')
    assert cut["image"] == "cut.jpg" and cut["error"]["type"] == "image-truncated"
    assert (cut["corrected"], cut["reviewed"], cut["caption_by"]) == ("A rocket.", True, "person")
    assert cat["corrected"] == "" and cat["words"] and "preview" not in cat
    rows = list(csv.DictReader(visit.taken_home("csv").lstrip("\ufeff").splitlines()))
    assert [row["alt"] for row in rows] == ['A "cup" <on> a plate.', "A rocket.", ""]
    assert [row["image"] for row in rows] == ["coffee.jpg", "cut.jpg", "'=cat.jpg"]
    assert "cut off" in rows[1]["error"]
    tab.click(".undo")
    said = tab.input_value(".text")
    assert not tab.is_checked(".decorative") and said
    tab.fill(".text", "My own words.")
    tab.check(".decorative")
    visit.reload()
    tab.uncheck(".decorative")
    assert tab.input_value(".text") == "My own words."
    tab.click(".undo")
    assert tab.input_value(".text") == said
    tab.click("text=Redo the correction")
    assert tab.input_value(".text") == "My own words."
