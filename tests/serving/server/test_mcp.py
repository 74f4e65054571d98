"""An assistant's way in: the mcp package's own client, over a socket."""

from __future__ import annotations

import base64
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import mcp
import pytest
from mcp.client.streamable_http import streamable_http_client

from captioner import __version__
from captioner.caption import Caption
from captioner.captioner import Captioner
from captioner_serving.server import service
from captioner_serving.server.config import ServerConfig
from captioner_serving.server.mcp import describe
from captioner_serving.server.urls import WebPhoto
from tests.serving.server.conftest import SAMPLES, run_async
from tests.serving.server.running import serving
from tests.web import hosting

PHOTO = (SAMPLES / "coffee.jpg").read_bytes()
CODED = base64.b64encode(PHOTO).decode()
TOKEN = "0123456789abcdef"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos that may be named, and ways out of the folder."""
    folder = tmp_path_factory.mktemp("photos") / "mine"
    folder.mkdir()
    (folder / "cup.jpg").write_bytes(PHOTO)
    (folder / "large.jpg").write_bytes(bytes(300_000))
    (folder.parent / "secret.jpg").write_bytes(PHOTO)
    (folder.parent / "mine-private").mkdir()
    (folder.parent / "mine-private" / "cup.jpg").write_bytes(PHOTO)
    (folder / "link.jpg").symlink_to("../secret.jpg")
    os.mkfifo(folder / "pipe.jpg")
    return folder


@asynccontextmanager
async def connected(url: str, **headers: str) -> AsyncIterator[tuple[mcp.ClientSession, Any]]:
    async with (
        httpx.AsyncClient(headers=headers, timeout=300) as client,
        streamable_http_client(
            f"{url}/gradio_api/mcp/", http_client=client, terminate_on_close=False
        ) as streams,
        mcp.ClientSession(*streams[:2]) as session,
    ):
        yield session, await session.initialize()


@pytest.fixture(scope="module")
def asked(saved_tiny: Path, folder: Path) -> Iterator[Callable[..., Any]]:
    """Ask something of a server that takes all but addresses."""
    config = ServerConfig(mcp=True, mcp_folder=folder, max_upload=200_000)
    captioner = Captioner.from_pretrained(saved_tiny)
    with serving(captioner, config, tokens={"desk": TOKEN}) as url:

        async def ask(work: Callable[[mcp.ClientSession], Coroutine[Any, Any, Any]]) -> Any:
            async with connected(url, Authorization=f"Bearer {TOKEN}") as (session, _):
                return await work(session)

        def run(work: Callable[[mcp.ClientSession], Coroutine[Any, Any, Any]]) -> Any:
            return run_async(ask(work))

        run.url = url  # type: ignore[attr-defined]
        yield run


def described(asked: Callable[..., Any], **arguments: str) -> tuple[str, bool]:
    answer = asked(lambda session: session.call_tool("describe_image", arguments))
    (content,) = answer.content
    return content.text, answer.isError


def test_an_assistant_gets_sentence_doubt_and_places(asked: Callable[..., Any]) -> None:
    text, failed = described(asked, image=CODED)
    assert not failed
    caption, *_, best = text.splitlines()
    with httpx.Client(base_url=asked.url, timeout=300) as web:  # type: ignore[attr-defined]
        web.headers["Authorization"] = f"Bearer {TOKEN}"
        form = {"captions": "2"}
        (record,) = web.post("/api/caption", files={"image": PHOTO}, data=form).json()["records"]
    assert caption == f"Caption: {record['caption']}."
    assert best == f"The next best sentence: {record['alternatives'][0]['caption']}."
    assert all(f"- {word['word']}: " in text for word in record["words"])
    for way in ({"image": f"data:image/jpeg;base64,{CODED}"}, {"image_path": "cup.jpg"}):
        assert described(asked, **way) == (text, False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "give exactly one of"),
        ({"image": CODED, "image_path": "cup.jpg"}, "give exactly one of"),
        ({"image": "%"}, "must be base64"),
        ({"image": base64.b64encode(bytes(200_001)).decode()}, "limit of a request is 0.2 MB"),
        ({"image_url": "https://example.org/a.jpg"}, "does not download photos"),
        ({"image_path": "../secret.jpg"}, "is not in the folder"),
        ({"image_path": "../mine-private/cup.jpg"}, "is not in the folder"),
        ({"image_path": "/etc/hostname"}, "is not in the folder"),
        ({"image_path": "link.jpg"}, "is not in the folder"),
        ({"image_path": "pipe.jpg"}, "there is no file"),
        ({"image_path": "\0"}, "cannot be read"),
        ({"image_path": "large.jpg"}, "limit of a request is 0.2 MB"),
    ],
)
def test_what_an_assistant_cannot_have_is_a_sentence(
    asked: Callable[..., Any], arguments: dict[str, str], said: str
) -> None:
    text, failed = described(asked, **arguments)
    assert failed and said in text and "\n" not in text


def test_nothing_of_gradio_is_offered_beside_the_one_function(asked: Callable[..., Any]) -> None:
    offered = asked(lambda session: session.list_tools()).tools
    assert [each.name for each in offered] == ["describe_image"]
    properties = offered[0].inputSchema["properties"]
    assert properties.keys() == {"image", "image_path"}  # what is off is not offered
    answer = asked(lambda session: session.call_tool("caption", {"image": "http://a/"}))
    assert answer.isError and "Unknown" in answer.content[0].text
    with pytest.raises(BaseException, match=r"Method not found|unhandled errors"):
        asked(lambda session: session.read_resource("http://127.0.0.1:1/"))


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"{", 400), (b"[" * 90_000, 400), (b"[" + b"1," * 90_000 + b"1]", 400),
     (b" " * 2_000_000, 413), (b"{}", 400)],
)  # fmt: skip
def test_what_is_no_call_is_refused(asked: Callable[..., Any], body: bytes, status: int) -> None:
    headers = {
        "Authorization": f"Bearer {TOKEN}",
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
    }
    address = f"{asked.url}/gradio_api/mcp/"  # type: ignore[attr-defined]
    answer = httpx.post(address, content=body, headers=headers, timeout=300)
    assert answer.status_code == status
    token = {"Authorization": headers.pop("Authorization")}
    unknown = httpx.post(address, content=body, headers=headers, timeout=300)
    assert unknown.status_code == 401 and unknown.headers["www-authenticate"].startswith("Basic ")
    assert httpx.get(address, headers=token, timeout=300).status_code == 405


@pytest.mark.parametrize("is_on", [False, True])
def test_the_tool_and_the_schema_have_what_is_on(
    saved_tiny: Path, monkeypatch: pytest.MonkeyPatch, is_on: bool
) -> None:
    """Also, a photo may have several megabytes; the mcp package's own limit is 4 MiB."""
    monkeypatch.setattr(service, "WebPhoto", partial(WebPhoto, trusted_host="127.0.0.1"))
    large = base64.b64encode(PHOTO + bytes(4_000_000)).decode()
    captioner = Captioner.from_pretrained(saved_tiny)
    config = ServerConfig(mcp=True, allow_urls=is_on)
    with serving(captioner, config) as url, hosting(SAMPLES) as web:

        async def ask() -> Any:
            async with connected(url) as (session, about):
                await session.send_ping()
                answers = [
                    await session.call_tool("describe_image", arguments)
                    for arguments in (
                        {"image_path": "cup.jpg"},
                        {"image": "", "image_url": f"{web}/coffee.jpg"},
                        {"image": large},
                    )
                ]
                texts = [answer.content[0].text for answer in answers]
                return about, (await session.list_tools()).tools[0].inputSchema, texts

        about, schema, (opened, fetched, sent) = run_async(ask())
    assert about.serverInfo.version == __version__
    assert "does not open files" in opened and sent.startswith("Caption: ")
    assert ("Caption: " if is_on else "does not download photos") in fetched
    assert schema["properties"].keys() == ({"image", "image_url"} if is_on else {"image"})
    assert schema.get("required") == (None if is_on else ["image"])


