"""The server under attack: do honest photos come through, and does it come back to rest?

    python -m tests.benchmarks.soak \
        [--minutes 20] [--clients 32] [--hostile 8] [--proxy]

1. All clients together, hostile ones too, for 15 % of the time (at least a minute): the server
   meets everything once. Then it rests, and its memory is that "before".
2. The honest clients alone, for a tenth of the time: their latency on an idle server.
3. All of them for `--minutes`; every hostile client does every attack in turn (see attacks.py).
4. It rests again, and its memory is that "after".

The whole takes about 8 minutes more than 20. The server is started here, on the same
cores, with a token; honest clients have addresses of their own (127.0.1.x), hostile ones theirs
(127.0.2.x), and nothing is sent to any other machine. Every fourth honest client is a visitor of
the page, who hears of the queue, and then wants a sheet. With --proxy all of them come through
nginx, as examples/deploy has it; without, they attack the bare server, which does not withstand
all of it: see docs/serving.md. Memory is the proportional size (PSS) of the server with
its decoding processes. Linux only. Prints the results as JSON. The exit status is 0 if all limits
are met, else 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from tests.benchmarks.attacks import TOKEN, Client, honest_photos, hostile_photos, make_attacks
from tests.process_tree import children
from tests.serving.server.conftest import Server, serve
from tests.serving.server.proxy import nginx

KEEP = 60  # seconds that the server keeps uploads of gradio_client
REST = KEEP + 45  # it looks every half minute
RETRIES = 30  # of a 503, as Retry-After asks; then the photo counts as lost
SLOWER, LARGER = 3.0, 1.10  # the bars


@dataclass
class Tally:
    """What became of the honest photos, and how many attacks there were."""

    seconds: list[float] = field(default_factory=list)
    refused: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    attacks: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)

    def record(self) -> dict[str, Any]:
        ordered = sorted(self.seconds) or [float("nan")]
        return {
            **vars(self),
            "seconds": {"median": statistics.median(ordered), "slowest": ordered[-1]},
            "answered": len(self.seconds),
        }


class Soak:
    """The clients of one server."""

    def __init__(self, server: Server, url: str, arguments: argparse.Namespace) -> None:
        self.server, self.pause = server, arguments.pause
        self.photos, hostile = honest_photos(), hostile_photos()
        honest = range(1, arguments.clients - arguments.hostile + 1)
        self.honest = [Client(url, f"127.0.1.{number}") for number in honest]
        self.attacks = [
            make_attacks(Client(url, f"127.0.2.{number}"), hostile)
            for number in range(1, arguments.hostile + 1)
        ]

    async def run(self, seconds: float, *, attacked: bool) -> Tally:
        """Let clients loose for a while."""
        tally, deadline = Tally(), time.monotonic() + seconds
        hostile = self.attacks if attacked else []
        await asyncio.gather(
            *(self.ask(number, deadline, tally) for number in range(len(self.honest))),
            *(self.attack(number, deadline, tally) for number in range(len(hostile))),
        )
        return tally

    async def ask(self, number: int, deadline: float, tally: Tally) -> None:
        """Be an honest client: a photo, a pause, the next photo."""
        client = self.honest[number]
        await asyncio.sleep(random.uniform(0, self.pause))
        for turn in count(number):
            if (started := time.monotonic()) > deadline:
                return
            photo = self.photos[turn % len(self.photos)]
            if await self.insist(client, client.upload(photo, attention="true"), tally):
                tally.seconds.append(time.monotonic() - started)
                if number % 4 == 3:  # a visitor of the page
                    await self.insist(client, client.upload(photo, "/api/sheet"), tally)
            await asyncio.sleep(self.pause * random.uniform(0.5, 1.5))

    async def insist(self, client: Client, request: bytes, tally: Tally) -> bool:
        """Send a request, and retry while the server is busy; return whether it is answered."""
        for _ in range(RETRIES):
            try:
                answer = await client.exchange(request)
            except (OSError, TimeoutError) as error:
                tally.lost[type(error).__name__] += 1
                return False
            good = answer.startswith(b"HTTP/1.1 200")
            if good and (b'"caption"' in answer or b"image/png" in answer[:1000]):
                return True
            if not (answer.startswith(b"HTTP/1.1 503") or b'"type": "busy"' in answer):
                tally.lost[answer[9:12].decode() or "no answer"] += 1
                return False
            tally.refused += 1
            wait = re.search(rb"retry-after: (\d+)", answer, re.IGNORECASE)
            await asyncio.sleep(float(wait[1]) if wait else 1)
        tally.lost["503"] += 1
        return False

    async def attack(self, number: int, deadline: float, tally: Tally) -> None:
        """Be a hostile client: every attack in turn, each client with another one first."""
        attacks = list(self.attacks[number].items())
        for turn in count(number * 4):
            if time.monotonic() > deadline:
                return
            name, make = attacks[turn % len(attacks)]
            tally.attacks[name] += 1
            try:
                await make()
            except Exception as error:  # whatever it was, the soak goes on
                tally.refusals[f"{name}: {type(error).__name__}"] += 1
                await asyncio.sleep(0.05)


async def soak(server: Server, url: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run all parts and return the results."""
    run, seconds = Soak(server, url, arguments), 60 * arguments.minutes
    say(f"warming up; all ends in about {arguments.minutes * 1.25 + 2 * REST / 60:.0f} minutes")
    await run.run(max(60.0, 0.15 * seconds), attacked=True)
    await asyncio.sleep(REST)
    before, workers = memory(server), processes(server)
    say(f"at rest with {before:.0f} MB; the honest clients alone")
    alone = (await run.run(max(30.0, seconds / 10), attacked=False)).record()
    say("now the attack")
    attacked = (await run.run(seconds, attacked=True)).record()
    say("the attack is over; resting")
    await asyncio.sleep(REST)
    client = Client(url, "127.0.1.1")
    try:
        health = (await client.exchange(client.head("GET", "/api/health")))[9:12].decode()
    except (OSError, TimeoutError) as error:
        health = type(error).__name__
    after = memory(server)
    slower = attacked["seconds"]["median"] / alone["seconds"]["median"]
    errors = [line for line in server.lines if "Traceback" in line or "Error" in line]
    return {
        "arguments": vars(arguments),
        "alone": alone,
        "under_attack": attacked,
        "memory_mb": {"before": round(before), "after": round(after)},
        "decoding_processes_replaced": len(processes(server) - workers),
        "errors_in_log": errors[:20],
        "bars": {
            f"median latency {slower:.2f} times idle, at most {SLOWER:g}": slower <= SLOWER,
            "no honest photo lost": not attacked["lost"],
            f"memory {after / before:.2f} of before, at most {LARGER:.2f}": after
            <= LARGER * before,
            "no restart": server.process.poll() is None,
            f"healthy at the end: {health}": health == "200",
            "no traceback": not errors,
        },
    }


