"""The server under attack: do honest photos come through, and does it come back to rest?

    python tests/benchmarks/soak.py [--minutes 20] [--clients 32] [--hostile 8]

First the honest clients alone, for a fifth of the time, which is their idle latency; then all of
them together, the hostile ones with every attack in turn: photos that are small on disk and large
or slow to decode, uploads that stall, heads that never end, calls of nested lists, uploads that
fill the store, clients that leave, guesses of names and hosts. A server on this machine, started
here, on the same cores; nothing is sent to any other address.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import random
import statistics
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

from PIL import Image

from captioner.bundled import sample_photos
from tests.serving.server.conftest import Server, serve
from tests.serving.server.test_attacks import huge_tile, many_scans
from tests.serving.server.test_bad_uploads import png

BOUNDARY = "soak"
RETRIES = 20  # of a 503, as Retry-After asks; then the photo counts as lost


@dataclass
class Tally:
    """What became of the honest photos, and how many attacks there were."""

    seconds: list[float] = field(default_factory=list)
    refused: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    attacks: Counter[str] = field(default_factory=Counter)


class Target:
    """The server as a client sees it."""

    def __init__(self, server: Server) -> None:
        where = urlsplit(server.url)
        self.host, self.port = str(where.hostname), int(where.port or 80)

    async def exchange(self, data: bytes, *, patience: float = 120) -> bytes:
        """Send a request on a connection of its own, and read its whole answer."""
        async with asyncio.timeout(patience):
            reader, writer = await asyncio.open_connection(self.host, self.port)
            try:
                writer.write(data)
                return await reader.read()
            finally:
                writer.close()

    async def hold(self, data: bytes, seconds: float) -> None:
        """Send the beginning of a request, and no more."""
        _, writer = await asyncio.open_connection(self.host, self.port)
        try:
            writer.write(data)
            await asyncio.sleep(seconds)
        finally:
            writer.close()

    def head(self, method: str, path: str, length: int, *headers: str) -> bytes:
        """The head of a request that closes its connection."""
        lines = (
            f"{method} {path} HTTP/1.1",
            f"Host: {self.host}:{self.port}",
            f"Content-Length: {length}",
            "Connection: close",
            *headers,
        )
        return "\r\n".join((*lines, "", "")).encode()

    def upload(self, photo: bytes, path: str = "/api/caption", name: str = "image") -> bytes:
        """A whole request with a photo."""
        part = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"; filename="x.jpg"'
        body = f"{part}\r\n\r\n".encode() + photo + f"\r\n--{BOUNDARY}--\r\n".encode()
        kind = f"Content-Type: multipart/form-data; boundary={BOUNDARY}"
        return self.head("POST", path, len(body), kind) + body


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--hostile", type=int, default=8)
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between honest photos")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, serve(Path(folder), "--keep", 30) as server:
        asyncio.run(soak(server, arguments))


async def soak(server: Server, arguments: argparse.Namespace) -> None:
    """Run both parts and print what was found."""
    target, seconds = Target(server), 60 * arguments.minutes
    honest = arguments.clients - arguments.hostile
    await run(target, arguments, honest=honest, hostile=0, seconds=5)  # warm up
    alone = await run(target, arguments, honest=honest, hostile=0, seconds=seconds / 5)
    await asyncio.sleep(35)
    before = memory(server)
    workers = processes(server)
    attacked = await run(
        target, arguments, honest=honest, hostile=arguments.hostile, seconds=seconds * 4 / 5
    )
    await asyncio.sleep(50)  # uploads are kept for 30 s, and swept every 20
    after = memory(server)
    answer = await target.exchange(target.head("GET", "/api/health", 0))
    print(f"{os.cpu_count()} cores, bundled checkpoint, {honest} honest clients, one photo a time "
          f"with {arguments.pause:g} s between, {arguments.hostile} hostile ones")  # fmt: skip
    report("honest alone", alone)
    report("under attack", attacked)
    ratio = statistics.median(attacked.seconds) / statistics.median(alone.seconds)
    print(f"median latency under attack / alone: {ratio:.2f} (target: at most 3)")
    print(f"attacks: {dict(sorted(attacked.attacks.items()))}")
    print(f"memory of the server: {before:.0f} MB before, {after:.0f} MB after, "
          f"{after / before:.2f} (target: at most 1.10)")  # fmt: skip
    restarts = len(processes(server) - workers)
    print(f"the server {'ended' if server.process.poll() is not None else 'runs on'}; "
          f"{restarts} decoding processes replaced; health {answer[9:12].decode()}")  # fmt: skip
    failures = [line for line in server.lines if "Traceback" in line or "Error" in line]
    print(f"tracebacks and errors in its log: {len(failures)} {failures[:3]}")


def report(name: str, tally: Tally) -> None:
    ordered = sorted(tally.seconds)
    late = ordered[int(0.95 * len(ordered))]
    print(f"{name}: {len(ordered)} photos, median {1000 * statistics.median(ordered):.0f} ms, "
          f"95 % within {1000 * late:.0f} ms, slowest {ordered[-1]:.1f} s; "
          f"{tally.refused} asked to come again, {tally.lost.total()} lost "
          f"{dict(tally.lost) or ''}")  # fmt: skip


async def run(
    target: Target, arguments: argparse.Namespace, *, honest: int, hostile: int, seconds: float
) -> Tally:
    """Let clients loose for a while."""
    tally, deadline = Tally(), time.monotonic() + seconds
    photos = honest_photos()
    attacks = make_attacks(target)

    async def ask(number: int) -> None:
        for turn in count(number):
            if time.monotonic() > deadline:
                return
            await ask_once(target, photos[turn % len(photos)], tally)
            await asyncio.sleep(arguments.pause * random.uniform(0.5, 1.5))

    async def attack(number: int) -> None:
        for turn in count(number):
            if time.monotonic() > deadline:
                return
            name = list(attacks)[turn % len(attacks)]
            tally.attacks[name] += 1
            try:
                await attacks[name]()
            except (OSError, TimeoutError):
                await asyncio.sleep(0.05)  # it was refused; the next one

    await asyncio.gather(*map(ask, range(honest)), *map(attack, range(hostile)))
    return tally


async def ask_once(target: Target, photo: bytes, tally: Tally) -> None:
    """Send a photo until it is captioned, as often as the server asks for it."""
    started = time.monotonic()
    for _ in range(RETRIES):
        try:
            answer = await target.exchange(target.upload(photo))
        except (OSError, TimeoutError) as error:
            tally.lost[type(error).__name__] += 1
            return
        if answer.startswith(b"HTTP/1.1 200") and b'"caption"' in answer:
            tally.seconds.append(time.monotonic() - started)
            return
        if not answer.startswith(b"HTTP/1.1 503"):
            tally.lost[answer[9:12].decode() or "nothing"] += 1
            return
        tally.refused += 1
        await asyncio.sleep(1)
    tally.lost["503"] += 1


def honest_photos() -> list[bytes]:
    """What people send: the samples, one of 12 megapixels, a screenshot, a progressive one."""
    photos = [path.read_bytes() for path in sample_photos().values()] * 3
    large = Image.open(io.BytesIO(photos[0])).resize((4000, 3000))
    for format, options in (("JPEG", {}), ("JPEG", {"progressive": True}), ("PNG", {})):
        image = large if not options and format == "JPEG" else large.resize((1000, 750))
        image.save(buffer := io.BytesIO(), format, **options)
        photos.append(buffer.getvalue())
    return photos


def make_attacks(target: Target) -> dict[str, Callable[[], Awaitable[object]]]:
    """Every attack by its name."""
    sent = {
        "many scans": many_scans(3000),
        "ninety scans": many_scans(90),
        "huge tile": huge_tile(),
        "100 megapixels": png(9_990, 10_000, zlib.compress(bytes(9_990 * 3 + 1) * 10_000, 9)),
        "a bomb": png(60_000, 60_000),
        "cut off": many_scans(50)[:5000],
        "19 MB of nothing": bytes(19_000_000),
    }
    join = json.dumps({"data": [[[]] * 4000, 1, 1], "fn_index": 0, "session_hash": "s"}).encode()
    kind = "Content-Type: application/json"
    call = target.head("POST", "/gradio_api/queue/join", len(join), kind) + join
    begun = target.upload(bytes(18_000_000))[:-5000]
    photo = target.upload(next(iter(sample_photos().values())).read_bytes())
    evil = target.head("POST", "/api/caption", 0, "Sec-Fetch-Site: cross-site")
    stream = f"GET /gradio_api/heartbeat/x{random.random()} HTTP/1.1\r\nHost: localhost\r\n\r\n"

    async def many(data: bytes, times: int, seconds: float) -> None:
        await asyncio.gather(*(target.hold(data, seconds) for _ in range(times)))

    return {
        **{name: lambda data=data: target.exchange(target.upload(data))
           for name, data in sent.items()},
        "stalled upload": lambda: target.hold(begun, 20),
        "head without end": lambda: many(b"GET / HTTP/1.1\r\nHost: ", 50, 5),
        "silent connections": lambda: many(b"", 100, 5),
        "streams": lambda: many(stream.encode(), 40, 5),
        "nested call": lambda: target.exchange(call),
        "upload for the store": lambda: target.exchange(
            target.upload(os.urandom(5_000_000), "/gradio_api/upload", "files")
        ),
        "leaves": lambda: target.hold(photo, 0.01),
        "health probes": lambda: asyncio.gather(
            *(target.exchange(target.head("GET", "/api/health", 0)) for _ in range(20))
        ),
        "another site": lambda: target.exchange(evil),
        "no such path": lambda: target.exchange(target.head("GET", f"/x{random.random()}", 0)),
    }  # fmt: skip


def memory(server: Server) -> float:
    """Megabytes of the server's own process; its decoders hold one photo at most."""
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def processes(server: Server) -> set[int]:
    """The decoding processes."""
    tasks = Path(f"/proc/{server.process.pid}/task").glob("*/children")
    return {int(pid) for task in tasks for pid in task.read_text().split()}


if __name__ == "__main__":
    main()
