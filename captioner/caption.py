"""Captions as plain data: sentences, their words, and the words' attention."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from html import escape
from math import prod
from operator import index
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from captioner.drawing.animation import animation
from captioner.drawing.lettering import label
from captioner.drawing.notebook import notebook_sheet
from captioner.drawing.overlay import WHOLE, OverlayOptions, Panel, attention_density, overlay
from captioner.drawing.sheet import contact_sheet
from captioner.errors import ConfigError, ImageError, ImageNotFoundError, NoWordsError
from captioner.images import ImageSource, as_source
from captioner.photos.open import MAX_PIXELS, open_image
from captioner.photos.transform import Box
from captioner.record import ModelRecord, SentenceRecord, WordRecord, read_record
from captioner.shared.text import KEYWORD_TRUST, choose_keywords
from captioner.trust.familiarity import UNFAMILIAR
from captioner.trust.trust import DOUBTFUL, DOUBTFUL_CAPTION, DOUBTFUL_SUBJECT


@dataclass(frozen=True, kw_only=True, eq=False)
class Word:
    """A word of a caption. Words are equal if all fields but `subject` are.

    Attributes:
        probability: the probability of the word, given the photo and the words before it.
        gate: the share of the context that comes from the photo, 0 to 1 (beta in the paper); None
            if the model has no gate.
        attention: float32 (rows, columns), sums to 1, over the part of the photo in Caption.box;
            None if the model has no attention.
        heads: float32 (heads, rows, columns), whose mean is `attention`; None if there is one head.
        effect: the fall of the word's log-probability without the attended cells minus the fall
            without random cells, in nats; None if not measured. See captioner.deletion.
        trust: the probability that the word is right; None if the checkpoint has no trust, and for
            words without a claim, such as "a" or "group". See captioner.trust.trust.
        subject: whether the word is the caption's first noun. `doubtful` uses a higher limit for
            it.
    """

    text: str
    probability: float
    gate: float | None = None
    attention: NDArray[np.float32] | None = field(default=None, repr=False)
    heads: NDArray[np.float32] | None = field(default=None, repr=False)
    effect: float | None = field(default=None, repr=False)
    trust: float | None = field(default=None, repr=False)
    subject: bool = field(default=False, repr=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Word) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((self.text, self.probability))

    def _key(self) -> tuple[object, ...]:
        maps = [None if part is None else part.tolist() for part in (self.attention, self.heads)]
        return self.text, self.probability, self.gate, self.effect, self.trust, maps

    def map(self, head: int | None = None) -> NDArray[np.float32] | None:
        """Return the attention (rows, columns) of a head, from 1; None: the mean of all heads.

        Raises ConfigError: there is no such head.
        """
        heads = [self.attention] if self.heads is None else [*self.heads]
        if head is None:
            return self.attention
        if not 1 <= head <= len(heads):
            raise ConfigError(f"there is no head {head}: choose from 1 to {len(heads)}")
        return heads[head - 1]

    @property
    def visual_share(self) -> float:
        """The gate; without a gate, the largest attention weight."""
        if self.gate is not None:
            return self.gate
        return 0.0 if self.attention is None else float(self.attention.max())

    @property
    def doubtful(self) -> bool:
        """Whether the trust is below the limit; False if the trust is None."""
        limit = DOUBTFUL_SUBJECT if self.subject else DOUBTFUL
        return self.trust is not None and self.trust < limit

    def record(self, *, box: Box | None = None) -> dict[str, Any]:
        """Return the word's part of the caption's record, with its attention if `box` is given."""
        record: dict[str, Any] = {"word": self.text, "probability": round(self.probability, 4)}
        if self.trust is not None:
            record["trust"] = round(self.trust, 4)
        if self.doubtful:  # a word's trust does not show whether it is the subject
            record["doubtful"] = True
        for name in ("gate", "effect"):
            if (value := getattr(self, name)) is not None:
                record[name] = round(value, 4)
        if box is not None and self.attention is not None:
            rows, columns = self.attention.shape
            record["attention"] = {
                "rows": rows,
                "columns": columns,
                "box": [round(edge, 6) for edge in box],
                "weights": _rounded(self.attention),
            }
            if self.heads is not None:
                record["attention"]["heads"] = [_rounded(head) for head in self.heads]
        return record


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """A sentence of an image: the best one or an alternative.

    Attributes:
        text: the sentence.
        score: the summed log-probability of words and <end>, divided by (their
            number)^length_penalty.
        words: the words of the sentence.
        trust: the probability that all words that make a claim are right; None if no word makes
            one, or if the checkpoint has no trust. See captioner.trust.trust.
    """

    text: str
    score: float
    words: tuple[Word, ...] = field(repr=False)
    trust: float | None = None

    def record(self, *, box: Box | None = None) -> dict[str, Any]:
        """Return the sentence's part of a caption's record, with attention if `box` is given."""
        record: dict[str, Any] = {"caption": self.text, "score": round(self.score, 4)}
        if self.trust is not None:
            record["trust"] = round(self.trust, 4)
        return {**record, "words": [word.record(box=box) for word in self.words]}


@dataclass(frozen=True, kw_only=True, repr=False)
class Caption:
    """A caption of one image. Prints as its sentence and score.

    It holds no photo and no model. Methods that draw open `image` again, unless `photo=` is given.

    Attributes:
        sentences: the caption's own sentence, then its alternatives, best first.
        image: path or address of the image; None if it has none.
        model: the model that made the caption.
        box: the part of the photo that the attention grid covers, in fractions of width and height.
        size: width and height of the photo in pixels, as viewed; None for a caption from a record.
        familiarity: similarity of the photo to the training photos, 0 to 1; None if the checkpoint
            has no trust. See captioner.trust.familiarity.
        style: the style of the sentences; None if the model has no styles.
    """

    sentences: tuple[Alternative, ...]
    image: str | None
    model: ModelRecord
    box: Box
    size: tuple[int, int] | None = None
    familiarity: float | None = None
    style: str | None = None

    @property
    def text(self) -> str:
        """The sentence."""
        return self.sentences[0].text

    @property
    def score(self) -> float:
        """The score of the sentence, see Alternative."""
        return self.sentences[0].score

    @property
    def words(self) -> tuple[Word, ...]:
        """The words of the sentence."""
        return self.sentences[0].words

    @property
    def trust(self) -> float | None:
        """The trust of the sentence, see Alternative."""
        return self.sentences[0].trust

    @property
    def alternatives(self) -> tuple[Alternative, ...]:
        """The next best sentences, if several captions were requested."""
        return self.sentences[1:]

    def __str__(self) -> str:
        return f"{self.text} (score {self.score:.2f})"

    def __repr__(self) -> str:
        image = "" if self.image is None else f", image={self.image!r}"
        return f"Caption({self.text!r}, score={self.score:.2f}{image})"

    def _repr_html_(self) -> str:
        """Return HTML for notebooks; without pictures if the photo cannot be opened.

        The photo of a caption from a record is not opened: the record may name any file or address.
        """
        if self.size is None:
            remedy = "call contact_sheet(photo=...) to open the photo of a record"
            return f"<p>{escape(str(self))}</p><p>No picture: {remedy}</p>"
        try:
            photo, panels = self._open_photo(None), self.panels()
        except (ImageError, ConfigError) as error:
            return f"<p>{escape(str(self))}</p><p>No picture: {escape(str(error))}</p>"
        return notebook_sheet(
            photo,
            panels,
            score=self.score,
            alternatives=[(sentence.text, sentence.score) for sentence in self.alternatives],
            note=self.note,
            measure=self.measure,
            box=self.box,
        )

    @property
    def note(self) -> str | None:
        """The legend for doubtful words and the caption warning; None without doubtful words."""
        if not any(word.doubtful for word in self.words):
            return None
        return ". ".join(filter(None, ("Dashes mark doubtful words", self.doubt)))

    @property
    def doubt(self) -> str | None:
        """A warning that the caption may be wrong; None if its trust is high enough.

        The warning names the least trusted word, and the word that an alternative with the same
        beginning has instead.
        """
        if self.trust is None or self.trust >= DOUBTFUL_CAPTION:
            return None
        doubtful = [at for at, word in enumerate(self.words) if word.doubtful]
        if not doubtful:
            return None
        least = min(doubtful, key=lambda at: self.words[at].trust or 0.0)
        before, word = [word.text for word in self.words[:least]], self.words[least].text
        for words in (sentence.words for sentence in self.alternatives):
            if len(words) > least and [word.text for word in words[:least]] == before:
                other = words[least]
                if other.trust is not None and other.text != word:
                    return f"This may be wrong: '{word}', or '{other.text}'"
        return f"This may be wrong: '{word}'"

    @property
    def error(self) -> NoWordsError | None:
        """The error of a caption without words; None if it has words."""
        if self.text.strip():
            return None
        photo, model = self.image or "the image", self.model.name
        return NoWordsError(f"the model {model} made no words for {photo}: use another model")

    @property
    def is_unfamiliar(self) -> bool:
        """Whether the photo is unlike the training photos; False if familiarity is unknown."""
        # Rounded as in records, so that programs that read records get the same result.
        return self.familiarity is not None and round(self.familiarity, 4) < UNFAMILIAR

    def find_word(self, word: str | int | None = None) -> int:
        """Return a word's index in `words`.

        Args:
            word: the word, ignoring case (its first occurrence); or an index, where negative
                numbers count from the end; None: the word that depends most on the photo.

        Raises ConfigError: there is no such word.
        """
        texts = [candidate.text for candidate in self.words]
        if word is None and texts:
            shares = [candidate.visual_share for candidate in self.words]
            return shares.index(max(shares))
        if isinstance(word, str):
            folded = [text.casefold() for text in texts]
            for key, keys in ((word, texts), (word.strip().casefold(), folded)):
                if key in keys:
                    return keys.index(key)
        elif word is not None:
            with suppress(TypeError, IndexError):
                return range(len(texts))[index(word)]
        raise ConfigError(
            f"there is no word {word!r} in {self.text!r}: use one of its {len(texts)} words"
        )

    def overlay(
        self,
        word: str | int | None = None,
        *,
        photo: ImageSource | None = None,
        head: int | None = None,
        labelled: bool = False,
        **options: Unpack[OverlayOptions],
    ) -> Image.Image:
        """Draw the attention of one word over the photo, at the photo's size.

        Args:
            word: as for `find_word`.
            photo: an image as for `Captioner.caption`; None: open `image`.
            head: the number of the attention head, from 1; None: the mean of all heads.
            labelled: write the word in the lower left corner.
            **options: smooth, strength and colors; see captioner.drawing.overlay.OverlayOptions.

        Raises:
            ConfigError: there is no such word, head or color scale, the strength is out of range,
                or the model has no attention.
            ImageError: the photo is missing or cannot be opened.
        """
        panel = self.panels(head)[self.find_word(word)]
        picture = overlay(self._open_photo(photo), panel.weights, box=self.box, **options)
        return label(picture, panel.word, doubtful=panel.doubtful) if labelled else picture

    def attention_map(
        self, word: str | int | None = None, *, head: int | None = None, smooth: bool = True
    ) -> NDArray[np.float32]:
        """Return the attention of one word to the photo's pixels: float32 (height, width).

        The result sums to 1 and is 0 outside the grid. `smooth` interpolates linearly between
        cells. The photo is opened only if `self.size` is None. Other arguments and errors as for
        `overlay`.
        """
        weights = self.panels(head)[self.find_word(word)].weights
        size = self.size or self._open_photo(None).size
        return attention_density(weights, size, box=self.box, smooth=smooth)

    def contact_sheet(
        self,
        *,
        photo: ImageSource | None = None,
        head: int | None = None,
        **options: Unpack[OverlayOptions],
    ) -> Image.Image:
        """Draw the photo and the attention of every word on one sheet (Xu et al., figure 3).

        Arguments and errors as for `overlay`.
        """
        panels = self.panels(head)
        return contact_sheet(
            self._open_photo(photo),
            panels,
            title=f"{self.text} {self.head_label(head)}".strip(),
            note=self.note,
            measure=self.measure,
            box=self.box,
            **options,
        )

    def animation(
        self,
        *,
        photo: ImageSource | None = None,
        head: int | None = None,
        **options: Unpack[OverlayOptions],
    ) -> list[Image.Image]:
        """Draw the attention of every word as the frames of an animation.

        captioner.drawing.saving.save_animation writes them to a file.

        Arguments and errors as for `overlay`.
        """
        panels = self.panels(head)
        return animation(
            self._open_photo(photo), panels, note=self.head_label(head), box=self.box, **options
        )

    def _open_photo(self, photo: ImageSource | None) -> Image.Image:
        if photo is None and self.image is None:
            raise ImageNotFoundError(
                "the caption has no path to its photo: pass photo=, as in "
                "caption.overlay(photo=image)"
            )
        # A captioner with another `max_pixels` has accepted a photo of this size.
        limit = max(MAX_PIXELS, prod(self.size or (0,)))
        return open_image(as_source(self.image if photo is None else photo), max_pixels=limit)

    def head_label(self, head: int | None = None) -> str:
        """Return a label of a head's weights, in brackets; "" if the model has one head."""
        if not self.words or (heads := self.words[0].heads) is None:
            return ""
        count = len(heads)
        return f"(mean of {count} heads)" if head is None else f"(head {head} of {count})"

    @property
    def measure(self) -> str:
        """The label of the numbers beside the words in pictures: trusts or probabilities."""
        has_trust = any(word.trust is not None for word in self.words)
        return "likely right" if has_trust else "probability"

    def panels(self, head: int | None = None) -> Sequence[Panel]:
        """Return the words for captioner.drawing, with the attention of one head or the mean.

        Raises ConfigError: the model has no attention, or no such head.
        """
        panels, has_trust = [], any(word.trust is not None for word in self.words)
        for word in self.words:
            if (weights := word.map(head)) is None:
                raise ConfigError(f"the model {self.model.name} has no attention to draw")
            confidence = word.trust if has_trust else word.probability
            panels.append(Panel(word.text, confidence, weights, doubtful=word.doubtful))
        return panels

    def choose(self, number: int) -> Caption:
        """Return a caption whose sentence is alternative `number`, from 1; 0 returns this caption.

        Raises ConfigError: there is no such alternative.
        """
        sentences = [*self.sentences]
        if not 0 <= number < len(sentences):
            raise ConfigError(
                f"there is no alternative {number}: the caption has {len(sentences) - 1}"
            )
        return replace(self, sentences=(sentences.pop(number), *sentences)) if number else self

    def is_below(self, minimum_trust: float | None) -> bool:
        """Whether the trust is below a minimum; a caption without trust counts as 0."""
        # Rounded as in records, so that programs that read records get the same result.
        return minimum_trust is not None and round(self.trust or 0.0, 4) < minimum_trust

    def keywords(self, minimum_trust: float = KEYWORD_TRUST) -> list[str]:
        """Return the words with a trust of at least `minimum_trust`, in lower case.

        Empty if the checkpoint has no trust, or if the photo is unlike the training photos.
        """
        words = () if self.is_unfamiliar else self.words
        return choose_keywords(
            ((word.text, word.trust) for word in words), minimum_trust=minimum_trust
        )

    def record(
        self,
        *,
        attention: bool = False,
        minimum_trust: float | None = None,
        keywords: float | None = None,
    ) -> dict[str, Any]:
        """Return the caption as a record, the JSON of --json, batch files and HTTP responses.

        Args:
            attention: include the words' attention, row by row over `box`.
            minimum_trust: set `review` in the record if the caption has less trust.
            keywords: the minimum trust of a keyword; None: the record has no keywords.
        """
        box = self.box if attention else None
        sentence, *alternatives = (part.record(box=box) for part in self.sentences)
        words = sentence.pop("words")
        record = {"image": self.image, **sentence}
        if self.familiarity is not None:
            record["familiarity"] = round(self.familiarity, 4)
        if self.style is not None:
            record["style"] = self.style
        if self.is_below(minimum_trust):
            record["review"] = True
        if keywords is not None:
            record["keywords"] = self.keywords(keywords)
        model = self.model.model_dump(exclude_none=True)
        return {**record, "words": words, "alternatives": alternatives, "model": model}

    @classmethod
    def from_record(cls, record: object) -> Caption:
        """Read a caption from its record, of this version or an earlier one.

        Numbers are rounded in records. Alternatives without words are skipped.

        Raises ConfigError: the argument is not a record, or a value is out of range.
        """
        read = read_record(record)
        sentences = [part for part in (read, *read.alternatives) if part.words is not None]
        words = [word for part in sentences for word in part.words or ()]
        boxes = {Box(*word.attention.box) for word in words if word.attention}
        if len(boxes) > 1:
            raise ConfigError("the words of the record have different boxes")
        return cls(
            sentences=tuple(map(_read_sentence, sentences)),
            image=read.image,
            model=read.model,
            box=next(iter(boxes), WHOLE),
            familiarity=read.familiarity,
            style=read.style,
        )


def _read_sentence(read: SentenceRecord) -> Alternative:
    words = tuple(map(_read_word, read.words or ()))
    return Alternative(text=read.caption, score=read.score, words=words, trust=read.trust)


def _read_word(read: WordRecord) -> Word:
    attention = read.attention
    maps: dict[str, NDArray[np.float32]] = {}
    if attention is not None:
        shape = (attention.rows, attention.columns)
        maps["attention"] = np.array(attention.weights, np.float32).reshape(shape)
        if attention.heads is not None:
            maps["heads"] = np.array(attention.heads, np.float32).reshape(-1, *shape)
    return Word(
        text=read.word,
        probability=read.probability,
        trust=read.trust,
        subject=read.doubtful is True,
        gate=read.gate,
        effect=read.effect,
        **maps,
    )


def _rounded(weights: NDArray[np.float32]) -> list[float]:
    # The same as round(), because a float32 times 10^6 is exact in float64.
    rounded: list[float] = np.round(weights.ravel().astype(np.float64), 6).tolist()
    return rounded
