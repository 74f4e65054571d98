"""Captions as plain data: the sentence, its words and their attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from math import prod
from operator import index
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from captioner.alternative import Alternative
from captioner.drawing.animation import animation
from captioner.drawing.lettering import label
from captioner.drawing.notebook import notebook_sheet
from captioner.drawing.overlay import OverlayOptions, Panel, overlay
from captioner.drawing.sheet import contact_sheet
from captioner.errors import ConfigError, ImageError, ImageNotFoundError
from captioner.record import read_record
from captioner.sources import ImageSource, as_source
from captioner.trust.doubt import doubt_of
from captioner.trust.familiarity import UNFAMILIAR
from captioner.trust.keywords import KEYWORD_TRUST, choose_keywords
from captioner.trust.trust import DOUBTFUL_CAPTION
from captioner.vision.image import MAX_PIXELS, open_image
from captioner.vision.transform import Box
from captioner.word import Word, read_word

__all__ = ["Caption", "ModelName"]

_DOUBTFUL = "Dashes mark doubtful words"


@dataclass(frozen=True, kw_only=True)
class ModelName:
    """The model that made a caption. `dtype` is None in records of version 0.1."""

    name: str
    version: str
    dtype: str | None = None

    def record(self) -> dict[str, str]:
        """Return the value of `model` in a record."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True, repr=False)
