"""Damaged heads of every format end within a second and 300 MB, as a picture or an ImageError.

Files that failed once are kept in corpus/ and opened in every run of the tests. A failure writes
its file there.
"""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest
from PIL import Image

from captioner.errors import ImageError
from captioner.photos.open import open_image
from tests.captioner.pictures import HEIC, encode, profile, turned
from tests.captioner.test_colour import P3
from tests.launcher import environment

CORPUS = Path(__file__).with_name("corpus")
KINDS = ["JPEG", "progressive", "PNG", "WEBP", "AVIF", "BMP", "GIF"]
KINDS += ["TIFF", "TIFF-LZW", "TIFF-JPEG"]
NUMBERS = (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\x01", b"\x80\0\0\0")
COUNT = 10_000
SECONDS, MEMORY, PIXELS = 1.0, 300_000_000, 10_000_000
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")


def corpus() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(CORPUS.glob("*.bin"))}


def few_mutations() -> dict[str, bytes]:
    return mutations(400)


def mutations(count: int = COUNT) -> dict[str, bytes]:
    files = dict[str, bytes]()
    seeds = {"HEIC": HEIC} | {kind: encoded(kind) for kind in KINDS}
    for kind in ("JPEG", "PNG", "WEBP", "AVIF", "TIFF"):  # also with metadata
        seeds[f"{kind}-turned"] = turned(kind, 6, icc_profile=profile(*P3, gamma=2.2))
    for number in range(count):
        chance = random.Random(number)
        kind = chance.choice(list(seeds))
        data = mutated(seeds[kind], chance)
        if kind.startswith("PNG") and number % 2:
            data = with_checksums(data)
        files[f"{kind}-{number}.bin"] = data
    return files


def encoded(kind: str) -> bytes:
    image = Image.linear_gradient("L").resize((160, 120)).convert("RGB")
    options: dict[str, object] = {}
    name, _, compression = kind.partition("-")
    if kind == "progressive":
        name, options = "JPEG", {"progressive": True}
    elif compression:
        options = {"compression": {"LZW": "tiff_lzw", "JPEG": "jpeg"}[compression]}
    return encode(image, name, **options)


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Change bytes or numbers, mostly near the beginning; repeat, cut, or drop a part."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        most = min(len(changed), chance.choice((64, 600, len(changed)))) or 1
        at = chance.randrange(most)
        what = chance.randrange(6)
        if what == 0:
            changed[at : at + 1] = bytes([chance.randrange(256)])
        elif what == 1:
            changed[at : at + 4] = chance.choice(NUMBERS)
        elif what == 2:
            changed[at : at + 2] = chance.choice(NUMBERS)[:2]
        elif what == 3:
            part = changed[at : at + chance.randrange(1, 600)]
            changed[at:at] = part * chance.randrange(1, 9)
        elif what == 4:
            del changed[at : at + chance.randrange(1, 600)]
        elif chance.random() < 0.2:
            del changed[at:]
    return bytes(changed)


def with_checksums(data: bytes) -> bytes:
    """Correct the checksums of a PNG's chunks."""
    changed, place = bytearray(data), 8
    while place + 12 <= len(data):
        end = place + 8 + int.from_bytes(data[place : place + 4])
        if end + 4 > len(data):
            break
        changed[end : end + 4] = zlib.crc32(data[place + 4 : end]).to_bytes(4)
        place = end + 4
    return bytes(changed)


def open_all(files: dict[str, bytes], start: int) -> None:
    """Open files from one on; print the name of each, then what is wrong with it."""
    for name, data in list(files.items())[start:]:
        print(f"\n{name}", end=" ", flush=True)
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, -1))
        began = time.process_time()
        try:
            open_image(data, name=name, max_pixels=PIXELS)
        except ImageError as error:
            if name not in error.detail:
                print("is not in", error.detail)
        except BaseException as error:
            print("raises", type(error).__name__)
        resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
        if (seconds := time.process_time() - began) > SECONDS:
            print(f"takes {seconds:.1f} s")


@pytest.mark.parametrize(
    "source", ["corpus", "few_mutations", pytest.param("mutations", marks=pytest.mark.slow)]
)
def test_damaged_files_end_quickly_with_little_memory(source: str) -> None:
    files: dict[str, bytes] = globals()[source]()
    problems, done = dict[str, str](), 0
    while done < len(files):
        code = f"from tests.captioner import test_fuzz as f; f.open_all(f.{source}(), {done})"
        process = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            capture_output=True, text=True, env=environment(PYTHONWARNINGS="ignore"), check=False,
        )  # fmt: skip
        lines = [line.partition(" ") for line in process.stdout.split("\n")[1:]]
        problems |= {name: reason for name, _, reason in lines if reason}
        done += len(lines)
        if process.returncode:
            assert lines, process.stderr
            problems[lines[-1][0]] = f"ends the process with {process.returncode}"
    for name in problems:
        CORPUS.mkdir(exist_ok=True)
        (CORPUS / name).write_bytes(files[name])
    assert not problems and done == len(files)
