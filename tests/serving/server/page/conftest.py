"""The page in a real browser: one browser and one server for all of its tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from PIL import Image
from starlette.types import ASGIApp

from captioner.caption import Caption
from captioner.captioner import Captioner, PreparedImage
from captioner.shared.paths import sample_photos
from captioner_serving.server.records import served_record
from tests.conftest import running_browser
from tests.serving.server.page.frozen import GRADIO, FrozenPage
from tests.serving.server.running import serving

DESK = {"viewport": {"width": 1280, "height": 900}}
PHONE = {
    "viewport": {"width": 360, "height": 740},
    "device_scale_factor": 3,
    "is_mobile": True,
    "has_touch": True,
}

STORED = "dispatchEvent(new Event('beforeunload', { cancelable: true }))"
"""Whether the browser has stored everything, so that the page does not ask before it is left."""
STORE = """async (given) => {
  const asked = indexedDB.open("captioner");
  const database = await new Promise((done) => { asked.onsuccess = () => done(asked.result); });
  const transaction = database.transaction("visits", "readwrite");
  const request = (WORK)(transaction.objectStore("visits"), given);
  await new Promise((done) => { transaction.oncomplete = done; });
  database.close();
  return request?.result;
}"""
"""Do WORK with the browser's store of photos, and return the result of its request."""


@pytest.fixture(scope="package")
def captioner() -> Captioner:
    """The bundled model, because the tiny one shows no heat; it captions equal photos once."""
    captioner, known = Captioner.from_pretrained(), dict[Any, Caption]()
    caption = captioner.caption_prepared

    def remembered(images: Sequence[PreparedImage], *config: Any, **options: Any) -> list[Caption]:
        captions = []
        for image in images:
            key = image.pixels.tobytes(), image.box, image.size, config, *options.items()
            if key not in known:
                (known[key],) = caption([image], *config, **options)
            captions.append(replace(known[key], image=image.image))
        return captions

    captioner.caption_prepared = remembered  # type: ignore[method-assign]
    return captioner


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """A browser for all tests of the page. Until it is closed, no other event loop can run."""
    with running_browser() as running:
        yield running


@pytest.fixture(scope="package")
def page_url(browser: Any, captioner: Captioner) -> Iterator[str]:
    """The URL of the page, without Gradio's scripts; with `/?gradio`, of the page with them."""
    pages: list[FrozenPage] = []

    def wrap(app: ASGIApp) -> ASGIApp:
        pages.append(FrozenPage(app))
        return pages[0]

    with serving(captioner, samples=sample_photos(), wrap=wrap) as url:
        pages[0].freeze(browser, url)
        yield url


@pytest.fixture(scope="package")
def desk(browser: Any) -> Iterator[Any]:
    context = browser.new_context(**DESK)
    yield context
    context.close()


@pytest.fixture(scope="package")
def pocket(browser: Any) -> Iterator[Any]:
    context = browser.new_context(**PHONE)
    yield context
    context.close()


def record_of(captioner: Captioner, photo: Path, *, captions: int = 1) -> dict[str, Any]:
    config = replace(captioner.generation, captions=captions)
    return served_record(captioner.caption(photo, config), name=photo.name, attention=True)


def make_photos(folder: Path, count: int, kind: str = "png") -> list[Path]:
    """Make photos of different sizes and colours."""
    paths = [folder / f"{number:03}.{kind}" for number in range(count)]
    for number, path in enumerate(paths):
        Image.new("RGB", (40 + number, 40), (number, 90, 200 - number)).save(path)
    return paths


def sentence(caption: str) -> str:
    """A caption as the page writes it where it is no row of words."""
    return f"{caption.capitalize()}."


