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
    """Three: the second is damaged, and the name of the last is a formula."""
    (tmp_path / "cut.jpg").write_bytes((SAMPLES / "rocket.jpg").read_bytes()[:9000])
    (tmp_path / "=cat.jpg").write_bytes((SAMPLES / "chelsea.jpg").read_bytes())
    return [SAMPLES / "coffee.jpg", tmp_path / "cut.jpg", tmp_path / "=cat.jpg"]


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
    assert "cut.jpg is cut off" in visit.failure()  # beside its own photo
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