class Caption:
    """A caption of one image. Prints as its sentence and score.

    It holds no photo and no model. Methods that draw open `image` again, unless `photo=` is given.

    text: the sentence.
    score: the summed log-probability of words and <end>, divided by (their number)^length_penalty.
    words: the words of the sentence.
    alternatives: the next best sentences, if several captions were requested.
    image: path or address of the image; None if it has none.
    model: the model that made the caption.
    box: the part of the photo that the attention grid covers, in fractions of width and height.
    size: width and height of the photo in pixels, as viewed; None for a caption from a record.
    familiarity: similarity of the photo to the training photos, 0 to 1; None if the checkpoint has
        no trust. See captioner.trust.familiarity.
    trust: the probability that all words that make a claim are right; None if no word makes one,
        or if the checkpoint has no trust. See captioner.trust.trust.
    style: the style of the sentence; None if the model has no styles.
    """

    text: str
    score: float
    words: tuple[Word, ...]
    alternatives: tuple[Alternative, ...]
    image: str | None
    model: ModelName
    box: Box
    size: tuple[int, int] | None = None
    familiarity: float | None = None
    trust: float | None = None
    style: str | None = None

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
        return ". ".join(filter(None, (_DOUBTFUL, self.doubt)))

    @property
    def doubt(self) -> str | None:
        """A warning that the caption may be wrong; None if its trust is high enough."""
        if self.trust is None or self.trust >= DOUBTFUL_CAPTION:
            return None
        return doubt_of(self.words, (sentence.words for sentence in self.alternatives))

    @property
    def unfamiliar(self) -> bool:
        """Whether the photo is unlike the training photos; False if familiarity is unknown."""
        return self.familiarity is not None and self.familiarity < UNFAMILIAR

    @property
    def checked(self) -> bool:
        """Whether every word has its `effect`."""
        return bool(self.words) and all(word.effect is not None for word in self.words)

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
            try:
                return range(len(texts))[index(word)]
            except (TypeError, IndexError):
                pass
        raise ConfigError(
            f"there is no word {word!r} in {self.text!r}: use one of its words, or an index "
            f"below {len(texts)}"
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

        The result sums to 1 and is 0 outside the grid. The photo is opened only if `self.size` is
        None.

        Args:
            word: as for `find_word`.
            head: the number of the attention head, from 1; None: the mean of all heads.
            smooth: interpolate linearly between cells; False: cells are constant.

        Raises:
            ConfigError: there is no such word or head, or the model has no attention.
            ImageError: `self.size` is None, and the photo is missing or cannot be opened.
        """
        index = self.find_word(word)
        size = self.size or self._open_photo(None).size
        return self.words[index].attention_map(size, box=self.box, head=head, smooth=smooth)

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
        title = f"{self.text} {self._head_label(head)}".strip()
        return contact_sheet(
            self._open_photo(photo),
            panels,
            title=title,
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
            self._open_photo(photo), panels, note=self._head_label(head), box=self.box, **options
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

    def _head_label(self, head: int | None) -> str:
        """Return the label of a head in brackets; "" if the model has one head."""
        label = self.words[0].head_label(head) if self.words else ""
        return f"({label})" if label else ""

    @property
    def _has_trust(self) -> bool:
        return any(word.trust is not None for word in self.words)

    @property
    def measure(self) -> str:
        """The label of the numbers beside the words in pictures: trusts or probabilities."""
        return "likely right" if self._has_trust else "probability"

    def panels(self, head: int | None = None) -> Sequence[Panel]:
        """Return the words for captioner.drawing, with the attention of one head or the mean.

        Raises ConfigError: the model has no attention, or no such head.
        """
        has_trust = self._has_trust
        panels = [
            Panel(
                word.text,
                word.trust if has_trust else word.probability,
                weights,
                doubtful=word.doubtful,
            )
            for word in self.words
            if (weights := word.map(head)) is not None
        ]
        if len(panels) < len(self.words):
            raise ConfigError(f"the model {self.model.name} has no attention to draw")
        return panels

    def _sentence(self) -> Alternative:
        return Alternative(text=self.text, score=self.score, words=self.words, trust=self.trust)

    def choose(self, number: int) -> Caption:
        """Return a caption whose sentence is alternative `number`, from 1; 0 returns this caption.

        Raises ConfigError: there is no such alternative.
        """
        sentences = [self._sentence(), *self.alternatives]
        if not 0 <= number < len(sentences):
            count = len(self.alternatives)
            raise ConfigError(f"there is no alternative {number}: the caption has {count}")
        if number == 0:
            return self
        chosen = sentences.pop(number)
        return replace(
            self,
            text=chosen.text,
            score=chosen.score,
            words=chosen.words,
            trust=chosen.trust,
            alternatives=tuple(sentences),
        )

    def untrusted(self, minimum_trust: float | None) -> bool:
        """Whether the trust is below a minimum; a caption without trust counts as 0."""
        # Rounded as in records, so that programs that read records get the same result.
        return minimum_trust is not None and round(self.trust or 0.0, 4) < minimum_trust

    def keywords(self, minimum_trust: float = KEYWORD_TRUST) -> list[str]:
        """Return the words with a trust of at least `minimum_trust`, in lower case.

        See captioner.trust.keywords.

        Empty if the checkpoint has no trust, or if the photo is unlike the training photos, from
        which trust was learned.
        """
        words = () if self.unfamiliar else self.words
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
        sentence = self._sentence().record(box=box)
        words = sentence.pop("words")
        record = {"image": self.image, **sentence}
        if self.familiarity is not None:
            record["familiarity"] = round(self.familiarity, 4)
        if self.style is not None:
            record["style"] = self.style
        if self.untrusted(minimum_trust):
            record["review"] = True
        if keywords is not None:
            record["keywords"] = self.keywords(keywords)
        return {
            **record,
            "words": words,
            "alternatives": [alternative.record(box=box) for alternative in self.alternatives],
            "model": self.model.record(),
        }

    @classmethod
    def from_record(cls, record: object) -> Caption:
        """Read a caption from its record, of this version or an earlier one.

        Numbers are rounded in records. Alternatives without words are skipped.

        Raises ConfigError: the argument is not a record, or a value is out of range.
        """
        read = read_record(record)
        alternatives = [sentence for sentence in read.alternatives if sentence.words is not None]
        sentences = [read.words, *(sentence.words or [] for sentence in alternatives)]
        maps = [word.attention for words in sentences for word in words if word.attention]
        boxes = {Box(*attention.box) for attention in maps}
        if len(boxes) > 1:
            raise ConfigError("the words of the record have different boxes")
        best, *other_words = (tuple(map(read_word, words)) for words in sentences)
        return cls(
            text=read.caption,
            score=read.score,
            words=best,
            trust=read.trust,
            alternatives=tuple(
                Alternative(
                    text=sentence.caption, score=sentence.score, words=words, trust=sentence.trust
                )
                for sentence, words in zip(alternatives, other_words, strict=True)
            ),
            image=read.image,
            model=ModelName(**dict(read.model)),
            box=next(iter(boxes), Box(0.0, 0.0, 1.0, 1.0)),
            familiarity=read.familiarity,
            style=read.style,
        )
