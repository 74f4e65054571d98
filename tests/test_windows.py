"""Commands in an interpreter whose modules of Captioner see what Windows has; see tests/windows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.launcher import environment
from tests.serving.batch.conftest import draw

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux")

SCRIPT = """
import signal, socket, threading, time, urllib.request
from PIL import Image
from captioner.cli import main
from captioner.shared.files import IS_WINDOWS

assert IS_WINDOWS
model = ("--checkpoint", MODEL, "--dtype", "float32", "--quiet")
review = ("--min-score=-1e-9",)

def batch(*options):
    return main(["batch", "photos", *options, *model])

assert main(["caption", "photos/图 1.jpg", "--sheet", "sheet.png", *model[:4]]) == 0
assert batch("--output", "c.csv", "--sidecar", "txt") == 1  # one is no photo
Image.new("RGB", (60, 40)).save("photos/bad.jpg")
assert batch("--output", "c.csv", "--sidecar", "txt", "--retry-errors") == 0
assert batch("--output", "r.jsonl", *review) == 0
assert batch("--output", "r.jsonl", *review, "--restart") == 0
assert main(["convert", "c.csv.journal.jsonl", "--sidecar", "xmp", "--to", "c.jsonl"]) == 0

with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]

def ask():
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/api/health/ready").read()
                break
            except OSError:
                time.sleep(0.1)
        photo = open("photos/图 1.jpg", "rb").read()
        body = b'--x\\r\\nContent-Disposition: form-data; name="image"; filename="a.jpg"'
        body += b"\\r\\n\\r\\n" + photo + b"\\r\\n--x--\\r\\n"
        kind = {"Content-Type": "multipart/form-data; boundary=x"}
        url = f"http://127.0.0.1:{port}/api/caption"
        request = urllib.request.Request(url, body, kind)
        print(urllib.request.urlopen(request).read().decode())
    finally:
        signal.raise_signal(signal.SIGTERM)

threading.Thread(target=ask).start()
assert main(["serve", "--port", str(port), "--checkpoint", MODEL]) == 0
"""


@pytest.mark.slow
def test_caption_batch_convert_and_serve_call_nothing_that_windows_lacks(
    tmp_path: Path, saved_tiny: Path
) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(2):
        draw(number).save(photos / f"图 {number}.jpg")
    (photos / "bad.jpg").write_bytes(b"no photo")
    given = environment(PYTHONIOENCODING="cp1252", PYTHONWARNINGS="")
    given["PYTHONPATH"] = os.pathsep.join((str(ROOT / "tests/windows"), given["PYTHONPATH"]))
    done = subprocess.run(
        [sys.executable, "-c", f"MODEL = {str(saved_tiny)!r}\n{SCRIPT}"],
        cwd=tmp_path, env=given, capture_output=True, encoding="cp1252",
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    (record,) = json.loads(done.stdout.splitlines()[-1])["records"]
    assert record["caption"]
    lines = (tmp_path / "c.jsonl").read_text().splitlines()
    names = sorted(Path(json.loads(line)["image"]).name for line in lines)
    assert names == ["bad.jpg", "图 0.jpg", "图 1.jpg"]
    for name in names:
        stem = Path(name).stem
        assert (tmp_path / f"photos/{stem}.xmp").exists()
        assert (tmp_path / f"photos/{stem}.txt").exists()
    assert not (tmp_path / "c.csv.errors.jsonl").exists()
    records = (tmp_path / "r.jsonl").read_text().splitlines()
    assert all(json.loads(line)["review"] for line in records)
    assert not list(tmp_path.rglob("*.part"))


def test_what_a_console_cannot_show_is_escaped(tmp_path: Path, saved_tiny: Path) -> None:
    """On its own, because it needs no torch: a name in an error."""
    command = [sys.executable, "-m", "captioner", "convert", "图\udcff.jsonl", "--to", "x.csv"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(PYTHONIOENCODING="cp1252"), capture_output=True
    )
    assert done.returncode == 1 and b"\\u56fe" in done.stderr and b"Traceback" not in done.stderr
