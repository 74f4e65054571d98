"""A photo's address, pasted into the page of a server that fetches photos."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from PIL import Image

from captioner.captioner import Captioner
from captioner.photos.open import open_image
from captioner.shared.paths import sample_photos
from captioner_serving.server import service
from captioner_serving.server.config import ServerConfig
from captioner_serving.server.urls import WebPhoto
from tests.serving.server.conftest import SAMPLES
from tests.serving.server.page.conftest import visiting
from tests.serving.server.running import serving
from tests.web import hosting

pytestmark = pytest.mark.slow


def test_a_pasted_address_is_fetched_by_the_server_alone(
    desk: Any, captioner: Captioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "WebPhoto", partial(WebPhoto, trusted_host="127.0.0.1"))
    with (
        hosting(SAMPLES) as web,
        serving(captioner, ServerConfig(allow_urls=True), samples=sample_photos()) as url,
        visiting(desk, url) as visit,
    ):
        tab, address = visit.tab, f"{web}/chelsea.jpg?a=1&b=2"
        assert "URL" in tab.inner_text(".zone")
        for text in ("a cat", "javascript:alert(1)", "file:///etc/passwd", "http://a b"):
            visit.paste(text)
        visit.paste(address, ".text")  # pasted into the field for the alt text
        assert visit.posts() == 0
        with visit.changing():
            visit.paste(address)
        wanted = captioner.caption(SAMPLES / "chelsea.jpg")
        assert visit.words() == [word.text for word in wanted.words]
        assert tab.locator("img.photo").get_attribute("src").startswith("data:image/jpeg")
        assert not [asked for asked in visit.requests if asked.startswith(web)]
        visit.reload()
        assert visit.posts() == 1 and tab.locator(".frame").is_visible()
        saved = visit.save("[data-picture=overlay]")
        with Image.open(saved.path()) as overlay:
            assert overlay.size == open_image(SAMPLES / "chelsea.jpg").size
            assert saved.suggested_filename[:8] == "chelsea-"
        assert json.loads(visit.taken_home("jsonl"))["image"] == address
        visit.forget()
        visit.paste(f"{web}/no.jpg")
        assert "status 404" in visit.failure()