def test_mcp_is_off_by_default(api: httpx.Client) -> None:
    assert api.post("/gradio_api/mcp/", json={}).status_code in (404, 405)


def test_the_places_of_a_description_are_those_in_the_whole_photo() -> None:
    """The model saw the left third of the photo, and looked at the lower right of that."""
    attention = {"rows": 3, "columns": 3, "box": [0, 0, 1 / 3, 1], "weights": [0] * 8 + [1]}
    record = {
        "caption": "a dog runs",
        "score": -1.0,
        "trust": 0.009,
        "familiarity": 0.001,
        "words": [
            {"word": "a", "probability": 0.9, "attention": attention},
            {"word": "dog", "probability": 0.5, "trust": 0.2, "attention": attention},
            {"word": "runs", "probability": 0.5, "trust": 0.907, "attention": attention},
        ],
        "alternatives": [
            {"caption": f"a {name}", "score": -2.0, "words": [
                {"word": "a", "probability": 0.9}, {"word": name, "probability": 0.5, "trust": 0.3}
            ]} for name in ("cat", "cow")
        ],
    }  # fmt: skip
    assert describe(Caption.from_record(record)).splitlines() == [
        "Caption: a dog runs.",
        "Probability that the whole caption is right: 1%.",
        "The picture is unlike the training photos: the caption may be wrong.",
        "This may be wrong: 'dog', or 'cat'.",
        "Words, with where the model looked and the probability that they are right:",
        "- dog: bottom left, 20%, doubtful",
        "- runs: bottom left, 91%",
        "The next best sentence: a cat.",
    ]
