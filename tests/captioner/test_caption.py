"""A caption from Python: how it prints, compares, finds its words and shows itself."""

from __future__ import annotations

import base64
import io
import json
import pickle
import re
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from captioner import Captioner, GenerationConfig
from captioner.caption import Alternative, Caption, Word
from captioner.errors import ConfigError, ImageNotFoundError, ImageTooLargeError
from captioner.photos.transform import Box
from captioner.record import ModelRecord
from captioner.shared.text import json_line

TEXTS = ("a", "Cup", "of", "a", "<b>", "3")


def make_caption(photo: Path | None, size: tuple[int, int] | None = (90, 60)) -> Caption:
    words = []
    for index, text in enumerate(TEXTS):
        attention = np.zeros((2, 3), np.float32)
        attention[index % 2, index % 3] = 1
        gate = 0.9 if text == "Cup" else 0.0
        words.append(Word(text=text, probability=0.5, gate=gate, attention=attention))
    best = Alternative(text=" ".join(TEXTS), score=-0.734, words=tuple(words))
    return Caption(
        sentences=(best, Alternative(text="a mug & saucer", score=-0.9, words=())),
        image=photo and str(photo),
        model=ModelRecord(name="tiny", version="1"),
        box=Box(0, 0, 1, 1),
        size=size,
    )


def changed(caption: Caption, **parts: Any) -> Caption:
    """Change parts of a caption's own sentence."""
    first, *others = caption.sentences
    return replace(caption, sentences=(replace(first, **parts), *others))


@pytest.fixture
def caption(tmp_path: Path) -> Caption:
    Image.new("RGB", (90, 60), "steelblue").save(path := tmp_path / "blue.png")
    return make_caption(path)


def test_repr_has_sentence_and_score(photo: Path, caption: Caption) -> None:
    assert str(caption) == "a Cup of a <b> 3 (score -0.73)"
    assert repr(make_caption(None)) == "Caption('a Cup of a <b> 3', score=-0.73)"
    assert repr(make_caption(photo)).endswith(f", image={str(photo)!r})")
    assert repr(caption.words[1]) == "Word(text='Cup', probability=0.5, gate=0.9)"


def test_equal_captions_are_equal(caption: Caption) -> None:
    other = make_caption(Path(caption.image or ""))
    assert caption == other and hash(caption) == hash(other)
    word = caption.words[0]
    for name in ("probability", "gate", "effect", "trust"):
        assert word != replace(word, **{name: 0.25}), name
    assert word != replace(word, attention=np.zeros((7, 7))) and word != "a"
    assert word == replace(word, subject=True)


@pytest.mark.parametrize(
    ("word", "index"),
    [
        ("a", 0), ("Cup", 1), ("cup", 1), ("CUP ", 1), (0, 0), (5, 5), (np.int64(2), 2), (-1, 5),
        (-6, 0), ("3", 5), (None, 1),
    ],
)  # fmt: skip
def test_find_word_takes_words_and_indices(
    caption: Caption, word: str | int | None, index: int
) -> None:
    assert caption.find_word(word) == index


def test_without_a_gate_the_sharpest_attention_is_found(caption: Caption) -> None:
    even = np.full((2, 3), 1 / 6, np.float32)
    words = [replace(word, gate=None, attention=even) for word in caption.words]
    words[3] = replace(words[3], attention=np.array([[0.1, 0, 0.1], [0.7, 0.1, 0]], np.float32))
    assert changed(caption, words=tuple(words)).find_word() == 3
    assert Word(text="a", probability=1).visual_share == 0


@pytest.mark.parametrize("word", [6, -7, "zebra", "", "2", "1.5", 1.5, [1]])
def test_unknown_words_and_indices_are_refused(caption: Caption, word: object) -> None:
    with pytest.raises(ConfigError, match=re.escape(repr(word)) + ".*6 words"):
        caption.overlay(word)  # type: ignore[arg-type]


def test_the_overlay_is_that_of_the_word(caption: Caption) -> None:
    by_position = caption.overlay(1, smooth=False)
    assert caption.overlay("cup", smooth=False) == by_position == caption.overlay(smooth=False)
    plain = Image.open(caption.image).convert("RGB")
    # The second word looks at the cell in row 1, column 1 of 2 x 3.
    lit = [by_position.getpixel(at) != plain.getpixel(at) for at in ((45, 45), (45, 15), (75, 45))]
    assert lit == [True, False, False]


def test_pictures_name_the_head(caption: Caption) -> None:
    words = (replace(word, heads=np.stack([word.attention] * 2)) for word in caption.words)
    alike = changed(caption, words=tuple(words))
    for draw in (alike.contact_sheet, lambda head: alike.animation(head=head)[0]):
        mean, first, second = (draw(head=head) for head in (None, 1, 2))
        assert mean != first != second != mean


