"""This commit against another one: the service's throughput, and whether the captions are the same.

    git worktree add /tmp/before COMMIT
    python tests/benchmarks/before.py /tmp/before [--photos FOLDER] [--seconds 15] [--rounds 2]

Both serve the same checkpoint to the same clients in turns, on one machine in one run, each in the
dtype that it takes by itself. Then both caption every photo of FOLDER: in float32 the captions are
to be the same, and in this commit's own dtype 99 % of the words.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path

import torch

from captioner.bundled import sample_photos
from tests.benchmarks.serving import load
from tests.launcher import ROOT, environment
from tests.serving.server.conftest import serve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--clients", type=int, default=32)
    arguments = parser.parse_args()
    os.environ["CAPTIONER_TESTS_FORK"] = "0"
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads of {os.cpu_count()} cores, "
        "beam 5, sample photos of 512 x 512 to 640 x 427 pixels, bundled checkpoint"
    )
    throughput(arguments)
    if arguments.photos:
        compare(arguments.before, sorted(arguments.photos.rglob("*.jpg")))


def path_of(checkout: Path) -> str:
    return os.pathsep.join(str(checkout / part) for part in (".", "training", "serving"))


def throughput(arguments: argparse.Namespace) -> None:
    photos = [path.read_bytes() for path in sample_photos().values()]
    rates: dict[str, list[float]] = {"before": [], "now": []}
    for _ in range(arguments.rounds):
        for name, checkout in (("before", arguments.before), ("now", ROOT)):
            with (
                tempfile.TemporaryDirectory() as folder,
                serve(
                    Path(folder), "--log", os.devnull, cwd=checkout, PYTHONPATH=path_of(checkout)
                ) as server,
            ):
                done, lost = asyncio.run(load(server, photos, arguments))
                rates[name].append(done / arguments.seconds)
                print(f"{name}: {rates[name][-1]:.1f} photos/s, {lost} lost", flush=True)
    before, now = (statistics.median(each) for each in rates.values())
    print(
        f"{arguments.clients} clients, {arguments.rounds} x {arguments.seconds:.0f} s each: "
        f"{now:.1f} against {before:.1f} photos/s, {now / before:.2f} times (target: 1.8)"
    )


def compare(before: Path, photos: Sequence[Path]) -> None:
    then = captions(before, photos)
    for dtype in ("float32", "auto"):
        now = captions(ROOT, photos, "--dtype", dtype)
        same = sum(one == other for one, other in zip(then, now, strict=True))
        words = sum(len(one) for one in then)
        kept = sum(
            block.size
            for one, other in zip(then, now, strict=True)
            for block in SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks()
        )
        print(
            f"{dtype}: {same} of {len(photos)} captions the same, "
            f"{100 * kept / words:.2f} % of {words} words"
        )


def captions(checkout: Path, photos: Sequence[Path], *options: str) -> list[list[str]]:
    result = subprocess.run(
        [sys.executable, "-m", "captioner", "caption", *map(str, photos), "--json", *options],
        env=environment(PYTHONPATH=path_of(checkout)),
        cwd=checkout,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [json.loads(line)["caption"].split() for line in result.stdout.splitlines()]


if __name__ == "__main__":
    main()
