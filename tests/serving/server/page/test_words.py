"""The caption, word by word: pointed at, walked through, checked, explained, taken home."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from captioner import Caption
from tests.serving.server.conftest import SAMPLES
from tests.serving.server.page.conftest import DESK, Visit, sentence, visiting

pytestmark = pytest.mark.slow


def test_hover_focus_and_touch_show_what_is_meant_without_asking_the_server(visit: Visit) -> None:
    tab = visit.tab
    asked = len(visit.requests)
    visit.tab.locator(".word").nth(1).hover()
    first = visit.heat()
    assert visit.tab.locator(".heat").get_attribute("data-word") == "1"
    visit.tab.locator(".word").nth(2).hover()
    assert visit.heat() != first
    assert re.search("likely right|probability", visit.tab.inner_text(".about"))
    visit.tab.locator(".word").nth(1).focus()
    assert visit.heat() == first
    # And a touch says what a number means.
    for name, said in {
        "probability": "probability of this word", "focus": "attention", "visual": "on the photo",
        "heat": "even share",
    }.items():  # fmt: skip
        term = tab.locator(f"[data-term={name}] summary")
        term.click()
        shown = tab.inner_text(f"[data-term={name}][open] .meaning")
        assert said in shown
        assert term.get_attribute("title") == shown and shown.count(".") == 1  # one sentence
        assert tab.locator(".about details[open]").count() <= 1
    assert visit.requests[asked:] == []


def dashed(record: dict[str, Any]) -> list[str]:
    """The two doubtful words with the lowest trust, in the order of the caption."""
    doubtful = [word for word in record["words"] if word.get("doubtful")]
    least = sorted(doubtful, key=lambda word: word["trust"])[:2]
    return [word["word"] for word in doubtful if word in least]


def test_the_sentence_below_the_caption_names_the_dashed_words(visit: Visit) -> None:
    tab = visit.tab
    for photo, wrong in (("rocket", True), ("camera", False)):
        visit.choose(SAMPLES / f"{photo}.jpg")
        record = visit.record()
        words, names = record["words"], dashed(record)
        assert names and tab.locator(".word.doubtful").all_inner_texts() == names
        for label in tab.locator(".word.doubtful").all():
            assert "doubtful, " in label.get_attribute("aria-label")
        # The rocket is also unlike the training photos.
        assert tab.locator(".unlike").is_visible() == wrong
        assert tab.inner_text(".doubt").startswith("Likely wrong: check ")
        for line in (".doubt", '[role="status"]'):
            assert re.findall("“(.*?)”", tab.inner_text(line)) == names
        # The first word that names something and is likely right is the one that is shown; where
        # none is likely, the first that names something.
        named = [place for place, word in enumerate(words) if "trust" in word]
        likely = [place for place in named if words[place]["trust"] >= 0.5]
        assert bool(likely) != wrong and named[0] not in (0, *likely)
        shown = tab.locator(".heat").get_attribute("data-word")
        assert shown == str((likely or named)[0])
        assert "likely right" in tab.inner_text(".about")
        tab.locator(".word").nth(0).hover()
        assert "likely right" not in tab.inner_text(".about")
        # And the doubt is of one sentence.
        tab.locator(".sentences li button:first-child").nth(1).click()
        visit.settled()
        other = visit.record()
        assert re.findall("“(.*?)”", tab.inner_text(".doubt")) == dashed(other)


def test_a_caption_below_the_least_trust_is_withheld_and_a_correction_stays(visit: Visit) -> None:
    tab = visit.tab
    trust = visit.record()["trust"]
    tab.get_by_text("Search settings").click()
    slider = tab.locator("[name=minimum_trust]")
    slider.fill("0.5")
    tab.wait_for_selector(".withheld >> text=settings is 50 %")
    assert "No trusted caption" in tab.inner_text(".withheld") and trust < 0.5
    assert visit.strip() == ["No trusted caption"] and not tab.locator(".review").is_visible()
    assert not tab.locator(".use").is_visible() and not tab.get_attribute(".text", "placeholder")
    assert not tab.locator(".sentence").is_visible() and tab.locator("img.photo").is_visible()
    assert tab.input_value(".text") == ""
    tab.fill(".text", "A person wrote this.")
    slider.fill("0")
    visit.settled()
    assert visit.record()["trust"] == trust and tab.input_value(".text") == "A person wrote this."
    slider.fill("0.5")
    tab.wait_for_selector(".withheld >> text=settings is 50 %")
    assert tab.input_value(".text") == "A person wrote this."
    record = visit.taken_home("jsonl")
    assert json.loads(record)["corrected"] == "A person wrote this."


def test_the_keyboard_and_a_screen_reader_are_enough(visit: Visit) -> None:
    tab = visit.tab
    label = tab.locator(".word").nth(0).get_attribute("aria-label")
    assert re.fullmatch(r"\w+, probability \d+ %, focus: [a-z ]+", label)
    assert tab.locator('.viewer [role="status"]').inner_text().startswith("Caption: ")
    assert tab.locator(".sentence").get_attribute("role") == "toolbar"
    assert tab.locator("img.photo").get_attribute("alt") == sentence(" ".join(visit.words()))
    unnamed = tab.evaluate(
        "[...document.querySelectorAll('.captioner :is(button, a, input, select)')]"
        ".filter(x => !(x.ariaLabel || x.textContent.trim() || x.labels?.length)).length"
    )
    assert unnamed == 0
    legend = " ".join(tab.locator(".legend summary").text_content().split())
    assert "attention from an" in legend and "even share" in legend  # its visible text
    tab.locator(".word").nth(0).focus()
    tab.keyboard.press("ArrowRight")
    assert tab.evaluate("document.activeElement.textContent") == visit.words()[1]
    tab.keyboard.press("End")
    tab.keyboard.press("ArrowRight")  # round to the first
    assert tab.locator(".heat").get_attribute("data-word") == "0"
    tab.keyboard.press("Enter")
    assert tab.locator(".word").nth(0).get_attribute("aria-pressed") == "true"
    tab.keyboard.press("ArrowLeft")  # and back to the last
    last = tab.locator(".word").count() - 1
    assert tab.locator(".heat").get_attribute("data-word") == str(last)
    tab.keyboard.press("Escape")
    assert tab.locator(".heat").get_attribute("data-word") == "-1"
    assert tab.locator(".word[tabindex='0']").all_inner_texts() == visit.words()[:1]
    reached = set()
    for _ in range(60):
        tab.keyboard.press("Tab")
        reached.add(
            tab.evaluate(
                "(x => x.className + x.dataset.sample + x.parentNode.dataset.term + x.tagName)"
                "(document.activeElement)"
            )
        )
    for name in (
        "play", "strength", "colors", "smooth", "copy", "json", "coffee", "choose",
        "probability", "heat", "SUMMARY",
    ):  # fmt: skip
        assert any(name in item for item in reached), name
    # A sentence from right to left
    tab.evaluate("document.querySelectorAll('.word').forEach(word => word.textContent = 'كلمة')")
    first, second = (tab.locator(".word").nth(at).bounding_box()["x"] for at in (0, 1))
    assert first > second
    tab.locator(".word").nth(0).focus()
    tab.keyboard.press("ArrowLeft")  # as it reads
    assert (
        tab.evaluate("[...document.querySelectorAll('.word')].indexOf(document.activeElement)") == 1
    )


def test_an_alternative_has_words_heat_and_numbers_of_its_own(visit: Visit) -> None:
    tab, before, heat = visit.tab, visit.words(), visit.heat()
    second, asked = tab.locator(".sentences li button:first-child").nth(1), len(visit.requests)
    said = second.inner_text()
    tab.press(".text", "Enter")
    assert tab.locator(".strip [data-reviewed]").count() == 1
    second.click()
    visit.settled()
    assert not tab.locator(".strip [data-reviewed]").count()  # a person has accepted another
    assert sentence(" ".join(visit.words())) == said != sentence(" ".join(before))
    assert not any("/api/" in url for url in visit.requests[asked:])  # the record has it
    assert second.get_attribute("aria-pressed") == "true"
    assert tab.evaluate("document.activeElement.textContent") == said  # the focus stays
    tab.locator(".word").last.hover()
    assert visit.heat() != heat and "likely right" in tab.inner_text(".about")
    record = visit.record()
    assert sentence(record["caption"]) == said
    assert record["alternatives"][0]["caption"] == " ".join(before)
    visit.reload()
    assert sentence(" ".join(visit.words())) == said


def test_the_words_of_every_sentence_are_checked(visit: Visit) -> None:
    tab, words, captioned = visit.tab, visit.words(), visit.posts()
    tab.click("text=Search settings")
    tab.check("text=Check each word")
    tab.wait_for_selector("[data-term=effect]")
    assert visit.words() == words and visit.posts() == captioned + 1
    checked = visit.record()
    for each in (checked, *checked["alternatives"]):
        assert all("effect" in word for word in each["words"])
    for place, word in enumerate(checked["words"]):
        tab.locator(".word").nth(place).hover()
        said = tab.inner_text("[data-term=effect] summary")
        less = 100 * (1 - math.exp(-word["effect"]))
        if word["effect"] < 0.05:
            assert said == "also visible elsewhere"
        else:
            assert said.endswith(" % less likely when this area is hidden")
            assert int(said.split()[0]) == pytest.approx(less, abs=0.6)
    tab.locator("[data-term=effect] summary").click()
    assert "may still be right" in tab.inner_text("[data-term=effect] .meaning")
    visit.reload()
    tab.wait_for_selector("[data-term=effect]")
    assert visit.posts() == captioned + 1
    visit.choose(SAMPLES / "rocket.jpg")  # the setting is kept
    assert all("effect" in word for word in visit.record()["words"])


# Rows, columns, box (left, top, right, bottom) and weights of a grid; the place, by hand.
FOCUS: list[tuple[int, int, tuple[float, ...], dict[tuple[int, int], float], str]] = [
    (3, 3, (0, 0, 1, 1), {(2, 0): 1}, "bottom left"),
    (3, 3, (0, 0, 1, 1), {(0, 2): 1}, "top right"),
    (3, 3, (0, 0, 1, 1), {(1, 1): 1}, "middle"),
    (3, 3, (0, 0, 1 / 3, 1), {(0, 2): 1}, "top left"),  # the model saw the left third
    (1, 2, (1 / 3, 2 / 3, 1, 1), {(0, 1): 1}, "bottom right"),
    (2, 4, (0, 0, 1, 1), {(1, 1): 0.5, (1, 2): 0.5}, "bottom"),  # 4 / 9 of it
    (1, 1, (0, 0, 1, 1), {(0, 0): 1}, "spread over the photo"),
    (3, 3, (0, 0, 1, 1), {(0, 0): 0.28, (1, 1): 0.2, (2, 2): 0.2, (0, 2): 0.2, (2, 0): 0.12},
     "top left"),
    (3, 3, (0, 0, 1, 1), {(0, 0): 0.2, (1, 1): 0.2, (2, 2): 0.2, (0, 2): 0.2, (2, 0): 0.2},
     "spread over the photo"),  # less than twice an even share
]  # fmt: skip


def labels(visit: Visit) -> list[str]:
    return [label.get_attribute("aria-label") for label in visit.tab.locator(".word").all()]


def test_focus_and_numbers_of_a_word_are_named_in_the_whole_photo(visit: Visit) -> None:
    words = []
    for rows, columns, box, cells, _ in FOCUS:
        weights = np.zeros((rows, columns), np.float32)
        for cell, weight in cells.items():
            weights[cell] = weight
        attention = {
            "rows": rows, "columns": columns, "box": box, "weights": weights.ravel().tolist()
        }  # fmt: skip
        words.append({"word": "cup", "probability": 0.625, "gate": 0.5, "attention": attention})
    words[3]["gate"] = 0.9
    record = {"alternatives": [], "caption": "a cup", "words": words}
    visit.answer(SAMPLES / "rocket.jpg", record)
    assert visit.tab.get_attribute(".heat", "data-word") == "3"  # without trust the most visual
    unknown = "cup, trust unknown, probability 63 %, focus: "
    assert labels(visit) == [unknown + place for *_, place in FOCUS]
    # A word without a claim has no trust.
    visit.answer(SAMPLES / "rocket.jpg", {**record, "familiarity": 0.5})
    assert labels(visit) == [unknown.replace("trust unknown, ", "") + place for *_, place in FOCUS]
    trusts = {0.0099: "less than 1 %", 0.01: "1 %", 0.29: "29 %", 0.299: "29 %"}
    words = [{"word": "cup", "probability": 0.97, "trust": trust} for trust in trusts]
    visit.answer(SAMPLES / "rocket.jpg", {**record, "words": words})
    assert labels(visit) == [
        f"cup, {said} likely right, probability 97 %" for said in trusts.values()
    ]


@pytest.fixture
def clocked(browser: Any, page_url: str) -> Iterator[Visit]:
    """A visitor whose clock may be set: it is that of all tabs, which have a store of their own."""
    context = browser.new_context(**DESK)
    with visiting(context, page_url) as made:
        yield made
    context.close()


def test_play_runs_through_the_words(clocked: Visit) -> None:
    visit = clocked
    tab, pinned = visit.tab, visit.tab.locator(".heat").get_attribute("data-word")
    tab.clock.install(time=0)
    tab.clock.pause_at(1)  # or a slow machine lets a word pass between two lines
    tab.click(".play")
    assert tab.inner_text(".play") == "Pause"
    assert tab.get_attribute(".play", "aria-pressed") == "true"
    for position, word in enumerate(visit.words()):
        assert tab.locator(".heat").get_attribute("data-word") == str(position)
        assert tab.locator(".word.current").inner_text() == word
        tab.clock.run_for(850)
    assert tab.inner_text(".play") == "Play"
    assert tab.get_attribute(".play", "aria-pressed") == "false"
    assert tab.locator(".heat").get_attribute("data-word") == pinned


def test_what_is_saved_is_what_was_seen(visit: Visit, tmp_path: Path) -> None:
    tab = visit.tab
    with visit.changing():
        tab.click("[data-sample=rocket]")
    sizes = {}
    for kind in ("overlay", "sheet", "animation"):
        saved = visit.save(f"[data-picture={kind}]")
        saved.save_as(tmp_path / kind)
        assert saved.suggested_filename.startswith("rocket-")
        with Image.open(tmp_path / kind) as image:
            sizes[kind] = image.size, getattr(image, "n_frames", 1)
    with Image.open(SAMPLES / "rocket.jpg") as photo:
        assert sizes["overlay"][0] == photo.size
    assert sizes["animation"][1] == len(visit.words()) + 2
    assert visit.posts("api/overlay") == 0  # the page draws it
    record = visit.record()
    assert record["caption"] == " ".join(visit.words()) and record["image"] == "rocket"
    # The picture is of the word that is chosen.
    tab.locator(".word").nth(2).click()
    tab.select_option(".colors", "viridis")
    tab.uncheck(".smooth")
    tab.locator(".strength").fill("40")
    saved = visit.save("[data-picture=overlay]")
    assert saved.suggested_filename == f"rocket-{visit.words()[2]}.png"
    with Image.open(saved.path()) as image:
        drawn = np.asarray(image.convert("RGB"), int)[:350]  # the word is written below
    caption, photo = Caption.from_record(record), SAMPLES / "rocket.jpg"
    look: Any = {"colors": "viridis", "smooth": False, "strength": 0.4}
    expected, neighbour = (
        np.asarray(caption.overlay(place, photo=photo, **look), int)[:350] for place in (2, 3)
    )
    assert np.abs(drawn - expected).max() <= 3 < np.abs(drawn - neighbour).max()
    # One that cannot be drawn says why, and all else stays.
    problem = json.dumps({"type": "busy", "title": "Too busy", "status": 503, "detail": "y"})
    visit.may_fail = True
    tab.route("**/api/sheet", lambda route: route.fulfill(status=503, body=problem))
    tab.click("[data-picture=sheet]")
    tab.wait_for_selector(".saved >> text=Too busy")
    assert record["caption"] == " ".join(visit.words())