def test_a_photo_that_was_captioned_is_drawn_whatever_its_size(
    caption: Caption, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("captioner.caption.MAX_PIXELS", 90 * 60 - 1)
    assert caption.overlay("cup").size == (90, 60)
    with pytest.raises(ImageTooLargeError):  # a record may name any file
        replace(caption, size=None).overlay("cup")


def test_pictures_need_a_photo(caption: Caption) -> None:
    lost = make_caption(None)
    for draw in (lost.overlay, lost.contact_sheet, lost.animation):
        with pytest.raises(ImageNotFoundError, match=r"overlay\(photo=image\)"):
            draw()
    with Image.open(caption.image or "") as photo:
        data = Path(caption.image or "").read_bytes()
        for given in (photo, np.asarray(photo), data, caption.image):
            assert lost.overlay("cup", photo=given) == caption.overlay("cup")
    assert "a Cup of a &lt;b&gt; 3" in lost._repr_html_()


def test_attention_maps_do_not_open_the_photo() -> None:
    assert make_caption(None, size=(40, 20)).attention_map().shape == (20, 40)
    with pytest.raises(ImageNotFoundError):
        make_caption(None, size=None).attention_map()


def test_a_caption_is_small_and_holds_no_model(captioner: Captioner, photo: Path) -> None:
    config = GenerationConfig(minimum_length=8, maximum_length=8)
    caption = captioner.caption([photo] * 4, config)[0]
    data = pickle.dumps(caption)
    assert len(data) < 500 * len(caption.words) + 1000
    assert pickle.loads(data) == caption and caption.size == (120, 80)
    assert type(caption.words[0].attention) is np.ndarray
    assert caption.words[0].attention.dtype == np.float32


@pytest.mark.parametrize("smooth", [True, False])
def test_attention_is_spread_over_the_pixels_and_sums_to_one(
    caption: Caption, smooth: bool
) -> None:
    """On a photo of 90 x 60 the second word looks at the middle of the lower row."""
    density = caption.attention_map("cup", smooth=smooth)
    assert density.shape == (60, 90) and density.dtype == np.float32
    assert density.sum() == pytest.approx(1, abs=1e-5) and density.min() >= 0
    assert np.unravel_index(density.argmax(), density.shape) >= (30, 30)
    seen = density[30:, 30:60].sum()
    assert seen == pytest.approx(1, abs=1e-5) if not smooth else seen > 0.5
    right = replace(caption, box=Box(0.5, 0, 1, 1)).attention_map("cup", smooth=smooth)
    assert not right[:, :45].any() and right.sum() == pytest.approx(1, abs=1e-5)
    padded = replace(caption, box=Box(0, -0.5, 1, 1.5)).attention_map(0, smooth=smooth)
    assert padded.sum() == pytest.approx(1, abs=1e-5)  # of what lay on the photo
    with pytest.raises(ConfigError, match="no head 2"):
        caption.attention_map(0, head=2)


def test_a_notebook_shows_every_word_and_escapes_it(caption: Caption, photo: Path) -> None:
    page = caption._repr_html_()
    assert page.count("data:image/webp;base64,") == 1 + len(TEXTS)
    assert "&lt;b&gt;" in page and "<b></b>" not in page
    assert "a mug &amp; saucer (score -0.90)" in page
    assert "script" not in page
    assert page != caption._repr_html_()  # two on one page do not move each other's pictures
    assert "doubtful" not in page.partition("</style>")[2]
    words = [replace(word, trust=0.5499 if word.text == "<b>" else None) for word in caption.words]
    marked = changed(caption, words=tuple(words))._repr_html_()
    assert marked.count(' class="doubtful"') == 2  # the word, and the legend
    assert "<small>54 %</small>" in marked
    # The grid covers the right half of the photo, and the words have trust.
    right = changed(caption, words=(replace(caption.words[1], trust=0.9),))
    right = replace(right, box=Box(0.5, 0, 1, 1))
    page = right._repr_html_()
    assert "likely right" in page and "probability" not in page
    plain, drawn = (
        np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"), int)
        for data in re.findall(r"data:image/webp;base64,([\w+/=]+)", page)
    )
    change = abs(drawn - plain).max(axis=(0, 2))
    assert change[: len(change) // 2 - 16].max() < 10 < 50 < change[len(change) // 2 :].max()
    blind = changed(caption, words=(Word(text="a", probability=1),))
    gone = make_caption(photo.with_name("gone.jpg"))
    with pytest.raises(ImageNotFoundError, match=r"gone\.jpg"):
        gone.contact_sheet()
    for said, reason in (blind, "has no attention to draw"), (gone, "gone.jpg"):
        page = said._repr_html_()
        assert "a Cup of a &lt;b&gt; 3" in page and reason in page


def test_pointing_at_a_word_puts_its_attention_on_the_photo(caption: Caption, browser: Any) -> None:
    page = browser.new_page()
    page.set_content(caption._repr_html_())
    pictures = page.locator("figure img")
    for width in (1000, 400):
        page.set_viewport_size({"width": width, "height": 700})
        photo = page.get_by_alt_text("The photo").bounding_box()
        assert all(pictures.nth(n).bounding_box()["width"] < 110 for n in range(len(TEXTS)))
        for show in (page.locator("b").nth(1).hover, page.locator("b").nth(1).focus):
            show()
            assert pictures.nth(1).bounding_box() == photo
            assert pictures.nth(0).bounding_box() != photo
            page.mouse.move(0, 690)
        page.locator("b").nth(1).blur()
        page.locator("figure").nth(4).hover()
        assert pictures.nth(4).bounding_box() == photo
        page.mouse.move(0, 690)
    page.close()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"effect": float("nan")}, r"words\.0\.effect"),
        ({"probability": 2}, r"words\.0\.probability"),
        ({"weights": [float("nan")] * 6}, r"words\.0\.attention\.weights"),
        ({"rows": 1000, "columns": 1000}, r"words\.0\.attention\.rows"),
        ({"heads": [[0.5] * 6]}, "do not sum to 1"),
        ({"heads": [[0.5, 0.5]]}, "there are not 2 x 3 weights"),
        ({"box": [0, 1, 1, 1]}, "the box is empty"),
    ],
)
def test_a_word_that_is_out_of_range_is_refused(
    caption: Caption, change: dict[str, Any], reason: str
) -> None:
    record = caption.record(attention=True)
    word = record["words"][0]
    (word if {"effect", "probability"} & change.keys() else word["attention"]).update(change)
    with pytest.raises(ConfigError, match=reason):
        Caption.from_record(record)


