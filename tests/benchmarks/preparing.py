"""What `captioner prepare coco` takes of memory and time for COCO's numbers, without COCO.

    python -m tests.benchmarks.preparing CAPTIONS [--images 123287]

A web server on this machine offers what COCO's and Karpathy's hosts have, with 123,287 images and
five captions each, drawn from the json file CAPTIONS. The images are tiny, so that only what grows
with their number is measured: memory, and what a small image costs beside its decoding.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from PIL import Image

from tests.benchmarks.measuring import Watch

PARTS = {"train": 82_783, "val": 40_504}


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def write_hosts(folder: Path, captions: list[str], share: float) -> None:
    """Write the zip files of 2014 and Karpathy's split of them."""
    for part in ("zips", "annotations"):
        (folder / part).mkdir()
    photo = io.BytesIO()
    Image.new("RGB", (32, 24), "teal").save(photo, "JPEG")
    chance = random.Random(0)
    karpathy, number = [], 0
    with zipfile.ZipFile(folder / "annotations" / "annotations_trainval2014.zip", "w") as notes:
        for part, count in PARTS.items():
            images, annotations = [], []
            with zipfile.ZipFile(folder / "zips" / f"{part}2014.zip", "w") as archive:
                for _ in range(int(count * share)):
                    number += 1
                    name = f"COCO_{part}2014_{number:012d}.jpg"
                    # What follows the end of a JPEG is not looked at: no two files are equal.
                    archive.writestr(f"{part}2014/{name}", photo.getvalue() + b"%08d" % number)
                    images.append({"id": number, "file_name": name, "width": 640, "height": 480})
                    texts = chance.choices(captions, k=5)
                    annotations += [
                        {"id": 5 * number + k, "image_id": number, "caption": text}
                        for k, text in enumerate(texts)
                    ]
                    split = (
                        "train" if part == "train" else chance.choice(["restval", "val", "test"])
                    )
                    sentences = [
                        {"tokens": text.lower().split(), "raw": text, "imgid": number, "sentid": k}
                        for k, text in enumerate(texts)
                    ]
                    karpathy.append({"cocoid": number, "split": split, "sentences": sentences})
            content = json.dumps({"images": images, "annotations": annotations})
            notes.writestr(f"annotations/captions_{part}2014.json", content)
    with zipfile.ZipFile(folder / "caption_datasets.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("dataset_coco.json", json.dumps({"images": karpathy}))
    sums = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in folder.rglob("*.zip")
    ]
    (folder / "SHA256SUMS").write_text("".join(sums))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("captions", type=Path, help="a json file in COCO's captions format")
    parser.add_argument("--images", type=int, default=sum(PARTS.values()))
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    captions = [one["caption"] for one in json.loads(arguments.captions.read_text())["annotations"]]
    folder = Path(tempfile.mkdtemp())
    try:
        (folder / "www").mkdir()
        write_hosts(folder / "www", captions, arguments.images / sum(PARTS.values()))
        server = ThreadingHTTPServer(
            ("127.0.0.1", 0), partial(Quiet, directory=str(folder / "www"))
        )
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = [
            sys.executable, "-m", "captioner", "prepare", "coco", "--to", folder / "coco",
            "--mirror", f"http://127.0.0.1:{server.server_address[1]}",
            "--workers", arguments.workers,
        ]  # fmt: skip
        started = time.perf_counter()
        process = subprocess.Popen(list(map(str, command)), env=os.environ)
        with Watch(process.pid) as watch:
            status = process.wait()
        seconds = time.perf_counter() - started
        server.shutdown()
        size = sum(path.stat().st_size for path in (folder / "coco").rglob("*") if path.is_file())
        print(
            f"{arguments.images:,} images, {arguments.workers} workers, status {status}: {watch}; "
            f"{seconds:.0f} s, {size / 1e6:.0f} MB written"
        )
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