def memory(server: Server) -> float:
    """Megabytes of the server and its decoding processes, shared pages counted once."""
    size = 0.0
    for pid in (server.process.pid, *processes(server)):
        with suppress(OSError):  # it has just ended
            parts = Path(f"/proc/{pid}/smaps_rollup").read_text().partition("\nPss:")
            size += int(parts[2].split()[0]) / 1e3
    return size


def processes(server: Server) -> set[int]:
    """The decoding processes."""
    return set(children(server.process.pid))


def say(words: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {words}", file=sys.stderr, flush=True)


def _tokens(folder: Path) -> Path:
    path = folder / "tokens"
    path.write_text(f"soak:{TOKEN}\n")
    path.chmod(0o600)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20, help="of attack")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--hostile", type=int, default=8, help="of the clients")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between honest photos")
    parser.add_argument("--proxy", action="store_true", help="put nginx before the server")
    arguments = parser.parse_args()
    # Of its own: a fork of the process that imports for the tests would share memory with it.
    os.environ["CAPTIONER_TESTS_FORK"] = "0"
    options = ("--root-path", "/captioner", "--trusted-proxy", "127.0.0.1")
    with (
        tempfile.TemporaryDirectory() as folder,
        serve(Path(folder), *options, "--token-file", _tokens(Path(folder))) as server,
        ExitStack() as stack,
    ):
        url = server.url
        if arguments.proxy:
            url = stack.enter_context(nginx(Path(folder) / "nginx", url))
        found = asyncio.run(soak(server, url, arguments))
    print(json.dumps(found, indent=1))
    sys.exit(not all(found["bars"].values()))


if __name__ == "__main__":
    main()
