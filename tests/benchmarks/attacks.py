"""Clients of a server, honest and hostile, over connections of their own."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import random
import secrets
from collections.abc import Awaitable, Callable
from functools import cache
from urllib.parse import urlsplit

from PIL import Image

from captioner.shared.paths import sample_photos
from tests.captioner import bombs
from tests.captioner.pictures import png
from tests.serving.server.test_limits import huge_tile, many_scans

__all__ = ["TOKEN", "Client", "honest_photos", "hostile_photos", "make_attacks"]

TOKEN = "soak-under-attack"
_AUTHORIZATION = f"Authorization: Bearer {TOKEN}"
_BOUNDARY = "soak"

Attack = Callable[[], Awaitable[object]]


class Client:
    """Somebody at an address of this machine.

    Args:
        url: of the server, or of a proxy before it, with the path at which it shows the server.
        address: 127.x.y.z, by which the server knows its clients.
    """

    def __init__(self, url: str, address: str) -> None:
        where = urlsplit(url)
        self.host, self.port = str(where.hostname), int(where.port or 80)
        self.address, self.prefix = address, where.path.rstrip("/")

    async def exchange(self, data: bytes, *, patience: float = 120) -> bytes:
        """Send a request, and read its whole answer."""
        async with asyncio.timeout(patience):
            reader, writer = await self._connect()
            try:
                writer.write(data)
                return await reader.read()
            finally:
                writer.transport.abort()

    async def hold(self, data: bytes, seconds: float, *, drip: bytes = b"") -> None:
        """Send the beginning of a request, take no answer, and send no more than drops."""
        _, writer = await self._connect(limit=1)
        try:
            writer.write(data)
            for _ in range(round(seconds)):
                await asyncio.sleep(seconds / max(1, round(seconds)))
                writer.write(drip)
        finally:
            writer.transport.abort()

    async def hold_many(self, data: bytes, times: int, seconds: float) -> None:
        """Do this on many connections at once."""
        held = (self.hold(data, seconds) for _ in range(times))
        await asyncio.gather(*held, return_exceptions=True)

    async def _connect(
        self, limit: int = 1 << 16
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(
            self.host, self.port, local_addr=(self.address, 0), limit=limit
        )

    def head(self, method: str, path: str, length: int = 0, *headers: str) -> bytes:
        """Make the head of a request that closes its connection."""
        named = {header.split(":")[0] for header in headers}
        lines = (
            f"{method} {self.prefix}{path} HTTP/1.1",
            *(() if "Host" in named else (f"Host: {self.host}:{self.port}",)),
            *(() if "Authorization" in named else (_AUTHORIZATION,)),
            f"Content-Length: {length}",
            "Connection: close",
            *headers,
        )
        return "\r\n".join((*lines, "", "")).encode()

    def upload(
        self, photo: bytes, path: str = "/api/caption", name: str = "image", **fields: object
    ) -> bytes:
        """Make a whole request with a photo."""
        part = f"--{_BOUNDARY}\r\nContent-Disposition: form-data; name="
        texts = "".join(f'{part}"{key}"\r\n\r\n{value}\r\n' for key, value in fields.items())
        body = f'{texts}{part}"{name}"; filename="x.jpg"\r\n\r\n'.encode() + photo
        body += f"\r\n--{_BOUNDARY}--\r\n".encode()
        kind = f"Content-Type: multipart/form-data; boundary={_BOUNDARY}"
        return self.head("POST", path, len(body), kind) + body

    def files(self, count: int) -> bytes:
        """Make an upload to Gradio with many files."""
        part = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="files"; filename="x.jpg"'
        body = f"{part}\r\n\r\nx\r\n" * count + f"--{_BOUNDARY}--\r\n"
        kind = f"Content-Type: multipart/form-data; boundary={_BOUNDARY}"
        return self.head("POST", "/gradio_api/upload", len(body), kind) + body.encode()

    def post(self, path: str, value: object) -> bytes:
        """Make a request with JSON."""
        body = json.dumps(value).encode()
        return self.head("POST", path, len(body), "Content-Type: application/json") + body

    def call(self, data: object, session: str) -> bytes:
        """Make a call of a function of the page."""
        value = {"data": data, "fn_index": 0, "session_hash": session}
        return self.post("/gradio_api/queue/join", value)


@cache
def honest_photos() -> list[bytes]:
    """What people send: the samples, one of 12 megapixels, a screenshot, a progressive one."""
    photos = [path.read_bytes() for path in sample_photos().values()] * 3
    large = Image.open(io.BytesIO(photos[0])).resize((4000, 3000))
    small = large.resize((1000, 750))
    for image, format, options in (
        (large, "JPEG", {}), (small, "JPEG", {"progressive": True}), (small, "PNG", {}),
    ):  # fmt: skip
        image.save(buffer := io.BytesIO(), format, **options)
        photos.append(buffer.getvalue())
    return photos


def hostile_photos() -> dict[str, bytes]:
    """Photos that are small on disk, and large or slow to decode, or none at all."""
    flat = Image.new("L", (9_990, 10_000))
    flat.save(gif := io.BytesIO(), "GIF")
    flat.save(tiff := io.BytesIO(), "TIFF", compression="tiff_lzw")
    return {
        "many scans": many_scans(3000),
        "ninety scans": many_scans(90),
        "huge tile": huge_tile(),
        "PNG of 100 megapixels": png(9_990, 10_000, bytes(9_990 * 3 + 1) * 10_000),
        "GIF of 100 megapixels": gif.getvalue(),
        "TIFF of 100 megapixels": tiff.getvalue(),
        "a bomb": png(60_000, 60_000),
        "cut off": many_scans(50)[:5000],
        "19 MB of nothing": bytes(19_000_000),
        "19 MB of segments": b"\xff\xd8" + b"\xff\xfe\0\2" * 4_700_000,
        **{f"metadata bomb: {name}": bombs.make(name) for name in bombs.MAKERS},
    }


def make_attacks(client: Client, photos: dict[str, bytes]) -> dict[str, Attack]:
    """Every attack by its name, as one client makes it."""
    wasted = os.urandom(5_000_000)
    begun = client.upload(bytes(18_000_000))[:-5000]
    photo = client.upload(honest_photos()[0])
    asset = client.head("GET", "/static-offline-docs/swagger-ui-bundle.js")
    backslashes = "\\" * 50_000
    prompt = client.post("/api/generate", {"prompt": "a, " * 6_000_000})
    coded = base64.b64encode(honest_photos()[0] + bytes(14_000_000)).decode()
    costly = client.upload(honest_photos()[0], beam_size=20, captions=20, check_attention="true")
    stream = client.head("GET", f"/gradio_api/queue/data?session_hash={secrets.token_hex(4)}")
    guesser = Client(f"http://{client.host}:{client.port}{client.prefix}", "127.0.3.1")

    async def guess() -> None:
        wrong = base64.b64encode(f"soak:{random.random()}".encode()).decode()
        asked = guesser.head("GET", "/metrics", 0, f"Authorization: Basic {wrong}")
        await guesser.exchange(asked)

    async def several(requests: list[bytes]) -> None:
        await asyncio.gather(*map(client.exchange, requests))

    return {
        **{
            name: lambda data=data: client.exchange(client.upload(data))
            for name, data in photos.items()
        },
        "token guesses": guess,
        "prompts of 18 MB": lambda: several([prompt] * 3),
        "photos of 14 MB in base64": lambda: several(
            [client.post("/api/generate", {"images": [coded]})] * 3
        ),
        "999 files in an upload": lambda: client.exchange(client.files(999)),
        "style of a megabyte": lambda: client.exchange(client.upload(b"x", style="x" * 1_000_000)),
        "pictures": lambda: _pictures(client, honest_photos()[-3], taken=True),
        "pictures that nobody takes": lambda: _pictures(client, honest_photos()[0], taken=False),
        "pictures of a large photo": lambda: _pictures(
            client, photos["PNG of 100 megapixels"], taken=True
        ),
        "answers that nobody takes": lambda: client.hold_many(asset, 50, 5),
        "stalled upload": lambda: client.hold(begun, 20),
        "dripping upload": lambda: client.hold(begun[:-100_000], 20, drip=b"x"),
        "head without end": lambda: client.hold_many(b"GET / HTTP/1.1\r\nHost: ", 50, 5),
        "silent connections": lambda: client.hold_many(b"", 100, 5),
        "streams": lambda: client.hold_many(stream, 40, 5),
        "nested call": lambda: client.exchange(client.call([[[]] * 4000, 1, 1], "s")),
        "calls": lambda: _calls(client),
        "text for an image": lambda: client.exchange(client.call(["x"], "s")),
        "results of nobody": lambda: client.exchange(
            client.head("GET", "/gradio_api/queue/data?session_hash=nobody")
        ),
        "costly photos": lambda: several([costly] * 4),
        "upload that nobody captions": lambda: client.exchange(
            client.upload(wasted, "/gradio_api/upload", "files")
        ),
        "leaves": lambda: client.hold(photo, 0.01),
        "health probes": lambda: several([client.head("GET", "/api/health")] * 20),
        "another site": lambda: client.exchange(
            client.head("POST", "/api/caption", 0, "Sec-Fetch-Site: cross-site")
        ),
        "another name": lambda: client.exchange(client.head("GET", "/", 0, "Host: evil.example")),
        "no such path": lambda: client.exchange(client.head("GET", f"/x{random.random()}")),
        "a cookie of backslashes": lambda: client.exchange(
            client.head("GET", "/metrics", 0, f'Cookie: a="{backslashes}"')
        ),
        "another port": lambda: client.exchange(
            client.head("POST", "/api/caption", 0, "Origin: http://127.0.0.1:3000")
        ),
        "two lengths": lambda: client.exchange(
            client.head("POST", "/api/caption", 5, "Transfer-Encoding: chunked") + b"0\r\n\r\n"
        ),
        "no HTTP": lambda: client.exchange(b"\0" * 100 + b"\r\n\r\n"),
    }


async def _pictures(client: Client, data: bytes, *, taken: bool) -> None:
    """Request all pictures of a photo, to take them or not."""
    paths = ("/api/overlay", "/api/sheet", "/api/animation") * 8
    requests = [client.upload(data, path) for path in paths]
    take = client.exchange if taken else lambda request: client.hold(request, 10)
    await asyncio.gather(*map(take, requests), return_exceptions=True)


async def _calls(client: Client) -> None:
    """Many calls of one session and of many, whose results nobody fetches."""
    stored = await client.exchange(client.upload(honest_photos()[0], "/gradio_api/upload", "files"))
    _, _, body = stored.partition(b"\r\n\r\n")
    (path,) = json.loads(body)
    values = [{"path": path}, None, 1, False, False, None, None]
    for number in range(20):
        await client.exchange(client.call(values, "one"))
        await client.exchange(client.call(values, f"{number}{random.random()}"))
