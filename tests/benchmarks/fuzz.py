"""Mutated images through the reader; test_archives.py has mutated archives.

    python -m tests.benchmarks.fuzz --images 20000

Every mutation must end as pixels or as an error that names the file, within the deadline; the
processes must not grow. What is found is printed, and the exit status is 1 if anything was.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from captioner.photos.transform import TransformConfig
from captioner_serving.decoding.photo import EncodedPhoto
from captioner_serving.decoding.pool import Reader
from tests.process_tree import children

SECONDS = 20.0
KINDS = ["JPEG", "progressive", "PNG", "WEBP", "AVIF", "BMP", "GIF"]
KINDS += ["TIFF", "TIFF-LZW", "TIFF-JPEG"]
NUMBERS = (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\x01", b"\x80\0\0\0")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--heic", type=Path, help="a HEIC file to mutate as well")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    found = fuzz_images(arguments.images, arguments.heic, chance)
    for line in found:
        print("FOUND", line)
    return 1 if found else 0


def fuzz_images(count: int, heic: Path | None, chance: random.Random) -> list[str]:
    """Decode mutations; give what is wrong."""
    seeds = {kind: encoded(kind) for kind in KINDS}
    if heic is not None:
        seeds["HEIC"] = heic.read_bytes()

    def photos() -> Iterator[EncodedPhoto]:
        for number in range(count):
            kind = chance.choice(list(seeds))
            yield EncodedPhoto(f"{number} {kind}", mutated(seeds[kind], chance))

    found, came = [], Counter[str]()
    early = late = 0
    with Reader(TransformConfig(size=96), workers=2, seconds=SECONDS) as reader:
        began = last = time.monotonic()
        slowest = 0.0
        for number, (photo, decoded) in enumerate(reader.stream(photos(), ahead=16)):
            now = time.monotonic()
            slowest, last = max(slowest, now - last), now
            detail = (decoded.error or {}).get("detail", "")
            came[(decoded.error or {}).get("type", "pixels")] += 1
            if decoded.error and photo.name not in detail:
                found.append(f"{photo.name}: the error does not name it: {detail}")
            if "crashed the image decoder" in detail or "takes more than" in detail:
                found.append(detail)
            if number == count // 5:
                early = memory()
        late = memory()
    print(f"{count:,} images in {last - began:.0f} s, the slowest {slowest:.1f} s: {dict(came)}")
    print(f"memory of the workers: {early >> 20} MB after a fifth, {late >> 20} MB at the end")
    if slowest > SECONDS + 5:
        found.append(f"an answer took {slowest:.0f} s")
    if late > early + (64 << 20):
        found.append(f"the workers grew from {early >> 20} to {late >> 20} MB")
    return found


def encoded(kind: str) -> bytes:
    image = Image.linear_gradient("L").resize((160, 120)).convert("RGB")
    options: dict[str, object] = {}
    name, _, compression = kind.partition("-")
    if kind == "progressive":
        name, options = "JPEG", {"progressive": True}
    elif compression:
        options = {"compression": {"LZW": "tiff_lzw", "JPEG": "jpeg"}[compression]}
    image.save(buffer := io.BytesIO(), name, **options)
    return buffer.getvalue()


def mutated(data: bytes, chance: random.Random, *, at_ends: bool = False) -> bytes:
    """Change bytes or numbers, mostly near the beginning; repeat, cut, or drop a part.

    at_ends: near the end as often, where a zip file has its list of members.
    """
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        most = min(len(changed), chance.choice((64, 600, len(changed)))) or 1
        at = chance.randrange(most)
        if at_ends and chance.random() < 0.4:
            at = max(0, len(changed) - 1 - at)
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


def memory() -> int:
    """Resident bytes of the workers, the largest one's."""
    sizes = [0]
    for process in children(os.getpid()):
        status = Path(f"/proc/{process}/statm")
        if status.exists():
            sizes.append(int(status.read_text().split()[1]) * 4096)
    return max(sizes)


if __name__ == "__main__":
    sys.exit(main())
