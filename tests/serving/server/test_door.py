"""Who a request is from, what it is for, and what becomes of it when something fails."""

from __future__ import annotations

import json
import logging
from typing import Any

import httpx
import pytest
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from captioner.checkpoint import Checkpoint
from captioner.errors import ConfigError
from captioner.predictor import Captioner
from captioner_serving.server.addresses import whole_client
from captioner_serving.server.config import ServerConfig
from captioner_serving.server.door import Door
from captioner_serving.server.log import AccessLog
from captioner_serving.server.metrics import Metrics
from captioner_serving.server.routes import visit_of
from tests.serving.server.conftest import run_async
from tests.serving.server.running import serving


class Inside:
    """What stands behind the door: keeps the last scope, and does as it is told."""

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


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("127.0.0.1", "203.0.113.9", "203.0.113.9"),
        ("127.0.0.1", "1.1.1.1, 203.0.113.9", "203.0.113.9"),  # what is before it anybody may say
        ("127.0.0.1", "203.0.113.9, 10.1.2.3", "203.0.113.9"),  # two proxies of ours
        ("127.0.0.1", "nonsense", "127.0.0.1"),
        ("203.0.113.7", "198.51.100.1", "203.0.113.7"),  # a stranger who says that he is a proxy
    ],
)
def test_only_a_trusted_proxy_says_who_its_client_is(
    peer: str, forwarded: str, client: str
) -> None:
    inside = Inside()
    door = Door(inside, root_path="", trusted_proxies=["127.0.0.1", "10.0.0.0/8"])
    headers = {"X-Forwarded-For": forwarded, "X-Forwarded-Proto": "https"}
    ask(door, peer=peer, headers={**headers, "X-Forwarded-Host": "evil.example"})
    assert inside.scope["client"][0] == client
    assert inside.scope["scheme"] == ("http" if peer.startswith("203") else "https")
    assert not [name for name, _ in inside.scope["headers"] if b"forwarded" in name]


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("captioner_page=Az-_09", ["captioner_page=Az-_09"]),
        ('a="\\073"; captioner_page=mine; b=c', ["captioner_page=mine"]),
        ("a=b;captioner_page=mine", ["captioner_page=mine"]),
        ("not_captioner_page=theirs; a=captioner_page=theirs", []),
        ('captioner_page="quoted"', []),
        (f"captioner_page={'x' * 65}", []),
        ('captioner_page="' + "\\" * 60_000 + '"', []),
    ],
)
def test_no_cookie_comes_in_but_our_own(sent: str, kept: list[str]) -> None:
    """Python's reader of cookies takes minutes for the last one: so would this test."""
    inside = Inside()
    ask(Door(inside, root_path="", trusted_proxies=[]), headers={"Cookie": sent})
    assert [value.decode() for name, value in inside.scope["headers"] if name == b"cookie"] == kept


def test_nobody_is_trusted_by_default() -> None:
    inside = Inside()
    ask(Door(inside, root_path="", trusted_proxies=[]), headers={"X-Forwarded-For": "203.0.113.9"})
    assert inside.scope["client"][0] == "127.0.0.1"


def test_a_proxy_that_is_no_address_is_refused() -> None:
    with pytest.raises(ConfigError, match="--trusted-proxy: 'nginx'"):
        Door(Inside(), root_path="", trusted_proxies=["nginx"])


def test_ipv6_clients_are_counted_by_their_network() -> None:
    assert whole_client("2001:db8:1:2::1") == whole_client("2001:db8:1:2:ffff::9")
    assert whole_client("2001:db8:1:2::1") != whole_client("2001:db8:1:3::1")
    assert whole_client("::ffff:203.0.113.9") == "203.0.113.9" != whole_client("203.0.113.8")


@pytest.mark.parametrize("prefix", ["", "/photos/words"])
@pytest.mark.parametrize(
    ("path", "name", "shown"),
    [
        ("/api/caption", "/api/caption", "/api/caption"),
        ("/page/captions/token/photo.jpg", "/page/captions", "/page/captions/..."),
        ("/gradio_api/file=/tmp/x/IMG_1.jpg", "/gradio_api/file", "/gradio_api/file=..."),
        ("/gradio_api/heartbeat/abc", "/gradio_api/heartbeat", "/gradio_api/heartbeat/..."),
        ("/assets/index.js", "/assets", "/assets/index.js"),
        ("/", "/", "/"),
        ("/nonsense/IMG_1.jpg", None, "/nonsense/..."),
        ("/photos/wordsmith/api/caption", None, "/photos/..."),
    ],
)
def test_one_table_names_every_request_below_any_prefix(
    prefix: str, path: str, name: str | None, shown: str
) -> None:
    inside = Inside()
    ask(Door(inside, root_path="/photos/words", trusted_proxies=[]), prefix + path)
    visit = visit_of(inside.scope)
    assert (visit.route.name if visit.route else None) == name
    assert visit.shown_path == shown
    assert inside.scope["path"] == "/photos/words" + path  # and FastAPI takes it off once


NAMES = {
    # where it listens: names that it answers for, and names that it does not
    "127.0.0.1": (["localhost", "127.0.0.1:7860", "[::1]:7860", "Captions.example.org:443",
                   "a.pages.example.org", "192.168.7.7:80", "[fd00::7]:7860", "a.localhost:80"],
                  ["evil.example", "192.168.1.5", "localhost.evil.example", "example.org", "",
                   "evilpages.example.org", "pages.example.org", "evillocalhost"]),
    "0.0.0.0": (["192.168.1.5:7860", "localhost"], ["evil.example", "192.168.1.5.evil.example"]),
}  # fmt: skip


