"""Draw assets/figures/page.jpg, the page in the README: `python -m tests.draw_page`.

The JPEG's comment is a digest of the page's files, which tests/test_docs.py compares.
"""

from __future__ import annotations

import hashlib
import io
import tempfile
from pathlib import Path

from PIL import Image

from captioner.paths import bundled_checkpoint
from captioner_serving.server.parts import STATIC
from tests.conftest import ROOT

PICTURE = ROOT / "assets" / "figures" / "page.jpg"
_SIZE = {"width": 1280, "height": 900}


def digest_page() -> str:
    """Digest everything that the picture shows: the page's files and the bundled weights."""
    digest = hashlib.sha256()
    for path in [*sorted(STATIC.iterdir()), bundled_checkpoint()]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def drawn_digest() -> str:
    """Return the digest of the page that the picture shows."""
    with Image.open(PICTURE) as picture:
        return bytes(picture.info.get("comment", b"")).decode("ascii", "replace")


def main() -> None:
    """Serve the page, and save a screenshot."""
    from playwright.sync_api import sync_playwright

    from tests.conftest import BROWSER_FLAGS, need
    from tests.serving.server.conftest import serve
    from tests.serving.server.page.conftest import Visit

    with (
        tempfile.TemporaryDirectory() as folder,
        serve(Path(folder) / "server") as server,
        sync_playwright() as driver,
    ):
        browser = driver.chromium.launch(executable_path=need("chromium"), args=BROWSER_FLAGS)
        visit = Visit(browser.new_context(viewport=_SIZE), server.url)
        visit.tab.click(".more")
        shot = visit.tab.screenshot()
        browser.close()
    with Image.open(io.BytesIO(shot)) as picture:
        picture.convert("RGB").save(PICTURE, quality=88, comment=digest_page().encode())
    print(PICTURE)


if __name__ == "__main__":
    main()
