"""Two models side by side: each photo is captioned by both, and the words of one are open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from captioner.captioner import Captioner
from captioner.shared.paths import sample_photos
from captioner_serving.server.config import ServerConfig
from tests.serving.server.conftest import SAMPLES
from tests.serving.server.page.conftest import sentence, visiting
from tests.serving.server.running import serving


@pytest.fixture(scope="module")
def tiny(saved_tiny: Path) -> Captioner:
    return Captioner.from_pretrained(saved_tiny)


@pytest.fixture(scope="module")
def two(captioner: Captioner, tiny: Captioner) -> Iterator[str]:
    with serving(captioner, ServerConfig(), tiny, samples=sample_photos()) as url:
        yield url


@pytest.mark.slow
def test_both_models_show_a_sentence_and_one_its_words(
    desk: Any, two: str, captioner: Captioner, tiny: Captioner
) -> None:
    with visiting(desk, two) as visit:
        tab, models = visit.tab, visit.tab.locator(".models button")
        photo = SAMPLES / "rocket.jpg"
        said = [each.caption(photo).text for each in (captioner, tiny)]
        visit.choose(photo)
        assert models.count() == 2 and visit.posts() == 2
        for number, name in enumerate(("bundled", "tiny")):
            text = models.nth(number).inner_text().split("\n")
            assert text[:2] == [name, sentence(said[number])]
        assert models.nth(0).inner_text().endswith("likely right")
        assert models.nth(1).inner_text().endswith("trust unknown")
        heats = []
        for number in (1, 0):
            visit.tab.evaluate("document.querySelector('.heat').dataset.word = -1")
            models.nth(number).click()
            tab.wait_for_selector(f".models button:nth-child({number + 1})[aria-pressed=true]")
            visit.settled()
            assert " ".join(visit.words()) == said[number]
            assert visit.record()["model"]["name"] == ("bundled", "tiny")[number]
            heats.append(visit.heat())
        assert heats[0] != heats[1]
        models.nth(1).click()
        visit.reload()  # the one that was open is open again
        assert " ".join(visit.words()) == said[1] and models.count() == 2
        # The sentence of one stays if the other fails.
        requests: list[Any] = []
        problem = '{"title": "No words", "detail": "The model made none."}'

        def answer(route: Any) -> None:
            requests.append(route)
            route.continue_() if len(requests) == 1 else route.fulfill(status=422, body=problem)

        tab.route("**/api/caption", answer)
        visit.choose(SAMPLES / "coffee.jpg")
        assert visit.record()["model"]["name"] == "bundled"
        assert models.nth(1).is_disabled() and "No words" in models.nth(1).inner_text()
        tab.unroute("**/api/caption")
