"""A caption as plain data: the sentence, its words and their attention; and pictures of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from html import escape
from operator import index
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from captioner.drawing.animation import animation
from captioner.drawing.notebook import notebook_sheet
from captioner.drawing.overlay import OverlayOptions, Panel, overlay
from captioner.drawing.sheet import contact_sheet
from captioner.errors import ConfigError, ImageError, ImageNotFoundError
from captioner.record import read_record
from captioner.sources import ImageSource, as_source
from captioner.trust.familiarity import UNFAMILIAR
from captioner.trust.trust import DOUBTFUL_CAPTION
from captioner.vision.image import open_image
from captioner.vision.transform import Box
from captioner.word import Word, read_word

__all__ = ["Alternative", "Caption", "ModelName"]

_DOUBTFUL = "doubtful: may be wrong"


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """Another of the best sentences; text, score, words and trust as in a Caption."""

    text: str
    score: float
    words: tuple[Word, ...] = field(repr=False)
    trust: float | None = None


@dataclass(frozen=True, kw_only=True)
class ModelName:
    """The model that wrote a caption.

    dtype: of its weights and arithmetic, such as "bfloat16"; None if not recorded.
    """

    name: str
    version: str
    dtype: str | None = None

    def record(self) -> dict[str, str]:
        """Return the `model` of a record."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True, repr=False)
