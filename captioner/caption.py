"""A caption: the sentence, its words with what is known of each, and the pictures of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from html import escape
from operator import index
from typing import TYPE_CHECKING, Any

from PIL import Image

from captioner.drawing.animation import animation
from captioner.drawing.colors import DEFAULT_COLORS
from captioner.drawing.notebook import notebook_sheet
from captioner.drawing.overlay import DEFAULT_STRENGTH, Panel, overlay
from captioner.drawing.sheet import contact_sheet
from captioner.errors import ConfigError, ImageError
from captioner.familiarity import UNFAMILIAR
from captioner.vision.transform import Box
from captioner.word import Word, read_number

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Alternative", "Caption", "ModelName"]

# Of a record that somebody sent: what no model of ours exceeds.
_MOST_WORDS, _MOST_OTHERS, _LONGEST = 256, 20, 20_000

GUESSED_CHECKED = (
    "guessed: when the places that it looked at are hidden, the model finds the word about as "
    "likely as when others are"
)
GUESSED_BY_GATE = (
    "guessed: the model drew less than 10 % on the photo, and made the word from those before it"
)


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """Another of the best sentences; text, score and words as in a Caption."""

    text: str
    score: float
    words: tuple[Word, ...] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class ModelName:
    """Which checkpoint made a caption."""

    name: str
    version: str


@dataclass(frozen=True, kw_only=True, repr=False)
class Caption:
    """What the model says about one image. It prints as its sentence and score.

    In a notebook it is shown as a sheet: pointing at a word puts its attention on the photo.

    text: the sentence.
    score: what ranks it: the log-probability of words and end over (their number)^length_penalty.
    words: one for each word of the text.
    alternatives: the next best sentences, where more than one caption was asked for.
    image: the path as given; None for an image that has none.
    box: the part of the photo that the attention grid covers, in fractions of width and height.
    familiarity: how much the photo is like those of the training, 0 to 1, see
        captioner.familiarity; None where the checkpoint does not know.
    style: of the sentence, by its name; None where the model has no styles.
    """

    text: str
    score: float
    words: tuple[Word, ...]
    alternatives: tuple[Alternative, ...]
    image: str | None
    model: ModelName
    box: Box
    # Captioning decodes a large photo small; a picture of it is wanted in full, and only now.
    open_photo: Callable[[], Image.Image] = field(repr=False, compare=False)
    familiarity: float | None = None
    style: str | None = None

    def __str__(self) -> str:
        return f"{self.text} (score {self.score:.2f})"

    def __repr__(self) -> str:
        image = "" if self.image is None else f", image={self.image!r}"
        return f"Caption({self.text!r}, score={self.score:.2f}{image})"

    def _repr_html_(self) -> str:
        """Give the sheet that notebooks show."""
        try:
            photo, panels = self.open_photo(), self.panels()
        except (ImageError, ConfigError) as error:
            return f"<p>{escape(str(self))}</p><p>There is no picture: {escape(str(error))}</p>"
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
        """What it means that words are drawn as guessed; None where none is."""
        if not any(word.guessed for word in self.words):
            return None
        return GUESSED_CHECKED if self.checked else GUESSED_BY_GATE

    @property
    def unfamiliar(self) -> bool:
        """Whether the photo is unlike all that the model has learned from, as far as is known."""
        return self.familiarity is not None and self.familiarity < UNFAMILIAR

    @property
    def checked(self) -> bool:
        """Whether it was measured of every word how much it mattered where the model looked."""
        return bool(self.words) and all(word.effect is not None for word in self.words)

    def find_word(self, word: str | int | None = None) -> int:
        """Find a word's index in `words`, from 0.

        Args:
            word: the word itself, of which the first is taken, in capitals or not; its position
                from 1, from the end when negative; None: the word that drew most on the photo.

        Raises:
            ConfigError: there is no such word.

        """
        texts = [other.text for other in self.words]
        if word is None and texts:
            drawn = [other.drawn for other in self.words]
            return drawn.index(max(drawn))
        if isinstance(word, str):
            folded = [text.casefold() for text in texts]
            for wanted, among in ((word, texts), (word.strip().casefold(), folded)):
                if wanted in among:
                    return among.index(wanted)
        try:
            position = int(word) if isinstance(word, str) else index(word)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            position = 0
        if 1 <= abs(position) <= len(texts):
            return position - 1 if position > 0 else position + len(texts)
        raise ConfigError(
            f"there is no word {word!r} in {self.text!r}: "
            f"name one of its words, or a position from 1 to {len(texts)}"
        )

    def overlay(
        self,
        word: str | int | None = None,
        *,
        smooth: bool = True,
        strength: float = DEFAULT_STRENGTH,
        colors: str = DEFAULT_COLORS,
        head: int | None = None,
    ) -> Image.Image:
        """Draw the attention of one word over the photo, in the photo's own size.

        Args:
            word: the word, or its position from 1, as `--word` takes them; see find_word. None:
                the word that drew most on the photo.
            smooth: blend between the cells of the grid; False shows them as they are.
            strength: of the colours, 0 to 1.
            colors: a colour scale by name; see captioner.drawing.colors.
            head: one head's attention, from 1; None: the mean of all.

        Raises:
            ConfigError: there is no such word, head, strength or colour scale, or the model does
                not attend.
            ImageError: the photo is no longer there.

        """
        found = self.panels(head)[self.find_word(word)]
        return overlay(
            self.open_photo(),
            found.weights,
            box=self.box,
            smooth=smooth,
            strength=strength,
            colors=colors,
        )

    def contact_sheet(
        self,
        *,
        smooth: bool = True,
        strength: float = DEFAULT_STRENGTH,
        colors: str = DEFAULT_COLORS,
        head: int | None = None,
    ) -> Image.Image:
        """Draw the photo and every word's attention side by side: the paper's figure 3.

        Raises:
            ConfigError: no such head, strength or colour scale, or the model does not attend.
            ImageError: the photo is no longer there.

        """
        return contact_sheet(
            self.open_photo(),
            self.panels(head),
            title=self.text,
            note=self.note,
            box=self.box,
            smooth=smooth,
            strength=strength,
            colors=colors,
        )

    def animation(
        self,
        *,
        smooth: bool = True,
        strength: float = DEFAULT_STRENGTH,
        colors: str = DEFAULT_COLORS,
        head: int | None = None,
    ) -> list[Image.Image]:
        """Draw the frames that run through the words; see captioner.drawing.saving.

        Raises:
            ConfigError: no such head, strength or colour scale, or the model does not attend.
            ImageError: the photo is no longer there.

        """
        return animation(
            self.open_photo(),
            self.panels(head),
            box=self.box,
            smooth=smooth,
            strength=strength,
            colors=colors,
        )

    def panels(self, head: int | None = None) -> Sequence[Panel]:
        """Each word as captioner.drawing draws it, with one head's attention or the mean of all.

        Raises:
            ConfigError: the model does not attend, or has no such head.

        """
        panels = [
            Panel(word.text, word.probability, weights, guessed=word.guessed)
            for word in self.words
            if (weights := word.map(head)) is not None
        ]
        if len(panels) < len(self.words):
            raise ConfigError(
                f"the model {self.model.name} captions without attention: there is nothing to draw"
            )
        return panels

    def choose(self, number: int) -> Caption:
        """Make a caption of one of the alternatives, with words and pictures of its own.

        Args:
            number: 0 is this caption itself, 1 the first alternative.

        Raises:
            ConfigError: there is no such alternative.

        """
        if not 0 <= number <= len(self.alternatives):
            found = len(self.alternatives)
            raise ConfigError(f"there is no alternative {number}: this caption has {found}")
        if number == 0:
            return self
        chosen = self.alternatives[number - 1]
        own = Alternative(text=self.text, score=self.score, words=self.words)
        others = (own, *(other for other in self.alternatives if other is not chosen))
        return replace(
            self, text=chosen.text, score=chosen.score, words=chosen.words, alternatives=others
        )

    def record(self, *, attention: bool = False) -> dict[str, Any]:
        """Give the caption as the record of --json, batch files and HTTP.

        Args:
            attention: whether the words carry their weights, row-major over `box`. A model without
                attention or gate leaves them out.

        """
        box = self.box if attention else None
        known = {} if self.familiarity is None else {"familiarity": round(self.familiarity, 4)}
        return {
            "image": self.image,
            "caption": self.text,
            "score": round(self.score, 4),
            **known,
            **({} if self.style is None else {"style": self.style}),
            "words": [word.record(box=box) for word in self.words],
            "alternatives": [
                {
                    "caption": other.text,
                    "score": round(other.score, 4),
                    "words": [word.record(box=box) for word in other.words],
                }
                for other in self.alternatives
            ],
            "model": {"name": self.model.name, "version": self.model.version},
        }

    @classmethod
    def from_record(cls, record: object, *, open_photo: Callable[[], Image.Image]) -> Caption:
        """Make a caption of its record again, to draw it or to test its words.

        Numbers are rounded in records, and alternatives without words are left out.

        Args:
            record: as `record` gives it, of this version or another.
            open_photo: opens the photo.

        Raises:
            ConfigError: it is no record, or a number of it is out of range.

        """
        if not isinstance(record, Mapping):
            raise ConfigError("the record is no object")
        text, score, words, boxes = _read_sentence(record)
        others = record.get("alternatives", [])
        if not isinstance(others, list) or len(others) > _MOST_OTHERS:
            raise ConfigError(f"the record's alternatives are no list of {_MOST_OTHERS} or fewer")
        alternatives = []
        for other in others:
            if isinstance(other, Mapping) and "words" in other:
                one = _read_sentence(other)
                alternatives.append(Alternative(text=one[0], score=one[1], words=one[2]))
                boxes |= one[3]
        if len(boxes) > 1:
            raise ConfigError("the words of the record have different boxes")
        familiarity, style, image = (record.get(key) for key in ("familiarity", "style", "image"))
        model = record.get("model")
        names = model if isinstance(model, Mapping) else {}
        return cls(
            text=text,
            score=score,
            words=words,
            alternatives=tuple(alternatives),
            image=image if isinstance(image, str) else None,
            model=ModelName(name=str(names.get("name")), version=str(names.get("version"))),
            box=next(iter(boxes), Box(0.0, 0.0, 1.0, 1.0)),
            open_photo=open_photo,
            familiarity=None if familiarity is None else read_number(familiarity, "familiarity"),
            style=style if isinstance(style, str) else None,
        )


def _read_sentence(record: Mapping[Any, Any]) -> tuple[str, float, tuple[Word, ...], set[Box]]:
    """Read the sentence of a record or of one of its alternatives, and where its words looked."""
    text, words = record.get("caption"), record.get("words")
    if not isinstance(text, str) or not isinstance(words, list):
        raise ConfigError("the record has no caption with words")
    if len(words) > _MOST_WORDS:
        raise ConfigError(f"the record has more than {_MOST_WORDS} words")
    score = read_number(record.get("score"), "the score", -1e6, 1e6)
    read = [Word.from_record(word) for word in words]
    boxes = {box for _, box in read if box is not None}
    return text[:_LONGEST], score, tuple(word for word, _ in read), boxes