def test_records_without_words_of_alternatives_and_with_marks_are_read(caption: Caption) -> None:
    """A trust of 0.7 is doubtful for the first noun only, which the record marks."""
    words = [replace(word, trust=0.7) for word in caption.words]
    words[0] = replace(words[0], subject=True)
    record = json.loads(json.dumps(changed(caption, words=tuple(words)).record()))
    bare = {"caption": "a mug", "score": -0.8}  # as in a table
    full = {"caption": "a glass", "score": -0.9, "words": record["words"][:1]}
    read = Caption.from_record({**record, "alternatives": [bare, full]})
    (other,) = read.alternatives
    assert (other.text, [word.text for word in other.words]) == ("a glass", ["a"])
    assert [word.doubtful for word in read.words] == [True, False, False, False, False, False]


@pytest.mark.parametrize(("familiarity", "unfamiliar"), [(0.00994, True), (0.00996, False)])
def test_a_record_is_as_unfamiliar_as_its_caption(
    caption: Caption, familiarity: float, unfamiliar: bool
) -> None:
    caption = replace(caption, familiarity=familiarity)
    assert caption.is_unfamiliar is unfamiliar
    assert Caption.from_record(caption.record()).is_unfamiliar is unfamiliar


def test_a_word_is_doubtful_by_its_trust_alone() -> None:
    word = Word(text="of", probability=0.01, gate=0.0, effect=-0.3)
    for trust, is_other, is_subject in (
        (None, False, False), (0.0, True, True), (0.5499, True, True), (0.55, False, True),
        (0.7499, False, True), (0.75, False, False),
    ):  # fmt: skip
        assert replace(word, trust=trust).doubtful is is_other
        assert replace(word, trust=trust, subject=True).doubtful is is_subject


def spoken(**trusts: float | None) -> tuple[Word, ...]:
    return tuple(
        Word(text=text, probability=0.5, trust=trust, attention=np.ones((1, 1), np.float32))
        for text, trust in trusts.items()
    )


@pytest.mark.parametrize(
    ("trust", "words", "doubt"),
    [
        (0.0099, {"a": None, "dog": 0.4, "ran": 0.3}, "This may be wrong: 'ran', or 'sat'"),
        (0.0099, {"a": None, "dog": 0.3, "ran": 0.4}, "This may be wrong: 'dog'"),
        (0.0099, {"a": None, "dog": 0.6, "ran": 0.6}, None),  # no word of it is doubtful
        (0.01, {"a": None, "dog": 0.4, "ran": 0.3}, None),
        (None, {"a": None, "dog": None, "ran": None}, None),
    ],
)
def test_a_caption_that_may_be_wrong_has_a_one_line_warning(
    trust: float | None, words: dict[str, float | None], doubt: str | None, caption: Caption
) -> None:
    others = [
        spoken(a=None, dog=0.9),
        spoken(a=None, dog=0.9, a2=None),
        spoken(a=None, dog=0.9, sat=0.1),
    ]
    alternatives = tuple(Alternative(text="", score=-1, words=other) for other in others)
    said = changed(caption, words=spoken(**words), trust=trust)
    said = replace(said, sentences=(said.sentences[0], *alternatives))
    assert said.doubt == doubt
    marked = any(word.doubtful for word in said.words)
    assert (said.note is not None) is marked
    assert said._repr_html_().count("Dashes mark doubtful words") == marked
    assert said._repr_html_().count("This may be wrong") == (doubt is not None)