@pytest.mark.parametrize("listens", NAMES)
def test_the_server_answers_for_its_own_names(listens: str, tiny_checkpoint: Checkpoint) -> None:
    allowed = ("captions.example.org", "*.pages.example.org", "192.168.7.7", "fd00::7")
    config = ServerConfig(host=listens, allowed_hosts=allowed)
    good, bad = NAMES[listens]
    with serving(Captioner(tiny_checkpoint), config) as url, httpx.Client(base_url=url) as client:
        answers = {name: client.get("/metrics", headers={"Host": name}) for name in (*good, *bad)}
    assert {name for name, answer in answers.items() if answer.status_code == 200} == set(good)
    for name in bad:
        assert answers[name].status_code == 421, name
        assert (
            answers[name].json()["type"] == "wrong-host" and "--allowed-host" in answers[name].text
        )


@pytest.mark.parametrize(
    ("site", "origin", "host", "refused"),
    [
        ("cross-site", None, "localhost:7860", True),
        ("cross-site", "http://localhost:7860", "localhost:7860", True),
        (None, "https://evil.example", "localhost:7860", True),
        (None, "null", "localhost:7860", True),
        (None, "http://[", "localhost:7860", True),
        ("same-site", "https://evil.localhost", "localhost:7860", True),
        ("same-site", "http://localhost:3000", "localhost:7860", True),  # whoever listens there
        (None, "http://localhost:3000", "localhost:7860", True),
        (None, "http://localhost", "localhost:7860", True),
        (None, "http://localhost:7860", "localhost", True),
        ("same-origin", "http://localhost:7860", "localhost:7860", False),
        (None, "http://localhost:7860", "localhost:7860", False),
        (None, "http://[::1]:7860", "[::1]:7860", False),
        (None, "http://localhost", "localhost:80", False),
        (None, "https://localhost", "localhost", False),  # a proxy has the certificate
        (None, None, "localhost", False),  # curl
    ],
)
def test_what_another_site_makes_a_browser_send_is_refused(
    api: httpx.Client, site: str | None, origin: str | None, host: str, refused: bool
) -> None:
    sent = {"Host": host, "Sec-Fetch-Site": site, "Origin": origin}
    headers = {name: value for name, value in sent.items() if value is not None}
    answer = api.post("/api/caption", headers=headers)
    assert answer.json()["type"] == ("cross-site" if refused else "media-type")
    assert api.get("/metrics", headers=headers).status_code == 200  # a link to the page


def test_a_websocket_ends_at_the_door() -> None:
    """Behind it nobody asks one for its password."""
    inside, sent = Inside(), []

    async def send(message: Any) -> None:
        sent.append(message)

    door = Door(inside, root_path="", trusted_proxies=[])
    run_async(door({"type": "websocket", "path": "/", "headers": []}, nobody, send))
    assert sent == [{"type": "websocket.close"}] and not inside.scope


def logged(inside: Any, *, metrics: Metrics, stream: Any = None, said: Any = None) -> Door:
    say = (said if said is not None else []).append
    return Door(AccessLog(inside, metrics, stream, say), root_path="", trusted_proxies=[])


def count(metrics: Metrics, status: int) -> bool:
    line = f'captioner_requests_total{{route="/api/caption",status="{status}"}} 1.0'
    return line in metrics.exposition().decode()


@pytest.mark.parametrize(
    "inside",
    [
        Inside(KeyError("x")),
        Inside(answer=PlainTextResponse("Internal Server Error", 500)),
        Inside(MemoryError()),
    ],
    ids=["raised", "answered", "memory"],
)
def test_every_failure_is_a_problem_document(
    inside: Inside, caplog: pytest.LogCaptureFixture
) -> None:
    short = isinstance(inside.error, MemoryError)
    status, kind = (503, "out-of-memory") if short else (500, "internal-error")
    metrics, said = Metrics(), []
    with caplog.at_level(logging.CRITICAL):
        answer = ask(logged(inside, metrics=metrics, said=said), "/api/caption", method="POST")
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"] == kind
    assert count(metrics, status)
    assert said == [f"127.0.0.1 POST /api/caption: {status}"]


async def nobody(*_: Any) -> Any:
    raise AssertionError("nobody is there to hear or say anything")


class Disappointed(Inside):
    """As Starlette does, it answers what it did not expect with 500, and raises it again."""

    async def __call__(self, *call: Any) -> None:
        await PlainTextResponse("Internal Server Error", 500)(*call)
        raise ClientDisconnect


@pytest.mark.parametrize("inside", [Inside(ClientDisconnect()), Disappointed()])
def test_a_client_that_left_while_it_sent_is_499(tmp_path: Any, inside: Inside) -> None:
    metrics = Metrics()
    with (tmp_path / "log").open("w") as stream:
        app = logged(inside, metrics=metrics, stream=stream)
        scope = {"type": "http", "scheme": "http", "path": "/api/caption", "method": "POST"}
        run_async(app({**scope, "headers": []}, nobody, nobody))
    assert count(metrics, 499)
    assert json.loads((tmp_path / "log").read_text())["status"] == 499
