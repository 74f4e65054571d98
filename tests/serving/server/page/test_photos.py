"""Photos on the page: ways to add them, waiting, and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from captioner.photos.open import open_image
from tests.captioner.pictures import HEIC
from tests.serving.server.conftest import SAMPLES
from tests.serving.server.page.conftest import Visit, visiting

pytestmark = pytest.mark.slow

INSECURE = """Object.defineProperty(window, 'isSecureContext', { value: false });
Object.defineProperty(Navigator.prototype, 'clipboard', { value: undefined });"""
"""A page over plain http from another machine."""
PHASES = """window.phases = new Set(); new MutationObserver(() =>
  phases.add(document.querySelector('.phase').textContent))
  .observe(document.querySelector('.phase'), { childList: true })"""
"""Note what is said while a photo waits."""
DROP = """async ([kind, name]) => {
  const blob = await (await fetch(document.querySelector('.samples img').src)).blob();
  const data = new DataTransfer();
  data.items.add(new File([blob], name, { type: 'image/jpeg' }));
  const event = kind === 'paste'
    ? new ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true })
    : new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true });
  document.querySelector('.notes').dispatchEvent(event);
  return event.defaultPrevented;
}"""
"""Drop or paste a file below the photo."""


def test_what_browsers_do_not_show_comes_with_the_caption(visit: Visit, tmp_path: Path) -> None:
    heic, gif = tmp_path / "rocket.heic", tmp_path / "rocket.gif"
    heic.write_bytes(HEIC)
    with Image.open(SAMPLES / "rocket.jpg") as photo:
        photo.save(gif, append_images=[photo.rotate(180)], save_all=True)
    for path in (heic, gif):
        visit.choose(path)
        shown = visit.tab.locator("img.photo").evaluate("i => [i.naturalWidth, i.naturalHeight]")
        assert tuple(shown) == open_image(path).size and visit.tab.locator(".frame").is_visible()
        assert visit.tab.locator("img.photo").get_attribute("src").startswith("data:image/jpeg")
        assert "preview" not in visit.record()
    words = visit.words()
    visit.reload()
    assert visit.words() == words and visit.tab.locator(".frame").is_visible()


def test_a_large_photo_is_sent_and_shown_as_a_smaller_copy(visit: Visit, tmp_path: Path) -> None:
    """21 MB of a JPEG on its side; the server takes 20 MB."""
    path, exif = tmp_path / "large.jpg", Image.Exif()
    exif[0x0112] = 8
    with Image.open(SAMPLES / "coffee.jpg") as photo:
        turned = photo.resize((2250, 1500)).transpose(Image.Transpose.ROTATE_270)
        turned.save(path, exif=exif)
    path.write_bytes(path.read_bytes() + bytes(21_000_000))
    visit.choose(path)
    words = visit.words()
    shown = visit.tab.locator("img.photo").evaluate("i => [i.naturalWidth, i.naturalHeight]")
    assert shown == [2048, 1365]
    saved = visit.save("[data-picture=overlay]")
    with Image.open(saved.path()) as overlay:
        assert overlay.size == (2048, 1365)
    visit.choose(SAMPLES / "coffee.jpg")
    assert visit.words() == words  # upright


def test_a_photo_may_be_dropped_or_pasted_anywhere(visit: Visit) -> None:
    assert "URL" not in visit.tab.inner_text(".zone")
    visit.paste("https://example.org/a.jpg")  # URLs are off by default
    with visit.tab.expect_file_chooser() as chooser:
        visit.tab.click(".choose")
    assert chooser.value.is_multiple()
    assert visit.posts() == 0 and not visit.tab.locator(".strip").is_visible()
    for kind in ("drop", "paste"):
        with visit.changing():
            assert visit.tab.evaluate(DROP, [kind, f"{kind}ped.jpg"])
        assert visit.record()["image"] == f"{kind}ped.jpg"


def test_over_plain_http_a_text_is_copied_in_another_way(desk: Any, page_url: str) -> None:
    with visiting(desk, page_url, script=INSECURE) as visit:
        assert not visit.tab.locator(".take").is_visible()  # only phones have a camera app
        visit.tab.click(".copy")
        visit.tab.wait_for_function("document.querySelector('.copied').textContent === 'Copied'")


def test_while_it_waits_the_new_photo_is_there_and_the_old_sentence_is_not(visit: Visit) -> None:
    tab = visit.tab
    # A sample is there before anybody has done anything.
    assert "miscounts" in tab.inner_text(".limits") and tab.locator(".sentences li").count() == 3
    held = visit.held()
    old = tab.locator("img.photo").get_attribute("src")
    visit.choose(SAMPLES / "rocket.jpg", state="waiting")
    tab.wait_for_function("""document.querySelector('.photo[src^="blob:"]')?.naturalWidth > 0""")
    assert tab.locator("img.photo").get_attribute("src") != old
    assert not tab.locator(".sentence").is_visible() and tab.locator(".heat").is_visible()
    assert tab.locator(".heat").get_attribute("data-word") == "-1"
    tab.locator(".phase", has_text="Sending the photo").wait_for()
    assert tab.locator(".viewer").get_attribute("aria-busy") == "true"
    running = "document.getAnimations().some(a => a.playState === 'running')"
    tab.emulate_media(reduced_motion="reduce")
    tab.wait_for_function(f"!{running}")
    tab.emulate_media(reduced_motion="null")
    tab.wait_for_function(running)
    visit.wait_until(lambda: held)
    held[0].continue_()
    visit.settled()
    assert visit.record()["image"] == "rocket.jpg"


def test_beam_sentences_and_style_change_the_caption(visit: Visit) -> None:
    tab = visit.tab
    tab.click("text=Search settings")
    assert tab.get_by_label("Style").is_visible()
    with visit.changing():
        tab.locator("input[name=captions]").press("End")
    assert tab.locator(".sentences li").count() == 10  # of as many beams
    assert tab.locator("input[name=beam_size]").input_value() == "10"
    with visit.changing():
        tab.locator("input[name=beam_size]").press("Home")
    assert not tab.locator(".others").is_visible()  # one is followed, and there are no others
    assert tab.locator("input[name=captions]").input_value() == "1"
    usual = visit.record()["style"]
    style = tab.get_by_label("Style")
    assert style.input_value() == usual
    other = next(name for name in style.locator("option").all_inner_texts() if name != usual)
    with visit.changing():
        style.select_option(other)
    assert visit.record()["style"] == other
    with visit.changing():
        tab.click("[data-sample=chelsea]")
    assert visit.record()["style"] == other
    visit.reload()
    tab.click("text=Search settings")
    assert tab.get_by_label("Style").input_value() == other == visit.record()["style"]


def test_a_server_that_is_gone_busy_or_going_is_told_and_tried_again(
    visit: Visit, tmp_path: Path
) -> None:
    tab, asked = visit.tab, visit.posts()
    (tmp_path / "large.jpg").write_bytes(bytes(21_000_000))
    visit.choose(tmp_path / "large.jpg", state="failed")
    assert "large.jpg is larger than the limit of 20 MB" in visit.failure()
    assert visit.posts() == asked
    visit.may_fail = True
    visit.context.set_offline(True)
    visit.choose(SAMPLES / "rocket.jpg", state="failed")
    assert "does not answer" in visit.failure()
    visit.context.set_offline(False)
    problem = {"type": "busy", "title": "Too busy", "status": 503, "detail": "y"}
    kind = "application/problem+json"
    tab.route(
        "**/api/caption",
        lambda route: route.fulfill(status=503, content_type=kind, body=json.dumps(problem)),
    )
    visit.forget()
    tab.click(".retry")
    assert problem["title"] in visit.failure()
    tab.unroute("**/api/caption")
    tab.evaluate(PHASES)
    with visit.changing():
        tab.click(".retry")
    assert "Captioning …" in tab.evaluate("[...window.phases]")
    assert visit.record()["image"] == "rocket.jpg"
