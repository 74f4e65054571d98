"""The API as other sites and programs use it: bodies, addresses, origins, tokens, a description."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter

from captioner.captioner import Captioner
from captioner_serving.decoding import fair_queue
from captioner_serving.server import service
from captioner_serving.server.config import ServerConfig
from captioner_serving.server.records import Records
from captioner_serving.server.urls import WebPhoto
from tests.serving.server.conftest import SAMPLES
from tests.serving.server.running import bindable, client_at, serving, until
from tests.web import Handler, hosting

pytestmark = pytest.mark.slow

PHOTO = (SAMPLES / "coffee.jpg").read_bytes()
CODED = base64.b64encode(PHOTO).decode()
TOKEN = "0123456789abcdef"
SITE, OTHER = "https://example.org", "https://example.com"
HERE = partial(WebPhoto, trusted_host="127.0.0.1")  # a photo on this machine may be fetched


@pytest.fixture(scope="module")
def shared(saved_tiny: Path) -> Iterator[str]:
    config = ServerConfig(allowed_origins=(SITE,), allow_urls=True)
    captioner = Captioner.from_pretrained(saved_tiny)
    with serving(captioner, config, tokens={"shop": TOKEN}) as url:
        yield url


@pytest.fixture
def shop(shared: str) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=shared, headers=headers, timeout=300) as client:
        yield client


class Hosts(Handler):
    """Hosts of photos: one that is slow once and then silent, some that lead elsewhere, and one."""

    asked, open = itertools.count(), threading.Event()

    def do_GET(self) -> None:  # noqa: N802
        if self.path == "/slow":
            Hosts.open.wait(60 if next(Hosts.asked) else 1)
        places = {"/file": "file:///etc/passwd", "/round": "/round"}
        status = 302 if self.path in places else 404 if self.path == "/none" else 200
        self.send_response(status)
        self.send_header("Location", places.get(self.path, ""))
        self.end_headers()
        self.wfile.write(PHOTO if status == 200 else b"")


@pytest.fixture
def web() -> Iterator[str]:
    with hosting(Hosts) as address:
        yield address


def test_a_photo_is_fetched_by_its_address_unless_that_is_private(
    shop: httpx.Client, web: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(reasons: dict[str, str]) -> None:
        for address, said in reasons.items():
            answer = shop.post("/api/caption", files={"image_url": (None, address)})
            assert answer.status_code == 422, address
            assert answer.json()["type"] == "image-not-found", address
            assert said in answer.json()["detail"], address

    check({
        f"{web}/a.jpg": "leads to a private address",
        "http://localhost:1/": "leads to a private address",
        "http://2130706433/": "leads to a private address",
        "http://10.0.0.1/": "leads to a private address",
        "file:///etc/passwd": "is not an http or https URL",
        "http://host:99999/": "is not valid",
        f"http://{'a' * 80}.example/": "is not valid",
        "http://[::1/": "is not valid",
        "http://no.such.host.invalid/": "does not answer",
    })  # fmt: skip
    monkeypatch.setattr(service, "WebPhoto", HERE)
    check({
        f"{web}/none": "status 404",
        f"{web}/round": "is not valid",
        f"{web}/file": "is not valid",
        "http://127.0.0.1:9/": "does not answer",
    })  # fmt: skip
    answer = shop.post("/api/caption", files={"image_url": (None, f"{web}/a.jpg")})
    (record,) = answer.json()["records"]
    assert record["image"] == f"{web}/a.jpg" and record["words"]


def test_a_slow_host_does_not_block_other_photos(
    shared: str, web: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "WebPhoto", HERE)
    monkeypatch.setattr(fair_queue, "_HEAVY_USE", 0.5)  # seconds of work, which are ten

    def ask(address: str, path: str, done: list[int]) -> None:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        with client_at(shared, address, headers=headers) as client:
            answer = client.post("/api/caption", files={"image_url": (None, f"{web}/{path}")})
            done.append(answer.status_code)

    slow: list[int] = []
    quick: list[int] = []
    heavy, light = bindable("127.0.0.2"), bindable("127.0.0.3")
    threads = [
        threading.Thread(target=ask, args=(heavy, "slow", slow), daemon=True) for _ in range(18)
    ]
    for thread in threads:
        thread.start()
    assert until(lambda: slow)  # the attacker has taken a second
    ask(light, "quick", quick)
    assert quick == [200] and len(slow) == 1
    Hosts.open.set()
    for thread in threads:
        thread.join()


class Endless(Handler):
    """Endless heads, bodies, redirects and bodies of redirects."""

    def do_GET(self) -> None:  # noqa: N802
        with contextlib.suppress(OSError):  # nobody reads on
            if self.path == "/none":
                self.send_error(404)
                return
            self.send_response(200 if self.path in ("/head", "/large") else 302)
            if self.path == "/large":
                self.end_headers()
            while self.path == "/large":
                self.wfile.write(bytes(1 << 16))
            self.flush_headers()
            for _ in range({"/head": 1000, "/round": 10}.get(self.path, 3)):
                self.wfile.write(b"X-More: 1\r\n")
                time.sleep(0.1)
            self.send_header("Location", "/none" if self.path == "/body" else "/round")
            self.end_headers()
            while self.path == "/body":
                self.wfile.write(bytes(1 << 16))


def test_a_download_is_limited_in_memory_and_time(
    saved_tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "WebPhoto", HERE)
    monkeypatch.setattr(service, "_SECONDS", 3.0)
    late = "takes more than 3 s to download and decode"
    large, captioner = "limit of 0.1 MB", Captioner.from_pretrained(saved_tiny)
    config = ServerConfig(allow_urls=True, max_upload=100_000)
    with (
        serving(captioner, config) as url,
        httpx.Client(base_url=url, timeout=300) as shop,
        hosting(Endless) as web,
    ):
        # What stands in a redirect is not read.
        for path, said in {
            "head": late, "round": late, "body": "status 404", "large": large
        }.items():  # fmt: skip
            address = f"{web}/{path}"
            answer = shop.post("/api/caption", files={"image_url": (None, address)})
            assert answer.status_code == 422 and said in answer.json()["detail"], path
            assert answer.elapsed.total_seconds() < 60, path


def test_another_site_may_call_the_api_if_it_is_named(shared: str) -> None:
    who = {"Authorization": f"Bearer {TOKEN}", "Sec-Fetch-Site": "cross-site"}
    with httpx.Client(base_url=shared, timeout=300) as web:
        asks = {"Origin": SITE, "Access-Control-Request-Method": "POST"}
        asks["Access-Control-Request-Headers"] = "authorization, content-type"
        before = web.options("/api/caption", headers=asks)
        assert before.status_code == 200
        assert before.headers["access-control-allow-origin"] == SITE
        foreign = web.options("/api/caption", headers={**asks, "Origin": OTHER})
        assert foreign.status_code == 400
        assert web.options("/api/caption", headers={**asks, "Host": "evil.example"}).is_error
        files = {"image": PHOTO}
        answer = web.post("/api/caption", files=files, headers={**who, "Origin": SITE})
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == SITE
        assert answer.headers["access-control-expose-headers"] == "Retry-After, X-Request-ID"
        chat: Any = {"messages": []}
        answer = web.post("/v1/chat/completions", json=chat, headers={**who, "Origin": SITE})
        assert answer.status_code == 400 and "no image" in answer.text
        answer = web.post("/api/caption", files=files, headers={**who, "Origin": OTHER})
        assert (answer.status_code, answer.json()["type"]) == (403, "cross-site")
        assert "access-control-allow-origin" not in answer.headers
        # The page's own parts are nobody else's, whoever asks.
        answer = web.post("/gradio_api/upload", files=files, headers={**who, "Origin": SITE})
        assert answer.json()["type"] == "cross-site"


def test_the_description_says_what_records_and_problems_hold(shop: httpx.Client) -> None:
    schema = shop.get("/openapi.json").json()
    text = json.dumps(schema)
    assert '"additionalProperties": true' not in text
    answers = schema["paths"]["/api/caption"]["post"]["responses"]
    records = answers["200"]["content"]["application/json"]["schema"]
    assert records == {"$ref": "#/components/schemas/Records"}
    del answers["200"]
    for answer in answers.values():
        ((kind, content),) = answer["content"].items()
        assert kind == "application/problem+json"
        problem = content["schema"]["properties"]
    assert {"type", "title", "status", "detail", "request"} <= problem.keys()
    # What is answered is what is described.
    form: Any = {"attention": "true", "captions": "2", "check_attention": "true"}
    files = [("image", PHOTO), ("image", b"none")]
    answer = shop.post("/api/caption", files=files, data=form)
    TypeAdapter(Records).validate_json(answer.content, strict=True)
    refused = shop.post("/api/caption", files={"image": b"none"})
    assert refused.json().keys() <= problem.keys()


def test_every_answer_has_a_number_that_its_problem_document_names(shop: httpx.Client) -> None:
    answers = [shop.get("/nothing"), shop.get("/nothing")]
    numbers = {answer.headers["X-Request-ID"]: answer.json()["request"] for answer in answers}
    assert len(numbers) == 2 and all(header == body for header, body in numbers.items())
