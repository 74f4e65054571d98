"""Requests: client, route and protocol, and the answer after a failure."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from captioner_serving.commands.serve import _say
from captioner_serving.networks import client_of
from captioner_serving.server.config import ServerConfig
from captioner_serving.server.errors import request_info
from captioner_serving.server.metrics import Metrics
from captioner_serving.server.middleware import Access, RequestContext
from tests.serving.server.conftest import SAMPLES, Server, run_async


class Inside:
    """The application behind the middleware: stores the last scope, then answers or raises."""

    def __init__(self, error: Exception | None = None, answer: Any = None) -> None:
        self.error, self.answer = error, answer or PlainTextResponse("fine")
        self.scope: Scope = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        if self.error:
            raise self.error
        await self.answer(scope, receive, send)


def ask(app: Any, path: str = "/", *, peer: str = "127.0.0.1", **request: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app, client=(peer, 1), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(request.pop("method", "GET"), path, **request)

    return run_async(send())


def test_forwarding_headers_and_cookies_are_dropped() -> None:
    """Python's reader of cookies takes minutes for this one: so would this test."""
    inside = Inside()
    headers = {"X-Forwarded-For": "203.0.113.9", "X-Forwarded-Host": "evil.example"}
    headers |= {"Forwarded": "for=203.0.113.9"}
    cookie = 'a="' + "\\" * 60_000 + '"'
    ask(RequestContext(inside, Metrics()), headers={**headers, "Cookie": cookie})
    names = {name for name, _ in inside.scope["headers"]}
    assert inside.scope["client"][0] == "127.0.0.1"
    assert not {name for name in names if b"forwarded" in name or name == b"cookie"}


def test_ipv6_clients_are_counted_by_their_network() -> None:
    keys = {
        address: client_of({"client": (address, 1)})
        for address in ("2001:db8:1:2::1", "[2001:db8:1:2:ffff::9]", "2001:db8:1:3::1",
                        "::ffff:203.0.113.9", "203.0.113.8", "no address")
    }  # fmt: skip
    assert [*keys.values()] == [
        "2001:db8:1:2::/64", "2001:db8:1:2::/64", "2001:db8:1:3::/64",
        "203.0.113.9", "203.0.113.8", "no address",
    ]  # fmt: skip
    assert client_of({}) == ""


@pytest.mark.parametrize("prefix", ["", "/photos/words"])
@pytest.mark.parametrize(
    ("path", "route", "shown"),
    [
        ("/api/caption", "/api/caption", "/api/caption"),
        ("/v1/models/IMG_1", "/v1/models/{name}", "/v1/models/{name}"),
        ("/nonsense/IMG_1.jpg", None, "/nonsense/..."),
        ("/photos/wordsmith/api/caption", None, "/photos/..."),
    ],
)
def test_routes_are_named_below_any_prefix(
    prefix: str, path: str, route: str | None, shown: str
) -> None:
    inside = Inside()
    routes = [Route(pattern, inside) for pattern in ("/api/caption", "/v1/models/{name}")]
    ask(RequestContext(inside, Metrics(), routes=routes, root_path="/photos/words"), prefix + path)
    info = request_info(inside.scope)
    assert (info.route, info.shown_path) == (route, shown)
    assert inside.scope["path"] == "/photos/words" + path  # and FastAPI takes it off once


# The host to listen on: allowed names, accepted Host headers, refused Host headers.
NAMES: dict[str, tuple[list[str], list[str], list[str]]] = {
    "127.0.0.1": (
        ["photos.example.org"],
        ["localhost", "[::1]:7860", "a.localhost:80", "photos.example.org:443"],
        ["example.org", "192.168.1.5", "localhost.evil.example", "evillocalhost", ""],
    ),
    "0.0.0.0": (
        ["*.pages.example.org", "192.168.7.7", "fd00::7"],
        ["A.pages.example.org:443", "192.168.7.7:80", "[fd00::7]:7860", "localhost"],
        ["evil.example", "evilpages.example.org", "pages.example.org"],
    ),
    "::": ([], ["192.168.1.5:7860", "any.name"], []),
    **dict.fromkeys(
        ("localhost", "[::1]", "127.0.0.2"), ([], ["localhost:7860"], ["evil.example"])
    ),
}


@pytest.mark.parametrize("listens", NAMES)
def test_only_accepted_host_headers_are_answered(listens: str) -> None:
    allowed, good, bad = NAMES[listens]
    config = ServerConfig(host=listens, allowed_hosts=tuple(allowed))
    app = RequestContext(Inside(), Metrics(), hosts=config.accepted_hosts)
    answers = {name: ask(app, headers={"Host": name}) for name in (*good, *bad)}
    assert {name for name, answer in answers.items() if answer.status_code == 200} == set(good)
    for name in bad:
        assert answers[name].status_code == 400
        assert "--allowed-host" in answers[name].json()["detail"]


@pytest.mark.parametrize(
    ("site", "origin", "host", "refused"),
    [
        ("cross-site", "http://localhost:7860", "localhost:7860", True),
        (None, "https://evil.example", "localhost:7860", True),
        (None, "null", "localhost:7860", True),
        (None, "http://[", "localhost:7860", True),
        ("same-site", "http://localhost:3000", "localhost:7860", True),  # whoever listens there
        (None, "http://localhost", "localhost:7860", True),
        (None, "http://localhost:7860", "localhost", True),
        ("same-origin", "http://localhost:7860", "localhost:7860", False),
        (None, "http://[::1]:7860", "[::1]:7860", False),
        (None, "https://localhost", "localhost:443", False),
        (None, "https://localhost", "localhost", False),  # a proxy has the certificate
        (None, None, "localhost", False),  # curl
    ],
)
def test_what_another_site_makes_a_browser_send_is_refused(
    site: str | None, origin: str | None, host: str, refused: bool
) -> None:
    sent = {"Host": host, "Sec-Fetch-Site": site, "Origin": origin}
    headers = {name: value for name, value in sent.items() if value is not None}
    app = RequestContext(Access(Inside()), Metrics())
    answer = ask(app, "/api/caption", method="POST", headers=headers)
    assert answer.status_code == (403 if refused else 200)
    assert not refused or answer.json()["type"] == "cross-site"
    assert ask(app, "/metrics", headers=headers).status_code == 200  # a link to the page