class Visit:
    """A visitor's tab with its requests and errors; of earlier visits only scripts are kept."""

    def __init__(self, context: Any, url: str, *, script: str = "", **media: Any) -> None:
        self.context = context
        context.set_default_timeout(120_000)
        self.tab = context.new_page()
        kept = {
            "origin": url.removesuffix(GRADIO),
            "storageTypes": "cookies,indexeddb,local_storage",
        }
        context.new_cdp_session(self.tab).send("Storage.clearDataForOrigin", kept)
        if script:
            self.tab.add_init_script(script)
        if media:
            self.tab.emulate_media(**media)
        self.hosts: set[str | None] = set()
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.may_fail = False  # requests, which the browser reports
        self.tab.on("request", self._note)
        self.tab.on("pageerror", lambda error: self.errors.append(str(error)))
        self.tab.on("console", self._hear)
        self.dialogs: list[str] = []  # such as the question before a page is left
        self.tab.on("dialog", self._accept)
        self.tab.goto(url)
        self.settled()
        for other in context.pages[:-1]:
            other.close()

    def _hear(self, said: Any) -> None:
        # The browser reports every status over 399; a photo that fails has one.
        is_refusal = said.location["url"].endswith("/api/caption") and "status of 4" in said.text
        is_failure = is_refusal or (self.may_fail and "Failed to load resource" in said.text)
        if said.type == "error" and not is_failure:
            self.errors.append(said.text)

    def _accept(self, dialog: Any) -> None:
        self.dialogs.append(dialog.type)
        dialog.accept()

    def _note(self, request: Any) -> None:
        self.requests.append(request.url)
        if not request.url.startswith(("data:", "blob:")):
            self.hosts.add(urlsplit(request.url).hostname)

    def settled(self) -> None:
        """Wait until a caption is there, and its first word's heat on the photo."""
        self.tab.wait_for_selector('.viewer[data-state="shown"]')
        self.tab.wait_for_function("+(document.querySelector('.heat').dataset.word ?? -1) >= 0")

    def forget(self) -> None:
        """Let the next `settled` wait for something new."""
        self.tab.evaluate(
            "document.querySelector('.viewer').dataset.state = 'old';"
            "document.querySelector('.heat').dataset.word = -1"
        )

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Wait for a new caption at the end."""
        self.forget()
        yield
        self.settled()

    def save(self, selector: str) -> Any:
        """Click on something and return the download."""
        with self.tab.expect_download() as saved:
            self.tab.click(selector)
        return saved.value

    def reload(self) -> None:
        """Reload the page once everything is stored, and wait for a caption."""
        self.tab.wait_for_function(STORED)
        self.tab.reload()
        self.settled()

    def choose(self, *paths: Path, state: str = "shown") -> None:
        self.forget()
        self.tab.set_input_files(".intake .file", paths)
        self.tab.wait_for_selector(f'.viewer[data-state="{state}"]')
        if state == "shown":
            self.settled()

    def answer(self, photo: Path, record: dict[str, Any]) -> None:
        """Choose a photo that is answered with a record."""
        body = json.dumps({"records": [record]}) + "\n"
        self.tab.route("**/api/caption", lambda route: route.fulfill(body=body))
        self.choose(photo)
        self.tab.unroute("**/api/caption")

    def store(self, work: str, given: Any = None) -> Any:
        """Call a function of JavaScript with the browser's store of photos and a value."""
        return self.tab.evaluate(STORE.replace("WORK", work), given)

    def held(self) -> list[Any]:
        """Hold the requests of captions from now on; the list of them."""
        held: list[Any] = []
        self.tab.route("**/api/caption", lambda route: held.append(route))
        return held

    def wait_until(self, true: Callable[[], Any]) -> None:
        while not true():
            self.tab.wait_for_timeout(10)

    def record(self) -> dict[str, Any]:
        """The caption on the page, as it is saved under Data."""
        saved = self.save(".json")
        record: dict[str, Any] = json.loads(Path(saved.path()).read_text())
        assert saved.suggested_filename == f"{Path(record['image']).stem}.json"
        return record

    def paste(self, text: str, selector: str = "body") -> None:
        """Paste text into an element."""
        self.tab.locator(selector).evaluate(
            """(element, text) => {
              const clipboardData = new DataTransfer();
              clipboardData.setData("text/plain", text);
              element.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true }));
            }""",
            text,
        )

    def strip(self) -> list[str]:
        """Return the text of each photo in the list, once all are done."""
        self.tab.wait_for_function("!document.querySelector('.strip [data-state=waiting]')")
        return self.tab.locator(".strip li > button > span").all_inner_texts()

    def taken_home(self, format: str, choice: str = "Download all") -> str:
        """All photos as one file; `choice` answers the question about photos to review."""
        with self.tab.expect_download() as saved:
            self.tab.click(f"[data-format={format}]")
            if self.tab.locator(".answer button").count():
                self.tab.click(f".answer button >> text={choice}")
        assert saved.value.suggested_filename == f"captions.{format}"
        return Path(saved.value.path()).read_bytes().decode()

    def posts(self, path: str = "api/caption") -> int:
        return sum(url.endswith("/" + path) for url in self.requests)

    def heat(self) -> str:
        return self.tab.evaluate("document.querySelector('.heat').toDataURL()")

    def words(self) -> list[str]:
        return self.tab.locator(".word").all_inner_texts()

    def failure(self) -> str:
        self.tab.wait_for_selector('.viewer[data-state="failed"]')
        assert not self.tab.locator(".sentence").is_visible()  # no old caption beside it
        return self.tab.inner_text('.failure[role="alert"]')


@contextmanager
def visiting(context: Any, url: str, **options: Any) -> Iterator[Visit]:
    made = Visit(context, url, **options)
    try:
        yield made
    finally:
        # Empty, but not closed before the next one is there: what the browser has read of the
        # page's scripts, it keeps for as long as it has a tab.
        made.tab.goto("about:blank")
        context.set_offline(False)
        context.clear_permissions()
    assert made.errors == []
    assert made.hosts == {"127.0.0.1"}


@pytest.fixture
def visit(desk: Any, page_url: str) -> Iterator[Visit]:
    with visiting(desk, page_url) as made:
        yield made


@pytest.fixture
def clipboard(desk: Any) -> None:
    desk.grant_permissions(["clipboard-read", "clipboard-write"])


@pytest.fixture
def phone(pocket: Any, page_url: str) -> Iterator[Visit]:
    with visiting(pocket, page_url) as made:
        yield made
