"""Captioner: a checkpoint on a device, from photo to caption."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from importlib import import_module
from itertools import islice
from math import exp
from typing import Any, Literal, NamedTuple, cast, overload

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from captioner.caption import Alternative, Caption, ModelName
from captioner.checkpoint import Checkpoint, load_checkpoint
from captioner.deletion import sentence_effects
from captioner.device import find_device, find_dtype
from captioner.errors import (
    CheckpointFormatError,
    ConfigError,
    ImageError,
    ImageTooLargeError,
    UntrustedError,
)
from captioner.generation.config import GenerationConfig
from captioner.generation.generate import generate
from captioner.generation.hypothesis import Hypothesis
from captioner.hub import with_revision
from captioner.model import prepare_model
from captioner.paths import HUGGING_FACE, bundled_checkpoint, checkpoint_file
from captioner.sources import ImageSource, as_source, image_name, is_many, split_batch
from captioner.trust.familiarity import pool
from captioner.trust.trust import Judgement, Trust
from captioner.vision.encoder import Grid
from captioner.vision.image import MAX_PIXELS, FileSource, open_image, source_name
from captioner.vision.prepared import PreparedImage
from captioner.vision.transform import Transform
from captioner.word import Word

__all__ = ["BATCH", "Captioner", "DecodedBatch", "PreparedImage"]

BATCH = 16  # images decoded together: most of the speed of a large batch, little of its memory


class DecodedBatch(NamedTuple):
    """The sentences of B squares.

    hypotheses: of each image, the best first.
    effects: of each image and hypothesis the effects of its words, or None; see captioner.deletion.
    features: (B, L, D), the grids, L = rows * columns.
    """

    hypotheses: Sequence[Sequence[Hypothesis]]
    effects: Sequence[Sequence[list[float] | None]]
    features: torch.Tensor
    rows: int
    columns: int


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
        trust: what is known of when the checkpoint is right, and of its photos.

    Raises CheckpointFormatError: the trust has fewer words than the vocabulary.
    """

    source: str | None = None
    """The name that loads the same model elsewhere; None: `checkpoint` is all that is needed."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "auto",
        max_pixels: int = MAX_PIXELS,
        trust: Trust | None = None,
    ) -> None:
        if max_pixels < 1:
            raise ConfigError(f"max_pixels is {max_pixels}; it must be at least 1")
        if trust is not None and (words := len(trust.word_features.kinds)) < len(
            checkpoint.vocabulary
        ):
            raise CheckpointFormatError(
                f"the trust file of {checkpoint.name} has {words} words, its vocabulary has "
                f"{len(checkpoint.vocabulary)}: remove it, or write it again with "
                "`captioner trust`"
            )
        self.checkpoint, self.trust, self.max_pixels = checkpoint, trust, max_pixels
        self.transform, self.vocabulary = Transform(checkpoint.transform), checkpoint.vocabulary
        self.generation = checkpoint.generation
        self.name, self.version = checkpoint.name, checkpoint.version
        self.heads = checkpoint.model.config.decoder.heads
        # Chooses among the sentences of a beam.
        self.consensus = None if trust is None else trust.consensus
        self.options = {"device": device, "dtype": dtype, "max_pixels": max_pixels}
        self.device = find_device(device)
        self.dtype = find_dtype(dtype, self.device)
        model = copy.deepcopy(checkpoint.model)
        self.model = prepare_model(model, device=self.device, dtype=self.dtype)

    @classmethod
    def from_pretrained(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        revision: str | None = None,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "auto",
        max_pixels: int = MAX_PIXELS,
    ) -> Captioner:
        """Load a checkpoint; arguments as above.

        Args:
            path: a file, the folder of a run, a name on the Hugging Face Hub ("user/model" or
                "user/model@revision"), or "hf:" and a model of transformers or its folder; None:
                the checkpoint that comes with Captioner. A local path that exists is preferred to
                a name on the Hub.
            revision: a branch, tag or commit of a model on the Hub.

        Raises:
            CheckpointError: the file is missing, damaged or of another kind, or cannot be
                downloaded.
            ConfigError: there is no such dtype, or a local path has no revisions.
            DeviceError: this machine has no such device.
        """
        if revision is not None:
            path = with_revision(path, revision)
        if path is not None and os.fspath(path).startswith(HUGGING_FACE):
            # Imported by name, because that module subclasses this class.
            module = import_module("captioner.huggingface.captioner")
            loaded: Captioner = module.HuggingFaceCaptioner.load(
                os.fspath(path), device=device, dtype=dtype, max_pixels=max_pixels
            )
            return loaded
        path = bundled_checkpoint() if path is None else checkpoint_file(path)
        return cls(
            load_checkpoint(path),
            device=device,
            dtype=dtype,
            max_pixels=max_pixels,
            trust=Trust.beside(path),
        )

    def __repr__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"Captioner({self.name!r}, version={self.version!r}, {self.device}, {dtype})"

    @cached_property
    def fingerprint(self) -> str:
        """Digest of weights, vocabulary and transform, the same in every dtype; see Checkpoint."""
        return self.checkpoint.fingerprint()

    @torch.inference_mode()
    def encode(self, pixels: torch.Tensor | NDArray[np.uint8]) -> Grid:
        """Encode squares, uint8 (B, 3, size, size), into one grid with features (B, L, D)."""
        pixels = self.transform.normalize(torch.as_tensor(pixels, device=self.device))
        return self.model.encode(pixels.contiguous(memory_format=torch.channels_last))

    def decode_batch(
        self, pixels: NDArray[np.uint8], config: GenerationConfig, *, check_attention: bool = False
    ) -> DecodedBatch:
        """Caption squares, uint8 (B, 3, size, size).

        Raises:
            ConfigError: the model does not have the style.
            GenerationError: the model's scores are not numbers.
        """
        grid = self.encode(pixels)
        hypotheses = generate(
            self.model.decoder,
            grid.features,
            config,
            vocabulary=self.vocabulary,
            consensus=self.consensus,
        )
        effects: list[list[list[float] | None]] = [[None] * len(beam) for beam in hypotheses]
        if check_attention:
            sentences = [[hypothesis.tokens for hypothesis in beam] for beam in hypotheses]
            start = self.vocabulary.start(config.style)
            effects = sentence_effects(self.model.decoder, grid.features, sentences, start=start)
        return DecodedBatch(hypotheses, effects, *grid)

    def word_effects(
        self, pixels: NDArray[np.uint8], words: Sequence[str], *, style: str = ""
    ) -> list[list[float] | None]:
        """Run the deletion test on one sentence for each of B squares, uint8 (B, 3, size, size).

        Returns for each square the effects of the words, or None where the decoder does not attend.
        """
        sentences = [[self.vocabulary.encode(words)]] * len(pixels)
        effects = sentence_effects(
            self.model.decoder,
            self.encode(pixels).features,
            sentences,
            start=self.vocabulary.start(style),
        )
        return [sentence for (sentence,) in effects]

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
                    prepared.append(self._prepare(as_source(image), image_name(image)))
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
        return self._prepare(as_source(image, follow_links=False), image_name(image))

    def _prepare(self, source: FileSource | Image.Image, name: str | None) -> PreparedImage:
        try:
            photo = open_image(source, at_least=self.transform.at_least, max_pixels=self.max_pixels)
            pixels = np.array(self.transform.square(photo)).transpose(2, 0, 1)
        except MemoryError as error:
            raise ImageTooLargeError(
                f"{source_name(source)} needs too much memory: make it smaller"
            ) from error
        return PreparedImage(
            image=name,
            pixels=pixels,
            box=self.transform.box(*photo.size),
            size=photo.info.get("size", photo.size),
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
        decoded = self.decode_batch(
            np.stack([image.pixels for image in images]), config, check_attention=check_attention
        )
        beams = decoded.hypotheses
        judged: Sequence[Sequence[Judgement | None]] = [[None] * len(beam) for beam in beams]
        known: Sequence[float | None] = [None] * len(images)
        if self.trust is not None:
            pooled = pool(decoded.features)
            judged, known = self.trust.judge(pooled, beams), self.trust.familiarity.of(pooled)
        dtype = str(self.dtype).removeprefix("torch.")
        model = ModelName(name=self.name, version=self.version, dtype=dtype)
        captions = []
        parts = zip(images, beams, decoded.effects, judged, known, strict=True)
        for image, beam, effects, judgements, familiarity in parts:
            best, *others = (
                self._sentence(*sentence, rows=decoded.rows, columns=decoded.columns)
                for sentence in zip(beam, effects, judgements, strict=True)
            )
            captions.append(
                Caption(
                    text=best.text,
                    score=best.score,
                    words=best.words,
                    alternatives=tuple(others),
                    image=image.image,
                    model=model,
                    box=image.box,
                    size=image.size,
                    trust=best.trust,
                    familiarity=familiarity,
                    style=style,
                )
            )
        return captions

    def _sentence(
        self,
        hypothesis: Hypothesis,
        effects: Sequence[float] | None,
        judgement: Judgement | None,
        *,
        rows: int,
        columns: int,
    ) -> Alternative:
        """Make the sentence of a hypothesis; `effects` and `judgement` are of its T words."""
        texts = self.vocabulary.decode(hypothesis.tokens)
        unknown = [None] * len(texts)
        gates, attention, heads = map(
            _copied, (hypothesis.gate, hypothesis.attention, hypothesis.heads)
        )
        words = tuple(
            Word(
                text=text,
                probability=exp(log),
                gate=None if gates is None else float(gates[at]),
                attention=None if attention is None else attention[at].reshape(rows, columns),
                heads=None if heads is None else heads[at].reshape(-1, rows, columns),
                effect=effect,
                trust=trust,
                subject=judgement is not None and at == judgement.subject,
            )
            for at, (text, log, effect, trust) in enumerate(
                zip(
                    texts,
                    hypothesis.log_probabilities[:-1].tolist(),  # the last is that of <end>
                    effects or unknown,
                    unknown if judgement is None else judgement.words,
                    strict=True,
                )
            )
        )
        return Alternative(
            text=self.vocabulary.join(texts),
            score=hypothesis.score,
            words=words,
            trust=None if judgement is None else judgement.caption,
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


def _copied(part: torch.Tensor | None) -> NDArray[np.float32] | None:
    """Copy a part of a hypothesis, which may be a view of the whole batch's memory."""
    return None if part is None else part.numpy().astype(np.float32)