NAMES = (
    "Müller 日本.jpg",
    "a\u2028b\x85c",
    "\udcff\ud800\x9b2J",
    "\u202egpj\u2067.\u061cexe",
    '"\\\n\x1b',
)


@pytest.mark.parametrize(
    ("trust", "minimum", "review"),
    [
        (None, None, False),
        (None, 0.01, True),  # a caption that makes no claim
        (0.00994, 0.01, True),
        (0.00996, 0.01, False),  # 0.01 in its record
        (0.0, 0.0, False),
    ],
)
def test_captions_below_the_minimum_trust_are_to_be_reviewed(
    caption: Caption, trust: float | None, minimum: float | None, review: bool
) -> None:
    caption = replace(changed(caption, trust=trust), familiarity=0.12345)
    record = caption.record(minimum_trust=minimum)
    assert record.get("review", False) is review
    assert record["familiarity"] == 0.1235  # four digits, as trust


@pytest.mark.parametrize(
    ("familiarity", "keywords"), [(None, ["man", "sea"]), (0.01, ["man", "sea"]), (0.0099, [])]
)
def test_a_photo_unlike_the_training_photos_has_no_keywords(
    caption: Caption, familiarity: float | None, keywords: list[str]
) -> None:
    words = spoken(Man=0.8, by=None, dog=0.54994, man=0.6, sea=0.54996)  # 0.55 in its record
    seen = replace(changed(caption, words=words), familiarity=familiarity)
    assert seen.record(keywords=0.55)["keywords"] == keywords


@pytest.mark.parametrize("encoding", ["UTF8", "latin-1", None])
@pytest.mark.parametrize("name", NAMES)
def test_a_record_is_a_line_that_any_program_reads(name: str, encoding: str | None) -> None:
    record = {"image": name, "words": [{"word": name}]}
    line = json_line(record, encoding=encoding)
    assert json.loads(line.encode(encoding or "ascii")) == record  # no surrogate is left to fail
    assert len(line.splitlines()) == 1
    assert not any(0x7F <= ord(letter) < 0xA0 or letter in "\u202e\u2067\u061c" for letter in line)
    assert ("ü" in line) == ("ü" in name and encoding == "UTF8")


@pytest.mark.parametrize("heads", [0, 1, 3])
def test_a_caption_survives_its_record(caption: Caption, heads: int) -> None:
    """Through JSON, as the API, batch files and `--json` have it; with every field of records."""
    weights = np.random.default_rng(0).uniform(0, 1, (3, 4, 5)) ** 4
    maps = (weights / weights.sum((1, 2), keepdims=True)).round(6).astype(np.float32)
    word = Word(
        text="<'&\U0001f415", probability=0.1234, gate=0.5, trust=0.75, effect=-1.125,
        attention=maps[:heads].mean(0).round(6) if heads else None,
        heads=maps if heads > 1 else None,
    )  # fmt: skip
    plain = Word(text="a", probability=1.0, attention=maps[0] if heads else None)
    sentence = Alternative(text="a b", score=-1.5, words=(word, plain), trust=0.01)
    caption = Caption(
        sentences=(sentence, replace(sentence, text="c", trust=None)),
        image="a.jpg",
        model=ModelRecord(name="m", version="2", dtype="float32"),
        box=Box(-0.4, 0.0, 1.3, 1.0) if heads else Box(0, 0, 1, 1),
        familiarity=0.25,
        style="long",
    )
    line = json_line(caption.record(attention=True))
    assert Caption.from_record(json.loads(line)) == caption
    assert json_line(Caption.from_record(json.loads(line)).record(attention=True)) == line


def test_a_notebook_does_not_open_what_a_record_names(
    caption: Caption, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.new("RGB", (60, 40)).save(path := tmp_path / "photo.png")
    record = {**caption.record(attention=True), "image": str(path)}
    read = Caption.from_record(record)
    monkeypatch.setattr("captioner.caption.as_source", lambda source: pytest.fail(str(source)))
    assert "<img" not in read._repr_html_() and escape(read.text) in read._repr_html_()
    monkeypatch.undo()
    assert read.contact_sheet().size  # on request it does
