"""`Captioner`: captions photos with a checkpoint on a device."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, nullcontext
from functools import cached_property
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any, Literal, cast, overload

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from captioner.ahead import decode_ahead
from captioner.caption import Caption, ModelName
from captioner.checkpoint import Checkpoint, load_checkpoint
from captioner.decoded import DecodedBatch
from captioner.deletion import sentence_effects
from captioner.errors import (
    CheckpointFormatError,
    ConfigError,
    ImageError,
    ImageTooLargeError,
    UntrustedError,
)
from captioner.generation.config import GenerationConfig
from captioner.generation.generate import generate
from captioner.hub import push_files, repository_name, with_revision
from captioner.inference.cuda_graphs import CudaGraphs
from captioner.inference.device import find_device, find_dtype
from captioner.model.encoder import Grid
from captioner.model.model import prepare_model
from captioner.model_card import ModelCard
from captioner.paths import HUGGING_FACE, bundled_checkpoint, checkpoint_file
from captioner.sources import ImageSource, as_source, image_name, is_many, split_batch
from captioner.trust.trust import Trust, digest_weights
from captioner.vision.image import MAX_PIXELS, FileSource, open_image, source_name
from captioner.vision.prepared import PreparedImage
from captioner.vision.transform import Transform

_CPU_BATCH, _GPU_BATCH = 16, 128
_SHARED = Lock()


class Captioner:
    """Captions photos with one checkpoint.

    >>> captioner = Captioner.from_pretrained()             # doctest: +SKIP
    >>> captioner.caption("photo.jpg").text                 # doctest: +SKIP
    'a dog runs through the grass'

    Args:
        checkpoint: the model (which is copied), its vocabulary and its transform.
        device: see captioner.inference.device.
        dtype: the dtype of weights and arithmetic: "auto" (bfloat16 if the hardware supports it),
            "float32", "bfloat16", or a torch.dtype. Softmaxes are always computed in float32.
        max_pixels: the largest photo, in width times height.
        trust: the statistics of the checkpoint's trust file.

    Raises CheckpointFormatError: the trust file covers fewer words than the vocabulary.
    """

    source: str | None = None
    """The name from which another process loads the same model; None: send `checkpoint` instead."""
    file: Path | None = None
    """The checkpoint's file, if it was loaded from one."""
    graphs: CudaGraphs
    """The encodings and searches that a GPU has captured."""

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
        self.checkpoint, self.max_pixels = checkpoint, max_pixels
        self.transform, self.vocabulary = Transform(checkpoint.transform), checkpoint.vocabulary
        self.generation = checkpoint.generation
        self.name, self.version = checkpoint.name, checkpoint.version
        self.heads = checkpoint.model.config.decoder.heads
        self.use_trust(trust)
        self.options = {"device": device, "dtype": dtype, "max_pixels": max_pixels}
        self.device = find_device(device)
        self.dtype = find_dtype(dtype, self.device)
        model = copy.deepcopy(checkpoint.model)
        self.model = prepare_model(model, device=self.device, dtype=self.dtype)
        self.graphs = CudaGraphs()

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
        """Load a checkpoint; other arguments as for the class.

        Args:
            path: a checkpoint file, the folder of a training run, a name on the Hugging Face Hub
                ("user/model" or "user/model@revision"), or "hf:" followed by the name or folder of
                a transformers model; None: the bundled checkpoint. A local path that exists takes
                precedence over a name on the Hub.
            revision: a branch, tag or commit of a model on the Hub.

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
            loaded: Captioner = module.HuggingFaceCaptioner.load(
                os.fspath(path), device=device, dtype=dtype, max_pixels=max_pixels
            )
            return loaded
        path = bundled_checkpoint() if path is None else checkpoint_file(path)
        captioner = cls(
            load_checkpoint(path),
            device=device,
            dtype=dtype,
            max_pixels=max_pixels,
            trust=Trust.beside(path),
        )
        captioner.file = path
        return captioner

    def push_to_hub(
        self,
        repository: str,
        *,
        license: str | None = None,
        data: str | None = None,
        private: bool = False,
        revision: str | None = None,
        replace_card: bool = False,
    ) -> str:
        """Upload the checkpoint's file, the trust in use and a model card to the Hugging Face Hub.

        `captioner push` uploads the trust file beside the checkpoint, and also writes the scores
        of a run into the card.

        Args:
            repository: "user/model"; created if it does not exist.
            license: the model's license, by its identifier on the Hub, such as "cc-by-4.0".
            data: names of the training data.
            private: create a private repository.
            revision: the branch to upload to.
            replace_card: replace an existing model card.

        Returns the address of the model.

        Raises:
            ConfigError: the checkpoint was not loaded from a file, the trust in use belongs to
                other weights, or `repository` is not a valid name.
            OutputError: there is no token, the token may not write to the repository, or the Hub
                cannot be reached.
        """
        if self.file is None:
            raise ConfigError(
                f"{self.name} was not loaded from a checkpoint file: save it, and load it with "
                "Captioner.from_pretrained"
            )
        if self.trust is not None and self.trust.weights != digest_weights(self.file):
            raise ConfigError(
                f"the trust in use belongs to other weights than {self.file}: fit it with "
                "`captioner trust`, or remove it with use_trust(None)"
            )
        trust = None if self.trust is None else self.trust.to_bytes()
        card = ModelCard(repository=repository, license=license, data=data)
        files = card.files(self.file, self.checkpoint, trust=trust)
        name = repository_name(repository, revision)
        return push_files(name, files, private=private, replace_card=replace_card)[0]

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
    def encode(self, pixels: torch.Tensor | NDArray[np.uint8]) -> Grid:
        """Encode square images, uint8 (B, 3, size, size), into a grid with features (B, L, D)."""
        pixels = self.transform.normalize(torch.as_tensor(pixels, device=self.device))
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        return self.graphs(self.model, self.model.encode, pixels)

    def decode_batch(
        self, pixels: NDArray[np.uint8], config: GenerationConfig, *, check_attention: bool = False
    ) -> DecodedBatch:
        """Generate captions for square images, uint8 (B, 3, size, size).

        Raises:
            ConfigError: the model does not have the style.
            GenerationError: a score is NaN.
        """
        grid = self.encode(pixels)
        hypotheses = generate(
            self.model.decoder,
            grid.features,
            config,
            vocabulary=self.vocabulary,
            consensus=self.consensus,
            graphs=self.graphs,
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
        """Run the deletion test on the same words for B images, uint8 (B, 3, size, size).

        Returns, for each image, the effects of the words; None if the decoder has no attention.
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
    def caption(
        self,
        images: ImageSource,
        config: GenerationConfig | None = None,
        *,
        check_attention: bool = False,
        minimum_trust: float | None = None,
        batch_size: int | None = None,
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
        batch_size: int | None = None,
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
        batch_size: int | None = None,
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
        batch_size: int | None = None,
        **settings: Any,
    ) -> Caption | list[Caption] | list[Caption | ImageError]:
        """Caption one image, or any number of images in batches.

        `caption_iter` takes the same arguments and yields each caption as soon as it is made.

        Args:
            images: a path, an http or https address, bytes, a binary file, a PIL image, a numpy
                array (height, width, channels) or a torch tensor (channels, height, width); or an
                iterable of these, or one array (N, ...). See captioner.sources.as_source.
            config: beam size, number of captions, lengths, sampling; None: `self.generation`, the
                settings of the checkpoint.
            errors: for several images: "raise" raises the first ImageError; "return" returns an
                ImageError instead of a caption for each image that fails.
            check_attention: also measure the `effect` of each word, which takes longer.
            minimum_trust: 0 to 1; a caption with less trust becomes an UntrustedError.
            batch_size: images per batch; None: `self.batch_size`.
            **settings: fields of the config to change, such as beam_size=3.

        Returns:
            A Caption, or a list of them in the order of the images.

        Raises:
            ImageError: an image cannot be opened, or its caption has too little trust.
            ConfigError: a setting or style is unknown or invalid, or `minimum_trust` is given and
                the checkpoint has no trust.
            GenerationError: a score is NaN.
        """
        results = self.caption_iter(
            images,
            config,
            errors=errors,
            check_attention=check_attention,
            minimum_trust=minimum_trust,
            batch_size=batch_size,
            **settings,
        )
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

        `images` may be endless: at most two batches are in memory. Arguments and exceptions as for
        `caption`. With errors="raise", the captions of all images before the faulty one are
        yielded first.
        """
        if config is not None and not isinstance(config, GenerationConfig):
            raise ConfigError(
                f"config is of type {type(config).__name__}; pass a GenerationConfig, or settings "
                "such as beam_size=3"
            )
        config = (config or self.generation).changed(**settings)
        self.vocabulary.style(config.style)
        if errors not in ("raise", "return"):
            raise ConfigError(f"errors is {errors!r}: use 'raise' or 'return'")
        if batch_size is not None and batch_size < 1:
            raise ConfigError(f"batch_size is {batch_size}; it must be at least 1")
        self.check_trust(minimum_trust)
        return self._results(
            images,
            config,
            is_strict=errors == "raise",
            check_attention=check_attention,
            minimum_trust=minimum_trust,
            batch_size=batch_size,
        )

    def _results(
        self,
        images: ImageSource | Iterable[ImageSource],
        config: GenerationConfig,
        *,
        is_strict: bool,
        check_attention: bool,
        minimum_trust: float | None,
        batch_size: int | None,
    ) -> Iterator[Caption | ImageError]:
        sources = split_batch(images)
        if several := is_many(sources):
            size = batch_size or self.batch_size
            batches = decode_ahead(sources, self._decode, batch_size=size)
        else:
            batches = ([self._decode(source)] for source in [sources])
        with closing(batches):
            for batch in batches:
                valid = [image for image in batch if isinstance(image, PreparedImage)]
                made = iter(self.caption_prepared(valid, config, check_attention=check_attention))
                for image in batch:
                    result = (
                        image
                        if isinstance(image, ImageError)
                        else _check_trusted(next(made), minimum_trust)
                    )
                    if isinstance(result, ImageError) and (is_strict or not several):
                        raise result
                    yield result

    def prepare(self, image: ImageSource) -> PreparedImage:
        """Decode an image to the square that the encoder takes; web addresses are not downloaded.

        Raises ImageError.
        """
        return self._prepare(as_source(image, follow_links=False), image_name(image))

    def _decode(self, image: Any) -> PreparedImage | ImageError:
        """Decode an image; called in threads."""
        # A list may contain the same PIL image or file twice; two threads must not read it at once.
        is_shared = isinstance(image, Image.Image) or hasattr(image, "read")
        with _SHARED if is_shared else nullcontext():
            try:
                return self._prepare(as_source(image), image_name(image))
            except ImageError as error:
                return error.without_traceback()

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
        """Caption prepared images as one batch; arguments as for `caption`.

        Raises:
            ConfigError: the model does not have the style.
            GenerationError: a score is NaN.
        """
        if not images:
            return []
        config = config or self.generation
        style = self.vocabulary.style(config.style)
        decoded = self.decode_batch(
            np.stack([image.pixels for image in images]), config, check_attention=check_attention
        )
        dtype = str(self.dtype).removeprefix("torch.")
        return decoded.captions(
            images,
            vocabulary=self.vocabulary,
            trust=self.trust,
            model=ModelName(name=self.name, version=self.version, dtype=dtype),
            style=style,
        )

    def check_head(self, head: int | None) -> None:
        """Raise ConfigError if the model does not have this head, counted from 1."""
        if head is not None and not 1 <= head <= self.heads:
            has = "one head" if self.heads == 1 else f"the heads 1 to {self.heads}"
            raise ConfigError(f"head {head}: the model {self.name} has {has}")

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


def _check_trusted(caption: Caption, minimum_trust: float | None) -> Caption | UntrustedError:
    """Return the caption, or an UntrustedError if it has too little trust."""
    if not caption.untrusted(minimum_trust):
        return caption
    return UntrustedError(
        f"{caption.image or 'the image'}: caption dropped (trust {caption.trust or 0.0:.4f} < "
        f"minimum_trust {minimum_trust:g})"
    )
