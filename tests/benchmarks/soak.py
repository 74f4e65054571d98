"""The server under attack: do honest photos come through, and does it come back to rest?

    python -m tests.benchmarks.soak \
        [--minutes 20] [--clients 32] [--hostile 8] [--output soak] [--proxy]

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
its decoding processes. Linux only. Prints what was found, writes it to OUTPUT.txt and OUTPUT.json,
and ends with status 0 if every bar is met, 1 if not.
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
            "answered": len(self.seconds),
            "lost": self.lost.total(),
            "lost_by_reason": dict(self.lost),
            "asked_to_come_again": self.refused,
            "median_s": round(statistics.median(ordered), 4),
            "p95_s": round(ordered[int(0.95 * len(ordered))], 4),
            "slowest_s": round(ordered[-1], 2),
            "attacks": dict(sorted(self.attacks.items())),
            "attacks_refused_or_broken_off": dict(sorted(self.refusals.items())),
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
        self.memory: list[tuple[float, float]] = []  # seconds since the start, megabytes
        self.started = time.monotonic()

    async def run(self, seconds: float, *, attacked: bool) -> Tally:
        """Let clients loose for a while."""
        tally, deadline = Tally(), time.monotonic() + seconds
        hostile = self.attacks if attacked else []
        watch = asyncio.create_task(self.watch())
        await asyncio.gather(
            *(self.ask(number, deadline, tally) for number in range(len(self.honest))),
            *(self.attack(number, deadline, tally) for number in range(len(hostile))),
        )
        watch.cancel()
        return tally

    async def watch(self) -> None:
        while True:
            self.memory.append((round(time.monotonic() - self.started), memory(self.server)))
            await asyncio.sleep(10)

    async def ask(self, number: int, deadline: float, tally: Tally) -> None:
        """Be an honest client: a photo, a pause, the next photo."""
        client = self.honest[number]
        visitor = number % 4 == 3
        await asyncio.sleep(random.uniform(0, self.pause))
        for turn in count(number):
            if time.monotonic() > deadline:
                return
            await self.ask_once(client, self.photos[turn % len(self.photos)], tally, visitor)
            await asyncio.sleep(self.pause * random.uniform(0.5, 1.5))

    async def ask_once(self, client: Client, photo: bytes, tally: Tally, visitor: bool) -> None:
        """Send a photo until it is captioned, as often as the server asks for it."""
        started = time.monotonic()
        request = client.upload(photo, attention="true")
        answer = await self.insist(client, request, tally)
        if answer is None:
            return
        tally.seconds.append(time.monotonic() - started)
        if visitor:
            request = client.upload(photo, "/api/sheet")
            if await self.insist(client, request, tally) is None:
                tally.lost["picture"] += 1

    async def insist(self, client: Client, request: bytes, tally: Tally) -> bytes | None:
        """Send a request until it is answered; None: it is lost."""
        for _ in range(RETRIES):
            try:
                answer = await client.exchange(request)
            except (OSError, TimeoutError) as error:
                tally.lost[type(error).__name__] += 1
                return None
            good = answer.startswith(b"HTTP/1.1 200")
            if good and (b'"caption"' in answer or b"image/png" in answer[:1000]):
                return answer
            if not (answer.startswith(b"HTTP/1.1 503") or b'"type": "busy"' in answer):
                tally.lost[answer[9:12].decode() or "no answer"] += 1
                return None
            tally.refused += 1
            wait = re.search(rb"retry-after: (\d+)", answer, re.IGNORECASE)
            await asyncio.sleep(float(wait[1]) if wait else 1)
        tally.lost["503"] += 1
        return None

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
    """Run all parts, and tell what was found."""
    run, seconds = Soak(server, url, arguments), 60 * arguments.minutes
    fresh = memory(server)
    say(f"warming up; all ends in about {arguments.minutes * 1.25 + 2 * REST / 60:.0f} minutes")
    await run.run(max(60.0, 0.15 * seconds), attacked=True)
    await asyncio.sleep(REST)
    before, workers, began = memory_of_each(server), processes(server), server.process.pid
    say(f"at rest with {sum(before):.0f} MB; the honest clients alone")
    alone = await run.run(max(30.0, seconds / 10), attacked=False)
    say(f"{len(alone.seconds)} photos; now the attack")
    attacked = await run.run(seconds, attacked=True)
    say("the attack is over; resting")
    await asyncio.sleep(REST)
    client = Client(url, "127.0.1.1")
    try:
        health = (await client.exchange(client.head("GET", "/api/health")))[9:12].decode()
    except (OSError, TimeoutError) as error:
        health = type(error).__name__
    after = memory_of_each(server) if server.process.poll() is None else [0.0]
    lines = [line for line in server.lines if "Traceback" in line or "Error" in line]
    return {
        "minutes": arguments.minutes,
        "proxy": arguments.proxy,
        "honest_clients": len(run.honest),
        "hostile_clients": len(run.attacks),
        "pause_s": arguments.pause,
        "cores": len(os.sched_getaffinity(0)),
        "alone": alone.record(),
        "under_attack": attacked.record(),
        "memory_mb": {
            "fresh": round(fresh),
            "before": round(sum(before)),
            "before_by_process": [round(size) for size in before],
            "highest": round(max(size for _, size in run.memory)),
            "after": round(sum(after)),
            "after_by_process": [round(size) for size in after],
            "every_10_s": [(second, round(size)) for second, size in run.memory],
        },
        "restarts": int(server.process.poll() is not None or server.process.pid != began),
        "decoding_processes_replaced": len(processes(server) - workers),
        "health": health,
        "tracebacks_in_log": lines[:20],
    }


def bars(found: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    """What was asked for: its figure, and whether it is met."""
    alone, attacked, sizes = found["alone"], found["under_attack"], found["memory_mb"]
    slower = attacked["median_s"] / alone["median_s"]
    larger = sizes["after"] / sizes["before"]
    return {
        f"median latency at most {SLOWER:g} times idle": (f"{slower:.2f}", slower <= SLOWER),
        "no honest photo lost": (str(attacked["lost"]), attacked["lost"] == 0),
        f"memory at most {LARGER:.2f} of before": (f"{larger:.2f}", 0 < larger <= LARGER),
        "no restart": (str(found["restarts"]), found["restarts"] == 0),
        "healthy at the end": (found["health"], found["health"] == "200"),
        "no traceback": (str(len(found["tracebacks_in_log"])), not found["tracebacks_in_log"]),
    }


def text(found: dict[str, Any]) -> str:
    """The result for people: the figures in short, and the bars."""
    lines = []
    for part in ("alone", "under_attack"):
        figures = found[part].items()
        lines.append(f"{part}: { ({k: v for k, v in figures if not k.startswith('attacks')}) }")
    lines.append(f"attacks: {sum(found['under_attack']['attacks'].values())}")
    sizes = {k: v for k, v in found["memory_mb"].items() if isinstance(v, int)}
    lines.append(f"memory in MB: {sizes}")
    for bar, (figure, good) in bars(found).items():
        lines.append(f"{'PASS' if good else 'FAIL'}  {bar}: {figure}")
    return "\n".join(lines)


def memory(server: Server) -> float:
    """Megabytes of the server and its decoding processes, shared pages counted once."""
    return sum(memory_of_each(server))


def memory_of_each(server: Server) -> list[float]:
    """Megabytes of the server, and of each of its decoding processes."""
    sizes = []
    for pid in (server.process.pid, *sorted(processes(server))):
        with suppress(OSError):  # it has just ended
            parts = Path(f"/proc/{pid}/smaps_rollup").read_text().partition("\nPss:")
            sizes.append(int(parts[2].split()[0]) / 1e3)
    return sizes


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
    parser.add_argument("--output", default="soak", help="files to write, without .txt and .json")
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
    found["bars"] = {bar: {"is": is_, "met": met} for bar, (is_, met) in bars(found).items()}
    Path(f"{arguments.output}.json").write_text(json.dumps(found, indent=1) + "\n")
    Path(f"{arguments.output}.txt").write_text(text(found) + "\n")
    print(text(found))
    sys.exit(not all(met for _, met in bars(found).values()))


if __name__ == "__main__":
    main()
