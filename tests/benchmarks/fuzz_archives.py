"""Mutated archives through the whole command, a folder of them at a time.

    python -m tests.benchmarks.fuzz_archives \
        --archives 2000 --checkpoint tiny.safetensors

Every command must end by itself, with captions or with errors that name the photo or the archive;
it must print no traceback, and one that reads many archives must not take more memory than one
that reads few. What is found is printed and kept, and the exit status is 1 if anything was.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from tests.benchmarks.fuzz import NUMBERS, mutated
from tests.launcher import environment

SECONDS = 5.0  # that an archive may take, on an otherwise idle machine in a small part of one
GROWTH = 96 << 20  # bytes; batches of several sizes leave that much between two runs
SIZES = (b"00000000000\0", b"77777777777\0", b"00000000777\0", b"\x80" + b"\xff" * 11, b"-1 \0")
TYPES = b"0123456789xgXLKSDVMN\0\xff"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--archives", type=int, default=200)
    parser.add_argument("--together", type=int, default=200, help="that one command reads")
    parser.add_argument("--checkpoint", type=Path, required=True, help="a small one will do")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a folder for archives that show something")
    arguments = parser.parse_args()
    found = fuzz(
        arguments.archives,
        together=arguments.together,
        checkpoint=arguments.checkpoint,
        chance=random.Random(arguments.seed),
        keep=arguments.keep,
    )
    for line in found:
        print("FOUND", line)
    return 1 if found else 0


def fuzz(
    archives: int, *, together: int, checkpoint: Path, chance: random.Random, keep: Path | None
) -> list[str]:
    """Caption mutations of archives; give what is wrong."""
    found: list[str] = []
    came = Counter[str]()
    slowest, largest = 0.0, 0
    base: Run | None = None
    with tempfile.TemporaryDirectory() as temporary:
        for number, first in enumerate(range(0, archives, together)):
            folder = Path(temporary, f"part{number}")
            folder.mkdir()
            count = min(together, archives - first)
            for index in range(count):
                suffix, data = mutation(chance)
                Path(folder, f"{first + index}{suffix}").write_bytes(data)
            if base is None:  # what a command takes that reads archives without a fault
                base = run(sound(Path(temporary)), checkpoint, limit=120)
            one = run(folder, checkpoint, limit=60 + SECONDS * count)
            problems = one.problems(folder)
            if one.memory > base.memory + GROWTH:
                problems.append(f"{one.memory >> 20} MB, and {base.memory >> 20} without mutations")
            if problems and keep is not None:
                shutil.copytree(folder, keep / folder.name)
            found += [f"{folder.name}: {problem}" for problem in problems]
            came += one.came
            slowest, largest = max(slowest, one.seconds), max(largest, one.memory)
        memory = 0 if base is None else base.memory
    print(f"{archives:,} archives, the slowest {together:,} of them {slowest:.1f} s: {dict(came)}")
    print(f"memory of the command: {memory >> 20} MB without mutations, at most {largest >> 20} MB")
    return found


class Run(NamedTuple):
    """What a command came to; memory is its own, without that of the processes that decode."""

    status: int
    said: str
    seconds: float
    memory: int
    came: Counter[str]
    errors: list[dict[str, dict[str, str]]]

    def problems(self, folder: Path) -> list[str]:
        """Say what is wrong with it."""
        wrong = []
        if self.status not in (0, 1):
            wrong.append(f"status {self.status} after {self.seconds:.0f} s: {self.said[-300:]}")
        if "Traceback" in self.said or "Warning" in self.said:
            wrong.append(self.said[-2000:])
        for record in self.errors:
            error = record["error"]
            if str(folder) not in error["detail"]:
                wrong.append(f"an error does not name its photo: {error}")
            if "crashed the image decoder" in error["detail"]:
                wrong.append(error["detail"])
        return wrong


def run(folder: Path, checkpoint: Path, *, limit: float) -> Run:
    """Run the command on the archives of a folder."""
    output = folder.with_suffix(".jsonl")
    command = [sys.executable, "-m", "captioner", "batch", f"{folder}/*", "--output", str(output)]
    command += ["--checkpoint", str(checkpoint), "--dtype", "float32"]
    began = time.monotonic()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, env=environment(), stdout=said, stderr=said)
        while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
            if time.monotonic() - began > limit:
                process.kill()
            time.sleep(0.05)
        process.returncode = os.waitstatus_to_exitcode(ended[1])
        said.seek(0)
        text = said.read().decode("utf-8", "replace")
    path = Path(f"{output}.errors.jsonl")
    errors = [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []
    captions = len(output.read_bytes().splitlines()) if output.exists() else 0
    came = Counter(error["error"]["type"] for error in errors) + Counter(captions=captions)
    memory = 1024 * ended[2].ru_maxrss
    return Run(process.returncode, text, time.monotonic() - began, memory, came, errors)


def sound(folder: Path) -> Path:
    """Make a folder with one archive of each kind, and with whole batches of photos."""
    made = folder / "sound"
    made.mkdir()
    with zipfile.ZipFile(made / "a.zip", "w") as archive:
        for number in range(100):
            archive.writestr(f"{number}.jpg", photo(number))
    (made / "a.tar").write_bytes(tar(tarfile.PAX_FORMAT))
    return made


def mutation(chance: random.Random) -> tuple[str, bytes]:
    """Make one archive with a few changes, and its suffix."""
    if chance.random() < 0.4:
        method = chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
        return ".zip", mutated(zipped(method), chance, at_ends=True)
    data = tar(chance.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT)))
    if chance.random() < 0.6:
        return ".tar", changed_headers(data, chance)
    return ".tar", mutated(data, chance, at_ends=True)


def changed_headers(data: bytes, chance: random.Random) -> bytes:
    """Change fields of headers, with checksums that are right: the lies are believed."""
    new = bytearray(data)
    places = [at for at in range(0, len(new) - 511, 512) if new[at + 257 : at + 262] == b"ustar"]
    for at in chance.sample(places, k=min(len(places), chance.choice((1, 1, 2)))):
        what = chance.randrange(6)
        if what == 0:
            new[at + 124 : at + 136] = chance.choice(SIZES).ljust(12, b"\0")
        elif what == 1:
            new[at + 156] = chance.choice(TYPES)
        elif what == 2:
            new[at : at + 100] = chance.choice((bytes(100), b"\xff" * 100, b"../" * 33 + b"x"))
        elif what == 3:
            size = int(bytes(new[at + 124 : at + 135]) or b"0", 8)
            new[at + 512 : at + 512 + min(size, 64)] = chance.randbytes(min(size, 64))
        elif what == 4:
            new[at + 386 : at + 512] = chance.randbytes(126)
        else:
            place = at + chance.randrange(512)
            new[place : place + 4] = chance.choice(NUMBERS)
        new[at + 148 : at + 156] = b" " * 8
        new[at + 148 : at + 156] = b"%06o\0 " % sum(new[at : at + 512])
    return bytes(new)


def photo(number: int) -> bytes:
    image = Image.linear_gradient("L").resize((64 + number, 48)).convert("RGB")
    image.save(buffer := io.BytesIO(), "JPEG")
    return buffer.getvalue()


NAMES = ("a.jpg", "b/ü.jpg", "long" * 20 + ".jpg", "a.jpg")
PHOTOS = [photo(number) for number in range(len(NAMES))]


def tar(form: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for name, data in zip(NAMES, PHOTOS, strict=True):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            if form == tarfile.PAX_FORMAT:
                member.pax_headers = {"comment": "ü" * 20}
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def zipped(compression: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in zip(NAMES[:3], PHOTOS[:3], strict=True):
            archive.writestr(name, data)
    return buffer.getvalue()


if __name__ == "__main__":
    sys.exit(main())
