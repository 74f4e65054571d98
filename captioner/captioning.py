"""From photos to captions, whatever writes the sentences: what every captioner has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice
from math import exp
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, cast, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from captioner.caption import Alternative, Caption, ModelName, Word
from captioner.decoding.prepared import PreparedImage
from captioner.decoding.reader import SECONDS, Reader
from captioner.errors import ConfigError, ImageError, UntrustedError
from captioner.familiarity import pool
from captioner.generation.config import GenerationConfig
from captioner.sources import ImageSource, as_source, image_name, is_many, split_batch
from captioner.trust import Judgement, Trust
from captioner.vision.image import MAX_PIXELS, FileSource, open_image
from captioner.vision.transform import Transform, TransformConfig
from captioner.vocabulary import Vocabulary

if TYPE_CHECKING:
    import torch

    from captioner.generation.hypothesis import Hypothesis

__all__ = ["BATCH", "BaseCaptioner", "Writer", "Written"]

BATCH = 16  # images decoded together: most of the speed of a large batch, little of its memory


class Written(NamedTuple):
    """What a model says of B squares.

    made: of each the hypotheses, the best first; effects: of each and each hypothesis the effect
    of its words, or None; features: (B, L, D), the grids, L = rows * columns.
    """

    made: Sequence[Sequence[Hypothesis]]
    effects: Sequence[Sequence[list[float] | None]]
    features: torch.Tensor | NDArray[np.float32]
    rows: int
    columns: int


class Writer(Protocol):
    """A model, whatever runs it, that captions squares by greedy or beam search."""

    def write(self, pixels: NDArray[np.uint8], config: GenerationConfig) -> Written:
        """Caption squares, uint8 (B, 3, size, size)."""


class BaseCaptioner(ABC):
    """Captions photos with what `write` says of their squares.

    Args:
        transform: from a photo to its square.
        vocabulary: of the model.
        generation: how it writes, unless it is asked otherwise.
        name: of the model; records have it.
        version: of the model.
        heads: of its attention.
        trust: what is known of when it is right, and of its photos.
        max_pixels: larger photos are refused before they are decoded.
        seconds: that one photo may take to be decoded.
        in_process: open photos in this process, without its limits; see Reader.
    """

    def __init__(
        self,
        *,
        transform: TransformConfig,
        vocabulary: Vocabulary,
        generation: GenerationConfig,
        name: str,
        version: str,
        heads: int = 1,
        trust: Trust | None = None,
        max_pixels: int = MAX_PIXELS,
        seconds: float = SECONDS,
        in_process: bool = False,
    ) -> None:
        self.transform, self.vocabulary = Transform(transform), vocabulary
        self.generation, self.name, self.version = generation, name, version
        self.heads, self.trust, self.max_pixels = heads, trust, max_pixels
        # What chooses among the sentences of a beam.
        self.consensus = None if trust is None else trust.consensus
        self.reader = Reader(
            transform, max_pixels=max_pixels, seconds=seconds, in_process=in_process
        )

    @abstractmethod
    def write(
        self, pixels: NDArray[np.uint8], config: GenerationConfig, *, check_attention: bool = False
    ) -> Written:
        """Caption squares, uint8 (B, 3, size, size); what is raised is in `caption_prepared`."""

    @overload
    def caption(  # a str is iterable, but here a path
        self,
        images: ImageSource,
        config: GenerationConfig | None = None,
        *,
        check_attention: bool = False,
        minimum_trust: float | None = None,
        **settings: Any,
    ) -> Caption: ...

    @overload
    def caption(
        self,
        images: Iterable[ImageSource],
        config: GenerationConfig | None = None,
        *,
        errors: Literal["raise"] = "raise",
        check_attention: bool = False,
        minimum_trust: float | None = None,
        **settings: Any,
    ) -> list[Caption]: ...

    @overload
    def caption(
        self,
        images: Iterable[ImageSource],
        config: GenerationConfig | None = None,
        *,
        errors: Literal["return"],
        check_attention: bool = False,
        minimum_trust: float | None = None,
        **settings: Any,
    ) -> list[Caption | ImageError]: ...

    def caption(
        self,
        images: ImageSource | Iterable[ImageSource],
        config: GenerationConfig | None = None,
        *,
        errors: Literal["raise", "return"] = "raise",
        check_attention: bool = False,
        minimum_trust: float | None = None,
        **settings: Any,
    ) -> Caption | list[Caption] | list[Caption | ImageError]:
        """Caption one image, or any number of them, 16 at a time.

        Args:
            images: a path, an http or https address, bytes, a binary file, a PIL image, a numpy
                array (height, width, channels), a torch tensor (channels, height, width); an
                iterable of them, or a batch as one array (N, ...). For shapes and ranges see
                captioner.sources.as_source.
            config: beam size, number of captions, lengths, sampling; see GenerationConfig. None
                takes the checkpoint's own, which is `generation` of this object.
            errors: of several images: "raise" the first ImageError, or "return" each in the place
                of its caption.
            check_attention: whether the words of each sentence get their `effect`; takes longer.
            minimum_trust: a caption that is less likely to be right, 0 to 1, is an UntrustedError.
            **settings: fields of the config, such as beam_size=3, in place of its own.

        Returns:
            A Caption, or a list in the order of the images.

        Raises:
            ImageError: an image cannot be opened, is not an image, or its caption is not trusted.
            ConfigError: there is no such style or setting, one is out of range, or `minimum_trust`
                cannot be told; see check_trust.
            GenerationError: the model's scores are not numbers.
        """
        if settings:
            config = (config or self.generation).changed(**settings)
        images = split_batch(images)
        if errors not in ("raise", "return"):
            raise ConfigError(f"errors is {errors!r}: use 'raise' or 'return'")
        self.check_trust(minimum_trust)
        many = is_many(images)
        raises = errors == "raise" or not many
        results: list[Caption | ImageError] = []
        waiting = iter(cast("Iterable[Any]", images if many else [images]))
        while batch := list(islice(waiting, BATCH)):
            prepared: list[PreparedImage | ImageError] = []
            for image in batch:
                try:
                    prepared.append(self._prepare(as_source(image)))
                except ImageError as error:
                    if raises:
                        raise
                    prepared.append(error.without_traceback())
            sound = [one for one in prepared if isinstance(one, PreparedImage)]
            captions = iter(self.caption_prepared(sound, config, check_attention=check_attention))
            for one in prepared:
                lost = one if isinstance(one, ImageError) else None
                result = lost or _trusted(next(captions), minimum_trust)
                if isinstance(result, ImageError) and raises:
                    raise result
                results.append(result)
        return results if many else cast("Caption", results[0])

    def prepare(self, image: ImageSource) -> PreparedImage:
        """Decode an image to the encoder's square, or raise ImageError; no address is followed."""
        return self._prepare(as_source(image, follow_links=False))

    def _prepare(self, source: FileSource | Image.Image) -> PreparedImage:
        if isinstance(source, Image.Image):
            open_photo = partial(open_image, source, max_pixels=self.max_pixels)
            photo = open_photo()
            pixels = np.array(self.transform.square(photo)).transpose(2, 0, 1)
            box = self.transform.box(*photo.size)
            return PreparedImage(image=None, pixels=pixels, box=box, open_photo=open_photo)
        return PreparedImage.of(
            self.reader.read(source),
            image=image_name(source),
            open_photo=partial(self.reader.picture, source),
        )

    def caption_prepared(
        self,
        images: Sequence[PreparedImage],
        config: GenerationConfig | None = None,
        *,
        check_attention: bool = False,
    ) -> list[Caption]:
        """Caption images that are decoded already, as one batch; arguments as for `caption`.

        Raises:
            ConfigError: the model does not have the style.
            GenerationError: its scores are not numbers.
        """
        if not images:
            return []
        config = config or self.generation
        style = self.vocabulary.style(config.style)
        written = self.write(
            np.stack([image.pixels for image in images]), config, check_attention=check_attention
        )
        made = written.made
        judged: Sequence[Sequence[Judgement | None]] = [[None] * len(each) for each in made]
        known: Sequence[float | None] = [None] * len(images)
        if self.trust is not None:
            pooled = pool(written.features)
            judged, known = self.trust.judge(pooled, made), self.trust.familiarity.of(pooled)
        captions = []
        parts = zip(images, made, written.effects, judged, known, strict=True)
        for image, hypotheses, found, judgements, familiar in parts:
            best, *others = (
                self._sentence(one, written, effect, judgement)
                for one, effect, judgement in zip(hypotheses, found, judgements, strict=True)
            )
            captions.append(
                Caption(
                    text=best.text,
                    score=best.score,
                    words=best.words,
                    alternatives=tuple(others),
                    image=image.image,
                    model=ModelName(name=self.name, version=self.version),
                    box=image.box,
                    open_photo=image.open_photo,
                    trust=best.trust,
                    familiarity=familiar,
                    style=style,
                    read_words=self._read_words,
                )
            )
        return captions

    def _sentence(
        self,
        hypothesis: Hypothesis,
        written: Written,
        effects: Sequence[float] | None,
        judgement: Judgement | None,
    ) -> Alternative:
        """Give the T words of a hypothesis with what is known of them; effects (T,), or none."""
        texts = self.vocabulary.decode(hypothesis.tokens)
        unknown = [None] * len(texts)
        places = written.rows, written.columns

        def each(part: Any, *shape: int) -> Iterable[Any]:
            return unknown if part is None else part.reshape(len(texts), *shape)

        count = 0 if hypothesis.heads is None else hypothesis.heads.shape[1]
        words = tuple(
            Word(
                text=text,
                probability=exp(log),
                gate=None if gate is None else float(gate),
                attention=attention,
                heads=heads,
                effect=effect,
                trust=trust,
            )
            for text, log, gate, attention, heads, effect, trust in zip(
                texts,
                hypothesis.log_probabilities[:-1].tolist(),  # the last is the end's
                each(hypothesis.gate),
                each(hypothesis.attention, *places),
                each(hypothesis.heads, count, *places),
                effects or unknown,
                unknown if judgement is None else judgement.words,
                strict=True,
            )
        )
        return Alternative(
            text=self.vocabulary.join(texts),
            score=hypothesis.score,
            words=words,
            trust=None if judgement is None else judgement.caption,
        )

    def _read_words(self, caption: Caption) -> torch.Tensor:  # noqa: ARG002
        """Read a caption of ours again: Caption.word_attention."""
        raise ConfigError(
            f"the words of the model {self.name} do not look at each other: those of a transformer "
            "do"
        )

    def check_head(self, head: int | None) -> None:
        """Refuse a head of the attention, from 1, that the model does not have.

        Raises ConfigError: it has fewer.
        """
        if head is not None and not 1 <= head <= self.heads:
            has = "one head" if self.heads == 1 else f"the heads 1 to {self.heads}"
            raise ConfigError(f"head {head}: the model {self.name} has {has}")

    def check_trust(self, minimum_trust: float | None) -> None:
        """Refuse to ask for a trust that is no probability, or that the model does not know.

        Raises ConfigError.
        """
        if minimum_trust is None:
            return
        if not 0 <= minimum_trust <= 1:
            raise ConfigError(f"minimum_trust {minimum_trust} is no probability from 0 to 1")
        if self.trust is None:
            raise ConfigError(
                f"minimum_trust: the checkpoint {self.name} does not know how far it can be "
                "trusted: run `captioner trust`"
            )


def _trusted(caption: Caption, minimum_trust: float | None) -> Caption | UntrustedError:
    """Give the caption, or the error that stands for it where there is less trust in it."""
    if not caption.untrusted(minimum_trust):
        return caption
    return UntrustedError(
        f"{caption.image or 'the image'}: its caption is left out, for its trust of "
        f"{caption.trust or 0.0:.4f} is below the minimum_trust {minimum_trust:g}"
    )
