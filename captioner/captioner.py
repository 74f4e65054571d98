"""`Captioner`: captions photos with a checkpoint on a device."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from math import exp
from numbers import Integral
from threading import Lock
from typing import Any, Literal, NamedTuple, TypedDict, Unpack, cast, overload
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from captioner.caption import Alternative, Caption, Word
from captioner.checkpoint import Checkpoint, load_checkpoint
from captioner.deletion import sentence_effects
from captioner.errors import (
    CheckpointFormatError,
    ConfigError,
    ImageError,
    ImageTooLargeError,
    UntrustedError,
)
from captioner.generation.beam_search import Hypothesis
from captioner.generation.config import GenerationConfig
from captioner.generation.generate import generate
from captioner.hub import with_revision
from captioner.images import (
    ImageSource,
    as_source,
    decode_ahead,
    image_name,
    is_many,
    split_batch,
)
from captioner.inference.cuda_graphs import CudaGraphs
from captioner.inference.device import find_device, find_dtype
from captioner.inference.prepare import prepare_model
from captioner.model.encoder import Grid
from captioner.photos.open import MAX_PIXELS, open_image, source_name
from captioner.photos.transform import Box, Transform
from captioner.record import ModelRecord
from captioner.shared.paths import HUGGING_FACE, bundled_checkpoint, checkpoint_file
from captioner.trust.familiarity import pool
from captioner.trust.trust import Judgement, Trust

_CPU_BATCH, _GPU_BATCH = 16, 128
# A lock for each PIL image and open file that is being read.
_LOCKS: WeakValueDictionary[int, Lock] = WeakValueDictionary()
_LOCKS_LOCK = Lock()


class MachineOptions(TypedDict, total=False):
    """Where and how a captioner computes.

    device: see captioner.inference.device.
    dtype: the dtype of weights and arithmetic: "auto" (bfloat16 if the hardware supports it),
        "float32", "bfloat16", or a torch.dtype. Softmaxes are always computed in float32.
    max_pixels: the largest photo, in width times height.
    """

    device: str | torch.device
    dtype: str | torch.dtype
    max_pixels: int


class CaptionOptions(TypedDict, total=False):
    """The options of `Captioner.caption`, followed by the fields of GenerationConfig.

    check_attention: also measure the `effect` of each word, which takes longer.
    minimum_trust: 0 to 1; a caption with less trust becomes an UntrustedError.
    batch_size: images per batch; None: `Captioner.batch_size`.
    """

    check_attention: bool
    minimum_trust: float | None
    batch_size: int | None

    beam_size: int
    captions: int
    length_penalty: float
    consensus: bool
    no_repeat_ngram: int
    no_repeat_around: str
    minimum_length: int
    maximum_length: int
    sample: bool
    temperature: float
    top_k: int
    top_p: float
    seed: int | None
    style: str


@dataclass(frozen=True, kw_only=True, eq=False)
class PreparedImage:
    """An image prepared for the encoder.

    image: the path or address of the image, for records; None if it has none.
    pixels: uint8 (3, size, size), the encoder's input.
    box: the part of the photo that the square covers.
    size: width and height of the photo as viewed.
    """

    image: str | None
    pixels: NDArray[np.uint8]
    box: Box
    size: tuple[int, int]


class GeneratedBatch(NamedTuple):
    """The hypotheses of B images, best first; the effects of their words, or None; the grids."""

    hypotheses: Sequence[Sequence[Hypothesis]]
    effects: Sequence[Sequence[list[float] | None]]
    grid: Grid


class Captioner:
    """Captions photos with one checkpoint.

    >>> captioner = Captioner.from_pretrained()             # doctest: +SKIP
    >>> captioner.caption("photo.jpg").text                 # doctest: +SKIP
    'a dog runs through the grass'

    Args:
        checkpoint: the model (which is copied), its vocabulary and its transform.
        trust: the statistics of the checkpoint's trust file.
        **options: see MachineOptions.

    Raises CheckpointFormatError: the trust file covers fewer words than the vocabulary.
    """

    source: str | None = None
    """The name from which a worker process loads the same model; None: pickle `checkpoint`."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        trust: Trust | None = None,
        **options: Unpack[MachineOptions],
    ) -> None:
        self._use_machine(**options)
        self.checkpoint = checkpoint
        self.transform, self.vocabulary = Transform(checkpoint.transform), checkpoint.vocabulary
        self.generation = checkpoint.generation
        self.name, self.version = checkpoint.name, checkpoint.version
        self.heads = checkpoint.model.config.decoder.heads
        self.use_trust(trust)
        self.model = prepare_model(checkpoint.model, device=self.device, dtype=self.dtype)

    def _use_machine(
        self,
        *,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "auto",
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        if max_pixels < 1:
            raise ConfigError(f"max_pixels is {max_pixels}; it must be at least 1")
        self.options = MachineOptions(device=device, dtype=dtype, max_pixels=max_pixels)
        self.device, self.max_pixels = find_device(device), max_pixels
        self.dtype = find_dtype(dtype, self.device)
        self.graphs = CudaGraphs()

    @classmethod
    def from_pretrained(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        revision: str | None = None,
        **options: Unpack[MachineOptions],
    ) -> Captioner:
        """Load a checkpoint.

        Args:
            path: a checkpoint file, the folder of a training run, a name on the Hugging Face Hub
                ("user/model" or "user/model@revision"), or "hf:" followed by the name or folder of
                a transformers model; None: the bundled checkpoint. A local path that exists takes
                precedence over a name on the Hub.
            revision: a branch, tag or commit of a model on the Hub.
            **options: see MachineOptions.

        Raises:
            CheckpointError: the file is missing, damaged or not a checkpoint, or cannot be
                downloaded.
            ConfigError: unknown dtype, or a revision of a local path.
            DeviceError: this machine does not have the device.
        """
        if revision is not None:
            path = with_revision(path, revision)
        if path is not None and os.fspath(path).startswith(HUGGING_FACE):
            # Imported by name, because that module subclasses this class.
            module = import_module("captioner.huggingface.captioner")
            loaded: Captioner = module.HuggingFaceCaptioner.load(os.fspath(path), **options)
            return loaded
        path = bundled_checkpoint() if path is None else checkpoint_file(path)
        return cls(load_checkpoint(path), trust=Trust.for_checkpoint(path), **options)

    def use_trust(self, trust: Trust | None) -> None:
        """Replace the statistics of the trust file; None: captions get no trust.

        Raises CheckpointFormatError: they cover fewer words than the vocabulary.
        """
        if trust and (words := len(trust.word_features.kinds)) < len(self.vocabulary):
            raise CheckpointFormatError(
                f"the trust file of {self.name} has {words} words, its vocabulary has "
                f"{len(self.vocabulary)}: remove it, or write it again with `captioner trust`"
            )
        # Consensus chooses among the sentences of a beam.
        self.trust, self.consensus = trust, None if trust is None else trust.consensus

    def __repr__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"Captioner({self.name!r}, version={self.version!r}, {self.device}, {dtype})"

    @cached_property
    def fingerprint(self) -> str:
        """A digest of weights, vocabulary and transform, which does not depend on the dtype."""
        return self.checkpoint.fingerprint()

    @property
    def batch_size(self) -> int:
        """Images per batch of `caption`: few on a CPU, because its caches are small."""
        return _CPU_BATCH if self.device.type == "cpu" else _GPU_BATCH

    @torch.inference_mode()
    def encode(self, pixels: Tensor | NDArray[np.uint8]) -> Grid:
        """Encode square images, uint8 (B, 3, size, size), into a grid with features (B, L, D)."""
        pixels = self.transform.normalize(torch.as_tensor(pixels, device=self.device))
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        return self.graphs(self.model, self.model.encode, pixels)

    def generate_batch(
        self, pixels: NDArray[np.uint8], config: GenerationConfig, *, check_attention: bool = False
    ) -> GeneratedBatch:
        """Generate sentences for square images, uint8 (B, 3, size, size)."""
        grid = self.encode(pixels)
        hypotheses = generate(
            self.model.decoder,
            grid.features,
            config,
            vocabulary=self.vocabulary,
            consensus=self.consensus,
            graphs=self.graphs,
        )
        if not check_attention:
            return GeneratedBatch(hypotheses, [[None] * len(beam) for beam in hypotheses], grid)
        sentences = [[hypothesis.tokens for hypothesis in beam] for beam in hypotheses]
        start = self.vocabulary.start(config.style)
        effects = sentence_effects(self.model.decoder, grid.features, sentences, start=start)
        return GeneratedBatch(hypotheses, effects, grid)

    @overload
    def caption(  # type: ignore[overload-overlap]
        self,
        images: ImageSource,
        config: GenerationConfig | None = None,
        **options: Unpack[CaptionOptions],
    ) -> Caption: ...

    @overload
    def caption(
        self,
        images: Iterable[ImageSource],
        config: GenerationConfig | None = None,
        *,
        errors: Literal["raise"] = "raise",
        **options: Unpack[CaptionOptions],
    ) -> list[Caption]: ...

    @overload
    def caption(
        self,
        images: Iterable[ImageSource],
        config: GenerationConfig | None = None,
        *,
        errors: Literal["return"],
        **options: Unpack[CaptionOptions],
    ) -> list[Caption | ImageError]: ...

    def caption(
        self,
        images: ImageSource | Iterable[ImageSource],
        config: GenerationConfig | None = None,
        *,
        errors: Literal["raise", "return"] = "raise",
        **options: Unpack[CaptionOptions],
    ) -> Caption | list[Caption] | list[Caption | ImageError]:
        """Caption one image, or any number of images in batches.

        `caption_iter` takes the same arguments and yields each caption as soon as it is made.

        Args:
            images: a path, an http or https address, bytes, a binary file, a PIL image, a numpy
                array (height, width, channels) or a torch tensor (channels, height, width); or an
                iterable of these, or one array (N, ...). See captioner.images.as_source.
            config: beam size, number of captions, lengths, sampling; None: `self.generation`, the
                settings of the checkpoint.
            errors: for several images: "raise" raises the first ImageError; "return" returns an
                ImageError instead of a caption for each image that fails.
            **options: check_attention, minimum_trust and batch_size, see CaptionOptions; and fields
                of the config to change, such as beam_size=3.

        Returns:
            A Caption, or a list of them in the order of the images.

        Raises:
            ImageError: an image cannot be opened, or its caption has no words or too little trust.
            ConfigError: a setting or style is unknown or invalid, or `minimum_trust` is given and
                the checkpoint has no trust.
            GenerationError: a score is NaN.
        """
        results = self.caption_iter(images, config, errors=errors, **options)
        return list(results) if is_many(split_batch(images)) else cast("Caption", next(results))

    def caption_iter(
        self,
        images: ImageSource | Iterable[ImageSource],
        config: GenerationConfig | None = None,
        *,
        errors: Literal["raise", "return"] = "raise",
        check_attention: bool = False,
        minimum_trust: float | None = None,
        batch_size: int | None = None,
        **settings: Any,
    ) -> Iterator[Caption | ImageError]:
        """Return an iterator over the captions in order, while threads decode the next batch.

        `images` may be endless: at most three batches are in memory. Images that come slowly, as
        from a camera, need batch_size=1: nothing is read ahead then. Arguments and errors as for
        `caption`; captions of images before a faulty one are yielded first.
        """
        config = self._config(config, settings)
        if errors not in ("raise", "return"):
            raise ConfigError(f"errors is {errors!r}: use 'raise' or 'return'")
        if batch_size is not None and (not isinstance(batch_size, Integral) or batch_size < 1):
            raise ConfigError(
                f"batch_size is {batch_size}; it must be a whole number of at least 1"
            )
        self.check_trust(minimum_trust)
        sources = split_batch(images)
        several = is_many(sources)
        batches = (
            decode_ahead(sources, self._try_prepare, batch_size=batch_size or self.batch_size)
            if several
            else ([self._try_prepare(source)] for source in [sources])
        )

        def results() -> Iterator[Caption | ImageError]:
            with closing(batches):
                for batch in batches:
                    valid = [image for image in batch if isinstance(image, PreparedImage)]
                    made = self.caption_prepared(valid, config, check_attention=check_attention)
                    captions = (_checked(caption, minimum_trust) for caption in made)
                    for image in batch:
                        result = image if isinstance(image, ImageError) else next(captions)
                        if isinstance(result, ImageError) and (errors == "raise" or not several):
                            raise result
                        yield result

        return results()

    def _config(
        self, config: GenerationConfig | None, settings: dict[str, Any]
    ) -> GenerationConfig:
        """Return the settings of generation with changes, and check their style."""
        if config is not None and not isinstance(config, GenerationConfig):
            raise ConfigError(
                f"config is of type {type(config).__name__}; pass a GenerationConfig, or settings "
                "such as beam_size=3"
            )
        config = config or self.generation
        if settings:
            config = config.changed(**settings)
        self.vocabulary.style(config.style)
        return config

    def prepare(self, image: ImageSource, *, follow_links: bool = False) -> PreparedImage:
        """Decode an image to the square that the encoder takes; download only if `follow_links`.

        Raises ImageError.
        """
        source, name = as_source(image, follow_links=follow_links), image_name(image)
        try:
            photo = open_image(source, at_least=self.transform.at_least, max_pixels=self.max_pixels)
            pixels = np.array(self.transform.square(photo)).transpose(2, 0, 1)
        except MemoryError as error:
            raise ImageTooLargeError(
                f"{source_name(source)} needs too much memory: make it smaller"
            ) from error
        box, size = self.transform.box(*photo.size), photo.info.get("size", photo.size)
        return PreparedImage(image=name, pixels=pixels, box=box, size=size)

    def _try_prepare(self, image: Any) -> PreparedImage | ImageError:
        """Prepare an image, in a thread; a list may have a PIL image or open file twice."""
        lock: AbstractContextManager[Any] = nullcontext()
        if isinstance(image, Image.Image) or hasattr(image, "read"):
            file = getattr(image, "fp", None) or image
            with _LOCKS_LOCK:
                lock = _LOCKS.setdefault(id(file), Lock())
        with lock:
            try:
                return self.prepare(image, follow_links=True)
            except ImageError as error:
                return error.without_traceback()

    def caption_prepared(
        self,
        images: Sequence[PreparedImage],
        config: GenerationConfig | None = None,
        *,
        check_attention: bool = False,
    ) -> list[Caption]:
        """Caption prepared images as one batch; arguments and exceptions as for `caption`."""
        if not images:
            return []
        config = config or self.generation
        style = self.vocabulary.style(config.style)
        pixels = np.stack([image.pixels for image in images])
        beams, effects, grid = self.generate_batch(pixels, config, check_attention=check_attention)
        judgements: Sequence[Sequence[Judgement | None]] = [[None] * len(beam) for beam in beams]
        familiarities: Sequence[float | None] = [None] * len(images)
        if self.trust is not None:
            judgements, familiarities = self.trust.assess(pool(grid.features), beams)
        dtype = str(self.dtype).removeprefix("torch.")
        model = ModelRecord(name=self.name, version=self.version, dtype=dtype)
        return [
            Caption(
                sentences=tuple(map(partial(self._sentence, grid), *parts)),
                image=image.image,
                model=model,
                box=image.box,
                size=image.size,
                familiarity=familiarity,
                style=style,
            )
            for image, familiarity, *parts in zip(
                images, familiarities, beams, effects, judgements, strict=True
            )
        ]

    def _sentence(
        self,
        grid: Grid,
        hypothesis: Hypothesis,
        effects: Sequence[float | None] | None,
        judgement: Judgement | None,
    ) -> Alternative:
        texts, count = self.vocabulary.decode(hypothesis.tokens), len(hypothesis.tokens)
        judgement = judgement or Judgement([None] * count, None)
        cells = (grid.rows, grid.columns)
        columns = zip(
            texts,
            hypothesis.log_probabilities[:-1].tolist(),  # the last one belongs to <end>
            _values(hypothesis.gate, count),
            _values(hypothesis.attention, count, *cells),
            _values(hypothesis.heads, count, self.heads, *cells),
            effects or [None] * count,
            judgement.words,
            strict=True,
        )
        words = [
            Word(
                text=text,
                probability=exp(log),
                gate=None if gate is None else float(gate),
                attention=attention,
                heads=heads,
                effect=effect,
                trust=trust,
                subject=index == judgement.subject,
            )
            for index, (text, log, gate, attention, heads, effect, trust) in enumerate(columns)
        ]
        text, trust = self.vocabulary.join(texts), judgement.caption
        return Alternative(text=text, score=hypothesis.score, words=tuple(words), trust=trust)

    def check_trust(self, minimum_trust: float | None, *, setting: str = "minimum_trust") -> None:
        """Raise ConfigError if the minimum is not in 0 to 1, or there is no trust file."""
        if minimum_trust is None:
            return
        if not 0 <= minimum_trust <= 1:
            raise ConfigError(f"{setting} is {minimum_trust}; it must be between 0 and 1")
        if self.trust is None:
            raise ConfigError(
                f"{setting} needs a trust file, but the checkpoint {self.name} has none: run "
                "`captioner trust`"
            )


def _checked(caption: Caption, minimum_trust: float | None) -> Caption | ImageError:
    """Return the caption, or an error if it has no words or too little trust."""
    if caption.error is not None or not caption.is_below(minimum_trust):
        return caption.error or caption
    return UntrustedError(
        f"{caption.image or 'the image'}: caption dropped (trust {caption.trust or 0.0:.4f} < "
        f"minimum_trust {minimum_trust:g})"
    )


def _values(part: Tensor | None, words: int, *shape: int) -> Iterable[Any]:
    """Return a copy of each word's part of a hypothesis; None for each if there is no such part."""
    if part is None:
        return [None] * words
    return part.float().numpy().reshape(words, *shape).copy()
