"""Captioner: a checkpoint on a device, from photo to caption."""

from __future__ import annotations

import copy
import os
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from captioner.captioning import BATCH, BaseCaptioner, Writer, Written
from captioner.checkpoint import Checkpoint, load_checkpoint
from captioner.decoding.prepared import PreparedImage
from captioner.decoding.reader import SECONDS
from captioner.deletion import sentence_effects
from captioner.device import find_device, find_dtype
from captioner.generation.config import GenerationConfig
from captioner.generation.generate import generate
from captioner.model import prepare_model
from captioner.paths import bundled_checkpoint
from captioner.trust import Trust
from captioner.vision.encoder import Grid
from captioner.vision.image import MAX_PIXELS

if TYPE_CHECKING:
    from captioner.caption import Caption

__all__ = ["BATCH", "Captioner", "PreparedImage"]

_FEW = 3  # photos at once, up to which an exported model is faster; tests/benchmarks/engines.py


class Captioner(BaseCaptioner):
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
        exported: the same model in onnxruntime, for what that is faster in.
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
        exported: Writer | None = None,
    ) -> None:
        super().__init__(
            transform=checkpoint.transform,
            vocabulary=checkpoint.vocabulary,
            generation=checkpoint.generation,
            name=checkpoint.name,
            version=checkpoint.version,
            heads=checkpoint.model.config.decoder.heads,
            trust=trust,
            max_pixels=max_pixels,
            seconds=seconds,
            in_process=in_process,
        )
        self.checkpoint, self.exported = checkpoint, exported
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
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "auto",
        max_pixels: int = MAX_PIXELS,
        seconds: float = SECONDS,
        in_process: bool = False,
        exported: Writer | None = None,
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
            exported=exported,
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

    def write(
        self, pixels: NDArray[np.uint8], config: GenerationConfig, *, check_attention: bool = False
    ) -> Written:
        """See BaseCaptioner."""
        if self.exported and len(pixels) <= _FEW and not (config.sample or check_attention):
            return self.exported.write(pixels, config)
        grid = self.encode(pixels)
        made = generate(
            self.model.decoder,
            grid.features,
            config,
            vocabulary=self.vocabulary,
            consensus=self.consensus,
        )
        effects: list[list[list[float] | None]] = [[None] * len(each) for each in made]
        if check_attention:
            said = [[one.tokens for one in each] for each in made]
            start = self.vocabulary.start(config.style)
            effects = sentence_effects(self.model.decoder, grid.features, said, start=start)
        return Written(made, effects, *grid)

    @torch.inference_mode()
    def _read_words(self, caption: Caption) -> torch.Tensor:
        pixels = self.prepare(caption.open_photo()).pixels
        said = self.vocabulary.encode(word.text for word in caption.words)
        tokens = torch.tensor([self.vocabulary.start(caption.style or ""), *said][: len(said)])
        found = self.model.decoder.word_attention(
            self.encode(pixels[np.newaxis]).features, tokens[None, None].to(self.device)
        )
        return super()._read_words(caption) if found is None else found[0, 0].float().cpu()
