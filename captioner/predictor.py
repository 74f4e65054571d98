"""Captioner: a checkpoint on a device, from photo to caption."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from itertools import islice
from typing import Any, Literal, cast, overload

import torch
from PIL import Image

from captioner.caption import Alternative, Caption, ModelName, Word
from captioner.checkpoint import Checkpoint, load_checkpoint
from captioner.decoding.prepared import PreparedImage, square_pixels
from captioner.decoding.reader import SECONDS, Reader
from captioner.deletion import sentence_effects
from captioner.device import find_device, find_dtype
from captioner.errors import ConfigError, ImageError, UntrustedError
from captioner.familiarity import pool
from captioner.generation.config import GenerationConfig
from captioner.generation.generate import generate
from captioner.generation.hypothesis import Hypothesis
from captioner.model import prepare_model
from captioner.paths import bundled_checkpoint
from captioner.sources import ImageSource, as_source, image_name, is_many, split_batch
from captioner.trust import Judgement, Trust
from captioner.vision.encoder import Grid
from captioner.vision.image import MAX_PIXELS, FileSource, open_image
from captioner.vision.transform import Transform
from captioner.vocabulary import Vocabulary

__all__ = ["BATCH", "Captioner", "PreparedImage"]

BATCH = 16  # images decoded together: most of the speed of a large batch, little of its memory


class Captioner:
    """Captions photos with one checkpoint.

    >>> captioner = Captioner.from_pretrained()             # doctest: +SKIP
    >>> captioner.caption("photo.jpg").text                 # doctest: +SKIP
    'a dog runs through the grass'

    Args:
        checkpoint: model, vocabulary and transform; it stays as it is.
        device: where the model runs; see captioner.device.
        dtype: of weights and arithmetic: "auto" (bfloat16 where the hardware has it), "float32",
            "bfloat16", or a torch.dtype. Scores and attention are softmaxed in float32 always.
        max_pixels: larger photos are refused before they are decoded.
        seconds: that one photo may take to be decoded.
        in_process: open photos in this process, without its limits; see Reader.
        trust: what is known of when the checkpoint is right, and of its photos.

    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "auto",
        max_pixels: int = MAX_PIXELS,
        seconds: float = SECONDS,
        in_process: bool = False,
        trust: Trust | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.options = {"device": device, "dtype": dtype, "max_pixels": max_pixels}
        self.trust = trust
        self.device = find_device(device)
        self.dtype = find_dtype(dtype, self.device)
        self.max_pixels = max_pixels
        self.reader = Reader(
            checkpoint.transform, max_pixels=max_pixels, seconds=seconds, in_process=in_process
        )
        model = copy.deepcopy(checkpoint.model)
        self.model = prepare_model(model, device=self.device, dtype=self.dtype)
        self.vocabulary = checkpoint.vocabulary
        self.transform = Transform(checkpoint.transform)
        self.generation = checkpoint.generation
        self.name, self.version = checkpoint.name, checkpoint.version

    @classmethod
    def from_pretrained(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "auto",
        max_pixels: int = MAX_PIXELS,
        seconds: float = SECONDS,
        in_process: bool = False,
    ) -> Captioner:
        """Load a checkpoint file, or the one that comes with Captioner; arguments as above.

        Raises:
            CheckpointError: the file is missing, damaged or of another kind.
            ConfigError: there is no such dtype.
            DeviceError: this machine has no such device.

        """
        path = bundled_checkpoint() if path is None else path
        return cls(
            load_checkpoint(path),
            device=device,
            dtype=dtype,
            max_pixels=max_pixels,
            seconds=seconds,
            in_process=in_process,
            trust=Trust.beside(path),
        )

    def __repr__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"Captioner({self.name!r}, version={self.version!r}, {self.device}, {dtype})"

    @cached_property
    def fingerprint(self) -> str:
        """Digest of what decides the captions, the same in every dtype; see Checkpoint."""
        return self.checkpoint.fingerprint()

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
        if not is_many(images):
            image = self._prepare(as_source(images))
            made = self.caption_prepared([image], config, check_attention=check_attention)
            if untrusted := _untrusted(made[0], minimum_trust):
                raise untrusted
            return made[0]
        results: list[Caption | ImageError] = []
        waiting = iter(cast("Iterable[Any]", images))
        while batch := list(islice(waiting, BATCH)):
            prepared: list[PreparedImage | ImageError] = []
            for image in batch:
                try:
                    prepared.append(self._prepare(as_source(image)))
                except ImageError as error:
                    if errors == "raise":
                        raise
                    prepared.append(error.without_traceback())
            sound = [one for one in prepared if isinstance(one, PreparedImage)]
            captions = iter(self.caption_prepared(sound, config, check_attention=check_attention))
            for one in prepared:
                result = one if isinstance(one, ImageError) else next(captions)
                if isinstance(result, Caption):
                    result = _untrusted(result, minimum_trust) or result
                    if isinstance(result, ImageError) and errors == "raise":
                        raise result
                results.append(result)
        return results

    def prepare(self, image: ImageSource) -> PreparedImage:
        """Decode an image to the encoder's square, or raise ImageError; no address is followed."""
        return self._prepare(as_source(image, follow_links=False))

    def _prepare(self, source: FileSource | Image.Image) -> PreparedImage:
        if isinstance(source, Image.Image):
            open_photo = partial(open_image, source, max_pixels=self.max_pixels)
            photo = open_photo()
            pixels, box = self.transform.pixels(photo), self.transform.box(*photo.size)
            return PreparedImage(image=None, pixels=pixels, box=box, open_photo=open_photo)
        decoded = self.reader.read(source)
        return PreparedImage(
            image=image_name(source),
            pixels=square_pixels(decoded),
            box=decoded.box,
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
        grid = self.encode(torch.stack([image.pixels for image in images]))
        made = generate(self.model.decoder, grid.features, config, vocabulary=self.vocabulary)
        effects: list[list[list[float] | None]] = [[None] * len(each) for each in made]
        if check_attention:
            said = [[one.tokens for one in each] for each in made]
            start = self.vocabulary.start(config.style)
            effects = sentence_effects(self.model.decoder, grid.features, said, start=start)
        judged: Sequence[Sequence[Judgement | None]] = [[None] * len(each) for each in made]
        known: Sequence[float | None] = [None] * len(images)
        if self.trust is not None:
            pooled = pool(grid.features)
            judged, known = self.trust.judge(pooled, made), self.trust.familiarity.of(pooled)
        captions = []
        parts = zip(images, made, effects, judged, known, strict=True)
        for image, hypotheses, found, judgements, familiar in parts:
            best, *others = (
                _sentence(one, grid, self.vocabulary, effect, judgement)
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

    @torch.inference_mode()
    def _read_words(self, caption: Caption) -> torch.Tensor:
        """Read a caption of ours again: Caption.word_attention."""
        pixels = self.prepare(caption.open_photo()).pixels
        said = self.vocabulary.encode(word.text for word in caption.words)
        tokens = torch.tensor([self.vocabulary.start(caption.style or ""), *said][: len(said)])
        found = self.model.decoder.word_attention(
            self.encode(pixels.unsqueeze(0)).features, tokens[None, None].to(self.device)
        )
        if found is None:
            raise ConfigError(
                f"the words of the model {self.name} do not look at each other: those of a "
                "transformer do"
            )
        return found[0, 0].float().cpu()

    def check_head(self, head: int | None) -> None:
        """Refuse a head of the attention, from 1, that the model does not have.

        Raises ConfigError: it has fewer.
        """
        heads = self.model.config.decoder.heads
        if head is not None and not 1 <= head <= heads:
            has = "one head" if heads == 1 else f"the heads 1 to {heads}"
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

    @torch.inference_mode()
    def encode(self, pixels: torch.Tensor) -> Grid:
        """Encode squares, uint8 (B, 3, size, size), into one grid with features (B, L, D)."""
        pixels = self.transform.normalize(pixels.to(self.device))
        return self.model.encode(pixels.contiguous(memory_format=torch.channels_last))


def _untrusted(caption: Caption, minimum_trust: float | None) -> UntrustedError | None:
    if minimum_trust is None or not caption.untrusted(minimum_trust):
        return None
    return UntrustedError(
        f"{caption.image or 'the image'}: its caption is left out, for its trust of "
        f"{caption.trust or 0.0:.4f} is below the minimum_trust {minimum_trust:g}"
    )


def _sentence(
    hypothesis: Hypothesis,
    grid: Grid,
    vocabulary: Vocabulary,
    effects: Sequence[float] | None,
    judgement: Judgement | None,
) -> Alternative:
    """Give the T words of a hypothesis with all that is known of them; effects (T,), or none."""
    texts = vocabulary.decode(hypothesis.tokens)
    unknown = [None] * len(texts)
    places = grid.rows, grid.columns

    def each(part: torch.Tensor | None, *shape: int) -> Iterable[Any]:
        return unknown if part is None else part.reshape(len(texts), *shape)

    count = 0 if hypothesis.heads is None else hypothesis.heads.shape[1]
    words = tuple(
        Word(
            text=text,
            probability=float(log.exp()),
            gate=None if gate is None else float(gate),
            attention=attention,
            heads=heads,
            effect=effect,
            trust=trust,
        )
        for text, log, gate, attention, heads, effect, trust in zip(
            texts,
            hypothesis.log_probabilities[:-1],  # the last is the end's
            each(hypothesis.gate),
            each(hypothesis.attention, *places),
            each(hypothesis.heads, count, *places),
            effects or unknown,
            unknown if judgement is None else judgement.words,
            strict=True,
        )
    )
    return Alternative(
        text=vocabulary.join(texts),
        score=hypothesis.score,
        words=words,
        trust=None if judgement is None else judgement.caption,
    )