class Caption:
    """The model's description of one image. Prints as its sentence and score.

    Plain data: it holds no photo and no model. Pictures open `image` again, or take `photo=`.

    text: the sentence.
    score: the beam's ranking score: the summed log-probability of words and end, divided by
        (their number)^length_penalty.
    words: one for each word of the text.
    alternatives: the next best sentences, if more than one caption was asked for.
    image: path or address of the image; None if it has none.
    model: the model that wrote it.
    box: the part of the photo that the attention grid covers, in fractions of width and height.
    size: width and height of the photo in pixels, as viewed; None for a caption from a record.
    familiarity: similarity of the photo to the training photos, 0 to 1, see
        captioner.trust.familiarity; None if the checkpoint has no trust.
    trust: the probability that all words that name something are right, see captioner.trust.trust;
        None if the checkpoint has no trust, or no word names anything.
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
        """Return the sheet that notebooks show; without a photo, the sentence alone."""
        try:
            photo, panels = self._open_photo(None), self.panels()
        except (ImageError, ConfigError) as error:
            return f"<p>{escape(str(self))}</p><p>No picture: {escape(str(error))}</p>"
        return notebook_sheet(
            photo,
            panels,
            score=self.score,
            alternatives=[(other.text, other.score) for other in self.alternatives],
            note=self.note,
            box=self.box,
        )

    @property
    def note(self) -> str | None:
        """What it means that words are drawn as doubtful, and the doubt; None where none is."""
        if not any(word.doubtful for word in self.words):
            return None
        return _DOUBTFUL if self.doubt is None else f"{_DOUBTFUL}. {self.doubt}"

    @property
    def doubt(self) -> str | None:
        """Say that the caption may be wrong, and in which word; None where that is not likely.

        It names the least trusted word, and what the next best sentence with the same beginning
        names in its place.
        """
        if self.trust is None or self.trust >= DOUBTFUL_CAPTION:
            return None
        doubtful = [at for at, word in enumerate(self.words) if word.doubtful]
        if not doubtful:
            return None
        least = min(doubtful, key=lambda at: self.words[at].trust or 0.0)
        before = [word.text for word in self.words[:least]]
        named = self.words[least].text
        runners_up = (
            other.words[least].text
            for other in self.alternatives
            if [word.text for word in other.words[:least]] == before
            and len(other.words) > least
            and other.words[least].trust is not None
            and other.words[least].text != named
        )
        runner_up = next(runners_up, None)
        return f"This may be wrong: '{named}'" + (f", or '{runner_up}'" if runner_up else "")

    @property
    def unfamiliar(self) -> bool:
        """Whether the photo is unlike all that the model has learned from, as far as is known."""
        return self.familiarity is not None and self.familiarity < UNFAMILIAR

    @property
    def checked(self) -> bool:
        """Whether it was measured of every word how much it mattered where the model looked."""
        return bool(self.words) and all(word.effect is not None for word in self.words)

    def find_word(self, word: str | int | None = None) -> int:
        """Return a word's index in `words`.

        Args:
            word: the word itself, in any case (the first if it repeats); its index in `words`,
                negative from the end; None: the word that drew most on the photo.

        Raises ConfigError: there is no such word.
        """
        texts = [each.text for each in self.words]
        if word is None and texts:
            drawn = [each.drawn for each in self.words]
            return drawn.index(max(drawn))
        if isinstance(word, str):
            folded = [text.casefold() for text in texts]
            for wanted, among in ((word, texts), (word.strip().casefold(), folded)):
                if wanted in among:
                    return among.index(wanted)
        elif word is not None:
            try:
                return range(len(texts))[index(word)]
            except (TypeError, IndexError):
                pass
        raise ConfigError(
            f"there is no word {word!r} in {self.text!r}: name one of its words, or an index "
            f"below {len(texts)}"
        )

    def overlay(
        self,
        word: str | int | None = None,
        *,
        photo: ImageSource | None = None,
        head: int | None = None,
        **options: Unpack[OverlayOptions],
    ) -> Image.Image:
        """Draw the attention of one word over the photo, in the photo's own size.

        Args:
            word: as for `find_word`.
            photo: anything that `Captioner.caption` takes; None opens `image`.
            head: one head's attention, from 1; None: the mean of all.
            **options: smooth, strength and colors; see captioner.drawing.overlay.OverlayOptions.

        Raises:
            ConfigError: there is no such word, head or color scale, the strength is out of range,
                or the model has no attention.
            ImageError: there is no photo, or it cannot be opened.
        """
        weights = self.panels(head)[self.find_word(word)].weights
        return overlay(self._open_photo(photo), weights, box=self.box, **options)

    def attention_map(
        self, word: str | int | None = None, *, head: int | None = None, smooth: bool = True
    ) -> NDArray[np.float32]:
        """Return the attention of one word over the photo's pixels: float32 (height, width).

        It sums to 1, and is 0 outside the grid. The photo is opened only if `size` is None.

        Args:
            word: as for `find_word`.
            head: one head's attention, from 1; None: the mean of all.
            smooth: interpolate linearly between the cells; False: each cell is even.

        Raises:
            ConfigError: there is no such word or head, or the model has no attention.
            ImageError: the size is not known, and there is no photo.
        """
        found = self.words[self.find_word(word)]
        size = self.size or self._open_photo(None).size
        return found.attention_map(size, box=self.box, head=head, smooth=smooth)

    def contact_sheet(
        self,
        *,
        photo: ImageSource | None = None,
        head: int | None = None,
        **options: Unpack[OverlayOptions],
    ) -> Image.Image:
        """Draw the photo and every word's attention side by side, as figure 3 of the paper.

        Arguments and errors as for `overlay`.
        """
        panels = self.panels(head)
        title = f"{self.text} {self._shown(head)}".strip()
        return contact_sheet(
            self._open_photo(photo), panels, title=title, note=self.note, box=self.box, **options
        )

    def animation(
        self,
        *,
        photo: ImageSource | None = None,
        head: int | None = None,
        **options: Unpack[OverlayOptions],
    ) -> list[Image.Image]:
        """Draw frames that run through the words, for captioner.drawing.saving.

        Arguments and errors as for `overlay`.
        """
        panels = self.panels(head)
        return animation(
            self._open_photo(photo), panels, note=self._shown(head), box=self.box, **options
        )

    def _open_photo(self, photo: ImageSource | None) -> Image.Image:
        if photo is None and self.image is None:
            raise ImageNotFoundError(
                "the caption has no path to its photo: pass the photo, as in "
                "caption.overlay(photo=image)"
            )
        return open_image(as_source(self.image if photo is None else photo))

    def _shown(self, head: int | None) -> str:
        """Name, in brackets, the head that a picture of all words shows; "" where there is one."""
        shown = self.words[0].shown(head) if self.words else ""
        return f"({shown})" if shown else ""

    def panels(self, head: int | None = None) -> Sequence[Panel]:
        """Each word as captioner.drawing draws it, with one head's attention or the mean of all.

        Raises ConfigError: the model does not attend, or has no such head.
        """
        panels = [
            Panel(word.text, word.probability, weights, doubtful=word.doubtful)
            for word in self.words
            if (weights := word.map(head)) is not None
        ]
        if len(panels) < len(self.words):
            raise ConfigError(
                f"the model {self.model.name} captions without attention: there is nothing to draw"
            )
        return panels

    def choose(self, number: int) -> Caption:
        """Make a caption of an alternative, counted from 1; 0 is this caption itself.

        Raises ConfigError: there is no such alternative.
        """
        own = Alternative(text=self.text, score=self.score, words=self.words, trust=self.trust)
        sentences = [own, *self.alternatives]
        if not 0 <= number < len(sentences):
            found = len(self.alternatives)
            raise ConfigError(f"there is no alternative {number}: this caption has {found}")
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
        """Whether there is less trust in the caption than is asked for; one without trust has 0."""
        # As the record tells it: who reads one finds it on the same side.
        return minimum_trust is not None and round(self.trust or 0.0, 4) < minimum_trust

    def record(
        self, *, attention: bool = False, minimum_trust: float | None = None
    ) -> dict[str, Any]:
        """Give the caption as the record of --json, batch files and HTTP.

        With attention the words carry their weights, row by row over `box`. A caption with less
        trust than `minimum_trust` has `review`: a person should read it first.
        """
        box = self.box if attention else None

        def spoken(sentence: Caption | Alternative) -> dict[str, Any]:
            record = {"caption": sentence.text, "score": round(sentence.score, 4)}
            if sentence.trust is not None:
                record["trust"] = round(sentence.trust, 4)
            return record

        def words(sentence: Caption | Alternative) -> list[dict[str, Any]]:
            return [word.record(box=box) for word in sentence.words]

        record = {"image": self.image, **spoken(self)}
        if self.familiarity is not None:
            record["familiarity"] = round(self.familiarity, 4)
        if self.style is not None:
            record["style"] = self.style
        if self.untrusted(minimum_trust):
            record["review"] = True
        return {
            **record,
            "words": words(self),
            "alternatives": [
                {**spoken(other), "words": words(other)} for other in self.alternatives
            ],
            "model": self.model.record(),
        }

    @classmethod
    def from_record(cls, record: object) -> Caption:
        """Read a caption from its record, of this version or another.

        Numbers are rounded in records, and alternatives without words are left out.

        Raises ConfigError: it is no record, or a number of it is out of range.
        """
        read = read_record(record)
        others = [other for other in read.alternatives if other.words is not None]
        sentences = [read.words, *(other.words or [] for other in others)]
        seen = [word.attention for words in sentences for word in words if word.attention]
        boxes = {Box(*one.box) for one in seen}
        if len(boxes) > 1:
            raise ConfigError("the words of the record have different boxes")
        best, *alternatives = (tuple(map(read_word, words)) for words in sentences)
        return cls(
            text=read.caption,
            score=read.score,
            words=best,
            trust=read.trust,
            alternatives=tuple(
                Alternative(text=other.caption, score=other.score, words=words, trust=other.trust)
                for other, words in zip(others, alternatives, strict=True)
            ),
            image=read.image,
            model=ModelName(**dict(read.model)),
            box=next(iter(boxes), Box(0.0, 0.0, 1.0, 1.0)),
            familiarity=read.familiarity,
            style=read.style,
        )
