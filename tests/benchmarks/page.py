"""The page in chromium: how soon its first word is there, and many photos dropped at once.

    python -m tests.benchmarks.page [--rounds 12] [--photos 20]

1. From the end of a photo's upload to its first word on the screen.
2. Photos dropped together, each with three sentences and its attention, from the drop to the last
   sentence in the list; against the same photos over HTTP, as many at a time. In turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import sync_playwright

from captioner.paths import sample_photos
from tests.conftest import BROWSER_FLAGS, PROGRAMS
from tests.serving.server.conftest import Server, serve
from tests.serving.server.page.conftest import DESK, Visit, visiting

AT_ONCE = 4  # static/page.js
WATCH = """
const send = XMLHttpRequest.prototype.send;
XMLHttpRequest.prototype.send = function (body) {
  this.upload.addEventListener("load", () => { window.sent = performance.now(); });
  send.call(this, body);
};
window.firstWord = () => new Promise((done) => {
  const viewer = document.querySelector(".viewer");
  new MutationObserver((_, watch) => {
    if (viewer.dataset.state !== "shown" || !viewer.querySelector(".word.current")) return;
    watch.disconnect();
    requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - window.sent)));
  }).observe(viewer, { attributes: true, subtree: true, childList: true });
});
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--photos", type=int, default=20)
    arguments = parser.parse_args()
    chromium = next(f"/usr/bin/{name}" for name in PROGRAMS["chromium"][0])
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, beam 5, bundled checkpoint")
    with (
        tempfile.TemporaryDirectory() as folder,
        serve(Path(folder)) as server,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=chromium, args=BROWSER_FLAGS)
        with visiting(browser.new_context(**DESK), server.url, script=WATCH) as visit:
            first_word(visit, arguments.rounds)
            dropped_together(visit, server, arguments.photos)


def first_word(visit: Visit, rounds: int) -> None:
    photos = list(sample_photos().values())
    waits = []
    for photo in islice(cycle(photos), 2 + rounds):
        visit.tab.evaluate("window.word = firstWord(); null")
        visit.tab.set_input_files(".intake .file", photo)
        waits.append(visit.tab.evaluate("window.word"))
    waits = waits[2:]
    print(
        f"first word after the upload's end: median {statistics.median(waits):.0f} ms, "
        f"{min(waits):.0f} to {max(waits):.0f}, of {rounds}"
    )


def dropped_together(visit: Visit, server: Server, count: int) -> None:
    photos = list(islice(cycle(sample_photos().values()), count))
    fields = {"beam_size": "5", "captions": "3", "attention": "true", "preview": "true"}
    page, plain = [], []
    with server.client() as client, ThreadPoolExecutor(AT_ONCE) as pool:

        def post(photo: Path) -> httpx.Response:
            return client.post("/api/caption", files={"image": photo.read_bytes()}, data=fields)

        for _ in range(3):
            start = time.monotonic()
            assert all(answer.status_code == 200 for answer in pool.map(post, photos))
            plain.append(time.monotonic() - start)
            visit.tab.click(".clear")
            visit.tab.click(".clear")
            page.append(drop(visit.tab, photos))
    ratio = statistics.median(plain) / statistics.median(page)
    print(
        f"{count} photos: page {statistics.median(page):.2f} s, HTTP {statistics.median(plain):.2f}"
        f" s, {AT_ONCE} at a time: the page has {ratio:.2f} of the service's rate"
    )


def drop(tab: Any, photos: list[Path]) -> float:
    start = time.monotonic()
    tab.set_input_files(".intake .file", photos)
    tab.wait_for_function(
        f"document.querySelectorAll('.strip [data-state=done]').length === {len(photos)}"
    )
    return time.monotonic() - start


if __name__ == "__main__":
    main()
