"""The server against the library, on one machine in one run.

    python -m tests.benchmarks.serving [--seconds 60] [--clients 16]

1. One photo over HTTP against the same caption in process.
2. Many clients at once against captioning in process in batches of 16, and against a server that
   takes one image at a time (`--max-batch 1`): photos a second, and how long each waits for its
   answer.

Everything runs on the same cores, so the clients take some of them from the server; they send
prepared bytes over bare sockets.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from contextlib import suppress
from itertools import cycle, islice
from pathlib import Path

import torch

from captioner.captioner import Captioner
from captioner.shared.paths import sample_photos
from tests.benchmarks.attacks import Client
from tests.serving.server.conftest import Server, serve

BATCH = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=16)
    arguments = parser.parse_args()
    captioner = Captioner.from_pretrained()
    photos = {name: path.read_bytes() for name, path in sample_photos().items()}
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads of {os.cpu_count()} cores, "
        f"{str(captioner.dtype).removeprefix('torch.')}, beam {captioner.generation.beam_size}, "
        f"{len(photos)} sample photos of 512 x 512 to 640 x 427 pixels, bundled checkpoint"
    )
    with tempfile.TemporaryDirectory() as folder:
        one_photo(captioner, photos["coffee"], Path(folder))
        many_clients(captioner, list(photos.values()), Path(folder), arguments)


def one_photo(captioner: Captioner, photo: bytes, folder: Path, rounds: int = 12) -> None:
    """Alternate between the two in blocks of five, so that both meet the same machine."""
    http: list[float] = []
    process: list[float] = []
    with serve(folder, "--log", os.devnull) as server, asyncio.Runner() as runner:
        client = Client(server.url, "127.0.0.1")
        body = client.upload(photo)
        for block in range(-2, rounds):
            for _ in range(5):
                start = time.perf_counter()
                captioner.caption(photo)
                process += [time.perf_counter() - start] if block >= 0 else []
            time.sleep(0.05)  # our threads spin for a while after their work
            for _ in range(5):
                start = time.perf_counter()
                runner.run(client.exchange(body))
                http += [time.perf_counter() - start] if block >= 0 else []
            time.sleep(0.05)
    in_process, over_http = statistics.median(process), statistics.median(http)
    print(
        f"one photo: in process {1000 * in_process:.1f} ms, over HTTP {1000 * over_http:.1f} ms, "
        f"ratio {over_http / in_process:.2f} (target: at most 1.3; medians of {len(http)})"
    )


def many_clients(
    captioner: Captioner, photos: list[bytes], folder: Path, arguments: argparse.Namespace
) -> None:
    in_process = rate_in_process(captioner, photos, arguments.seconds / 3)
    rates = {}
    for batch in (BATCH, 1):
        with serve(folder, "--max-batch", batch, "--log", os.devnull) as server:
            start = time.perf_counter()
            answered, lost = asyncio.run(load(server, photos, arguments))
            seconds = time.perf_counter() - start
            rates[batch] = len(answered) / seconds
            middle, late = (1000 * answered[int(q * len(answered))] for q in (0.5, 0.95))
            print(
                f"{arguments.clients} clients for {seconds:.0f} s, --max-batch {batch}: "
                f"{rates[batch]:.1f} photos/s, {lost} requests lost; "
                f"answered after {middle:.0f} ms (median) and {late:.0f} ms (95 %)"
            )
    print(
        f"in process, batches of {BATCH}, decoding included: {in_process:.1f} photos/s; "
        f"server / in process {rates[BATCH] / in_process:.2f} (target: at least 0.8); "
        f"server / --max-batch 1 {rates[BATCH] / rates[1]:.2f}"
    )


def rate_in_process(captioner: Captioner, photos: list[bytes], seconds: float) -> float:
    batches = list(islice(cycle(photos), BATCH))
    captioner.caption(batches)
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        captioner.caption(batches)
        done += BATCH
    return done / (time.perf_counter() - start)


async def load(
    server: Server, photos: list[bytes], arguments: argparse.Namespace
) -> tuple[list[float], int]:
    """Let each client send one photo after another; seconds of each answer, sorted, and losses."""
    sender = Client(server.url, "127.0.0.1")
    bodies = [sender.upload(photo) for photo in photos]
    deadline = time.perf_counter() + arguments.seconds
    answered: list[float] = []
    lost = 0

    async def client(number: int) -> None:
        nonlocal lost
        for body in islice(cycle(bodies), number, None):
            if (start := time.perf_counter()) > deadline:
                return
            with suppress(OSError):
                answer = await sender.exchange(body)
                if answer.startswith(b"HTTP/1.1 200") and b'"caption"' in answer:
                    answered.append(time.perf_counter() - start)
                    continue
            lost += 1

    await asyncio.gather(*(client(number) for number in range(arguments.clients)))
    return sorted(answered), lost


if __name__ == "__main__":
    main()