def logged(inside: Any, metrics: Metrics, **options: Any) -> RequestContext:
    return RequestContext(inside, metrics, routes=[Route("/api/caption", inside)], **options)


def count(metrics: Metrics, status: int) -> bool:
    line = f'captioner_requests_total{{route="/api/caption",status="{status}"}} 1.0'
    return line in metrics.exposition().decode()


def test_every_answer_has_the_security_headers(server: Server) -> None:
    for route in ("/", "/api/health", "/metrics", "/docs", "/nonsense", "/gradio_api/info"):
        headers = httpx.get(server.url + route, timeout=300).headers
        policy = headers["content-security-policy"]  # no other host
        assert policy.startswith("default-src 'self'; ") and not set("*.") & set(policy)
        assert "frame-ancestors 'self'" in policy
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-frame-options"] == "SAMEORIGIN"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers


def test_another_site_shows_the_page_in_a_frame_where_it_may() -> None:
    sites = ("https://huggingface.co", "http://localhost:3000", "https://*.hf.space:*")
    headers = ask(RequestContext(Inside(), Metrics(), frame_ancestors=sites)).headers
    policy = headers["content-security-policy"]
    assert policy.endswith(f"; frame-ancestors 'self' {' '.join(sites)}")
    assert "x-frame-options" not in headers


def test_scripts_are_kept_by_browsers_and_asked_for_anew(api: httpx.Client) -> None:
    script, sample = map(api.get, ("/page/static/sentence.js", "/page/samples/coffee"))
    for found in (script, sample):
        assert found.headers["cache-control"] == "no-cache"  # kept, and never used unasked
    known = {"If-None-Match": script.headers["etag"]}
    assert api.get("/page/static/sentence.js", headers=known).status_code == 304
    assert sample.content == (SAMPLES / "coffee.jpg").read_bytes() and sample.headers["etag"]
    lasting = re.search(r"assets/[\w./-]+\.js", api.get("/").text)
    assert lasting is not None
    answer = api.get(f"/{lasting[0]}")
    assert answer.status_code == 200 and answer.headers.get("cache-control") != "no-store"


def test_gradio_reflects_no_foreign_origin(api: httpx.Client) -> None:
    for path in ("/config", "/gradio_api/info", "/", "/api/health"):
        headers = api.get(path, headers={"Origin": "https://evil.example"}).headers
        assert not [name for name in headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/caption", 405),
        ("POST", "/api/caption/", 404),
        ("GET", "/page/samples/none", 404),
        ("GET", "/static/%2e%2e/%2e%2e/x", 404),
        ("GET", "/gradio_api/proxy=http://localhost", 404),
        ("GET", "/gradio_api/file=/etc/passwd", 404),
        ("POST", "/gradio_api/run/caption", 404),
    ],
)
def test_what_is_not_there_is_a_problem_too(
    api: httpx.Client, method: str, path: str, status: int
) -> None:
    answer = api.request(method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["cache-control"] == "no-store"
    assert status != 405 or ("POST" if method == "GET" else "GET") in answer.headers["allow"]
    assert api.head("/api/health").status_code == 200


@pytest.mark.parametrize("inside", [Inside(KeyError("x")), Inside(MemoryError())])
def test_every_failure_is_a_problem_document(
    inside: Inside, caplog: pytest.LogCaptureFixture
) -> None:
    short = isinstance(inside.error, MemoryError)
    status, kind = (503, "out-of-memory") if short else (500, "internal-error")
    metrics, said = Metrics(), []
    with caplog.at_level(logging.CRITICAL):
        answer = ask(logged(inside, metrics, say=said.append), "/api/caption", method="POST")
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"] == kind
    assert count(metrics, status)
    assert said == [f"127.0.0.1 POST /api/caption: {status}"]


def test_the_log_has_milliseconds_and_bytes_of_the_whole_answer(tmp_path: Any) -> None:
    async def parts() -> AsyncIterator[str]:
        yield "ab"
        await asyncio.sleep(0.05)
        yield "cde"

    metrics = Metrics()
    with (tmp_path / "log").open("w") as stream:
        inside = Inside(answer=StreamingResponse(parts()))
        ask(logged(inside, metrics, log=stream), "/api/caption")
    line = json.loads((tmp_path / "log").read_text())
    assert line["bytes"] == 5 and line["ms"] >= 50
    name = r'captioner_request_seconds_sum\{route="/api/caption"\} (\S+)'
    (seconds,) = re.findall(name, metrics.exposition().decode())
    assert 1000 * float(seconds) == pytest.approx(line["ms"], abs=0.1)


def test_a_full_disk_beneath_the_logs_fails_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    full = open("/dev/full", "w")  # noqa: PTH123, SIM115 - that it cannot be flushed is the point
    monkeypatch.setattr("sys.stderr", full)
    app = RequestContext(PlainTextResponse("fine"), Metrics(), log=full, say=_say)
    try:
        assert ask(app).status_code == 200
        _say("captioned a photo")
    finally:
        with contextlib.suppress(OSError):
            full.close()
