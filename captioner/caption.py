"""A caption: the sentence, its words with what is known of each, and the pictures of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from html import escape
from operator import index
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from captioner.drawing.animation import animation
from captioner.drawing.notebook import notebook_sheet
from captioner.drawing.overlay import WHOLE, Look, Panel, attention_density, overlay
from captioner.drawing.sheet import contact_sheet
from captioner.errors import ConfigError, ImageError
from captioner.record import WordRecord, read_record
from captioner.trust.familiarity import UNFAMILIAR
from captioner.trust.trust import DOUBTFUL, DOUBTFUL_CAPTION, DOUBTFUL_SUBJECT
from captioner.vision.transform import Box

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Alternative", "Caption", "ModelName", "Word"]

_DOUBTFUL = "doubtful: may be wrong"


@dataclass(frozen=True, kw_only=True, eq=False)
class Word:
    """One word of a caption; two are equal when all that is known of them is.

    probability: of this word, given the photo and the words before it.
    gate: how much the model drew on what it saw, against what it had said (beta in the paper); None
        where the model has no gate.
    attention: (rows, columns), sums to 1, over the part of the photo that Caption.box names; None
        where the model does not attend.
    heads: (heads, rows, columns), of which attention is the mean; None where there is but one.
    effect: how much further the word's log-probability falls without the cells that it looked at
        than without others, in nats; None where nobody checked it. See captioner.deletion.
    trust: the probability that it is right, see captioner.trust; None where the checkpoint does not
        know, and for words without a claim, such as "a", "group" or "next".
    subject: whether it is the first noun of the caption, which is doubtful below a higher trust.
    """

    text: str
    probability: float
    gate: float | None = None
    attention: Tensor | None = field(default=None, repr=False)
    heads: Tensor | None = field(default=None, repr=False)
    effect: float | None = field(default=None, repr=False)
    trust: float | None = field(default=None, repr=False)
    subject: bool = field(default=False, repr=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Word) and self._known() == other._known()

    def __hash__(self) -> int:
        return hash((self.text, self.probability))

    def _known(self) -> tuple[object, ...]:
        maps = [None if part is None else part.tolist() for part in (self.attention, self.heads)]
        return self.text, self.probability, self.gate, self.effect, self.trust, maps

    def map(self, head: int | None = None) -> Tensor | None:
        """Give the attention (rows, columns) of one head, from 1; None: the mean of all.

        Raises ConfigError: there is no such head.
        """
        heads = [self.attention] if self.heads is None else [*self.heads]
        if head is None:
            return self.attention
        if not 1 <= head <= len(heads):
            raise ConfigError(f"there is no head {head}: they go from 1 to {len(heads)}")
        return heads[head - 1]

    def attention_map(
        self,
        size: tuple[int, int],
        *,
        box: Box = WHOLE,
        head: int | None = None,
        smooth: bool = True,
    ) -> NDArray[np.float32]:
        """Spread the attention over a photo of a size (width, height): an array (height, width).

        It sums to 1. `box` is the caption's, where the grid covers no more than a part of the
        photo: outside it is 0. With `smooth=False` every cell of the grid is even.

        Raises ConfigError: the model does not attend, or there is no such head.
        """
        weights = self.map(head)
        if weights is None:
            raise ConfigError("the model captions without attention: there is no map")
        return attention_density(weights, size, box=box, smooth=smooth)

    def shown(self, head: int | None = None) -> str:
        """Name what `map` gives, as pictures do; nothing where there is but one head."""
        if self.heads is None:
            return ""
        count = len(self.heads)
        return f"mean of {count} heads" if head is None else f"head {head} of {count}"

    @property
    def drawn(self) -> float:
        """How much it drew on the photo; without a gate, how much of its attention one cell has."""
        if self.gate is not None:
            return self.gate
        return 0.0 if self.attention is None else float(self.attention.max())

    @property
    def doubtful(self) -> bool:
        """Whether it is marked as perhaps wrong; False if its trust is not known."""
        limit = DOUBTFUL_SUBJECT if self.subject else DOUBTFUL
        return self.trust is not None and self.trust < limit

    def record(self, *, box: Box | None = None) -> dict[str, Any]:
        """Give the word as a part of the caption's record; without a box, without its weights."""
        record: dict[str, Any] = {"word": self.text, "probability": round(self.probability, 4)}
        if self.trust is not None:
            record["trust"] = round(self.trust, 4)
        if self.gate is not None:
            record["gate"] = round(self.gate, 4)
        if self.effect is not None:
            record["effect"] = round(self.effect, 4)
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
    """Another of the best sentences; text, score, words and trust as in a Caption."""

    text: str
    score: float
    words: tuple[Word, ...] = field(repr=False)
    trust: float | None = None


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
    score: by which a beam found it: the log-probability of words and end over
        (their number)^length_penalty.
    words: one for each word of the text.
    alternatives: the next best sentences, where more than one caption was asked for.
    image: the path as given; None for an image that has none.
    box: the part of the photo that the attention grid covers, in fractions of width and height.
    familiarity: how much the photo is like those of the training, 0 to 1, see
        captioner.trust.familiarity; None where the checkpoint does not know.
    trust: the probability that all words that name something are right, see captioner.trust; None
        where the checkpoint does not know, or nothing is named.
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
    trust: float | None = None
    style: str | None = None
    # The captioner that made it reads it again where somebody asks for `word_attention`.
    read_words: Callable[[Caption], Tensor] | None = field(default=None, repr=False, compare=False)

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
        """Find a word's index in `words`, from 0.

        The word itself, in capitals or not, of which the first is taken; its position from 1, from
        the end when negative; None: the word that drew most on the photo.

        Raises ConfigError: there is no such word.
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
        self, word: str | int | None = None, *, head: int | None = None, **look: Unpack[Look]
    ) -> Image.Image:
        """Draw the attention of one word over the photo, in the photo's own size.

        Args:
            word: as for `find_word`.
            head: one head's attention, from 1; None: the mean of all.
            **look: smooth, strength and colors, see captioner.drawing.overlay.Look.

        Raises:
            ConfigError: there is no such word, head, strength or colour scale, or the model does
                not attend.
            ImageError: the photo is no longer there.
        """
        weights = self.panels(head)[self.find_word(word)].weights
        return overlay(self.open_photo(), weights, box=self.box, **look)

    def attention_map(
        self, word: str | int | None = None, *, head: int | None = None, smooth: bool = True
    ) -> NDArray[np.float32]:
        """Spread the attention of one word over the photo's pixels: an array (height, width).

        It sums to 1, and is 0 where the grid saw nothing of the photo.

        Args:
            word: as for `find_word`.
            head: one head's attention, from 1; None: the mean of all.
            smooth: from cell to cell in straight lines; False: every cell is even.

        Raises:
            ConfigError: there is no such word or head, or the model does not attend.
            ImageError: the photo is no longer there.
        """
        found = self.words[self.find_word(word)]
        return found.attention_map(self.open_photo().size, box=self.box, head=head, smooth=smooth)

    def contact_sheet(self, *, head: int | None = None, **look: Unpack[Look]) -> Image.Image:
        """Draw the photo and every word's attention side by side: the paper's figure 3.

        Options and errors as for `overlay`.
        """
        photo, panels = self.open_photo(), self.panels(head)
        title = f"{self.text} {self._shown(head)}".strip()
        return contact_sheet(photo, panels, title=title, note=self.note, box=self.box, **look)

    def animation(self, *, head: int | None = None, **look: Unpack[Look]) -> list[Image.Image]:
        """Draw the frames that run through the words, for captioner.drawing.saving.

        Options and errors as for `overlay`.
        """
        photo, panels = self.open_photo(), self.panels(head)
        return animation(photo, panels, note=self._shown(head), box=self.box, **look)

    def _shown(self, head: int | None) -> str:
        """Name, in brackets, the head that a picture of all words shows; "" where there is one."""
        shown = self.words[0].shown(head) if self.words else ""
        return f"({shown})" if shown else ""

    @property
    def word_attention(self) -> Tensor:
        """Where each word looked among those before it: (heads, T, T), made when it is asked for.

        Row t is of word t as it was said. Column 1 is the start of the sentence, column 2 its first
        word, and so on; what had not been said has 0. It is of the last layer of a transformer.

        Raises:
            ConfigError: the words of this model do not look at each other, or the caption was read
                from a record.
            ImageError: the photo is no longer there.
        """
        if self.read_words is None:
            raise ConfigError("a record does not say where words looked among words: caption again")
        return self.read_words(self)

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
            "model": asdict(self.model),
        }

    @classmethod
    def from_record(cls, record: object, *, open_photo: Callable[[], Image.Image]) -> Caption:
        """Make a caption of its record again, of this version or another, to draw it or test it.

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
        best, *alternatives = (tuple(map(_read_word, words)) for words in sentences)
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
            model=ModelName(name=read.model.name, version=read.model.version),
            box=next(iter(boxes), Box(0.0, 0.0, 1.0, 1.0)),
            open_photo=open_photo,
            familiarity=read.familiarity,
            style=read.style,
        )


def _read_word(read: WordRecord) -> Word:
    word = Word(
        text=read.word,
        probability=read.probability,
        trust=read.trust,
        subject=read.doubtful is True,  # served records mark a doubtful subject so
        gate=read.gate,
        effect=read.effect,
    )
    if (seen := read.attention) is None:
        return word
    import torch  # not in every command that captions

    def table(weights: Iterable[float]) -> Tensor:
        return torch.tensor(weights).view(seen.rows, seen.columns)

    heads = None if seen.heads is None else torch.stack([table(head) for head in seen.heads])
    return replace(word, attention=table(seen.weights), heads=heads)


def _rounded(weights: Tensor) -> list[float]:
    return [round(weight, 6) for weight in weights.flatten().tolist()]
