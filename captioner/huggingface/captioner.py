"""Captions from Hugging Face models: BLIP, VisionEncoderDecoder (ViT-GPT2 and its kin) and GIT.

Notable:
- an image is encoded once, whatever the number of beams; the search is transformers' `generate`.
- one teacher-forced pass over the finished sentences gives log-probabilities and attention.
- attention: the mean over the heads of the last layers, on the patches alone; sub-words are joined.
- a word's attention is that of the step that chose it.

Cross-attention shows the patches that a step mixed in, not why the word was chosen. The deletion
test (`check_attention`) measures whether these patches mattered.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from captioner.decoded import DecodedBatch
from captioner.deletion import attended_cells, repeated_cells
from captioner.device import find_device, find_dtype
from captioner.errors import ConfigError, GenerationError
from captioner.generation.config import MAX_BEAM_SIZE, GenerationConfig
from captioner.generation.hypothesis import Hypothesis
from captioner.huggingface.families import family_of
from captioner.huggingface.loading import load_model
from captioner.predictor import Captioner
from captioner.vision.encoder import Grid
from captioner.vision.image import MAX_PIXELS
from captioner.vision.transform import Transform, TransformConfig
from captioner.vocabulary import Vocabulary, is_printable

__all__ = ["HuggingFaceCaptioner", "OpenVocabulary"]

_LAYERS = (-3, -2, -1)
_ROWS = 64  # sentences that the deletion test reads at once


class OpenVocabulary(Vocabulary):
    """Words numbered as they first appear: a model of sub-words has no list of words."""

    def __init__(self) -> None:
        super().__init__([])
        self._lock = threading.Lock()

    def knows(self, word: str) -> bool:
        """Whether a sentence can have the word."""
        return bool(word) and is_printable(word)

    def encode(self, words: Iterable[str]) -> list[int]:
        """Number words; new ones are added."""
        words = list(words)
        with self._lock:
            new = [word for word in dict.fromkeys(words) if word not in self._ids]
            self._ids |= {word: len(self.words) + at for at, word in enumerate(new)}
            self.words = (*self.words, *new)
        return [self._ids[word] for word in words]


class _Sentence(NamedTuple):
    """A sentence of W words and T tokens, the end among them.

    spans: the tokens of each word. logs: (T,), log-probabilities; attention: (W, L).
    """

    words: list[str]
    spans: list[slice]
    logs: Tensor
    attention: Tensor


class HuggingFaceCaptioner(Captioner):
    """Captions photos with a Hugging Face model; see `Captioner` for the methods.

    Args:
        model, tokenizer: of transformers; the model is moved and changed.
        transform: from a photo to the model's square.
        name, version: for records.
        source: the name that loads it again.
        device, dtype, max_pixels: see `Captioner`.
        layers: decoder layers whose attention is averaged; negative numbers count from the end.
        head: the head, from 1, whose attention is shown; None averages all.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        transform: TransformConfig,
        name: str,
        version: str,
        source: str,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "auto",
        max_pixels: int = MAX_PIXELS,
        layers: Sequence[int] = _LAYERS,
        head: int | None = None,
    ) -> None:
        if max_pixels < 1:
            raise ConfigError(f"max_pixels is {max_pixels}; it must be at least 1")
        self.options = {"device": device, "dtype": dtype, "max_pixels": max_pixels}
        self.device = find_device(device)
        self.dtype = find_dtype(dtype, self.device)
        self.family = family_of(model.requires_grad_(False).eval().to(self.device, self.dtype))
        self.tokenizer, self.layers, self.head = tokenizer, tuple(layers), head
        self.transform, self.vocabulary = Transform(transform), OpenVocabulary()
        self.generation = _generation_of(model.generation_config)
        self.name, self.version, self.max_pixels = name, version, max_pixels
        self.source = source
        self.heads, self.trust, self.consensus = 1, None, None

    @classmethod
    def load(cls, name: str, **options: Any) -> HuggingFaceCaptioner:
        """Load a model; `options` are device, dtype, max_pixels, layers and head.

        Raises as `captioner.huggingface.loading.load_model`, DeviceError and ConfigError.
        """
        return cls(**load_model(name), **options)

    @cached_property
    def fingerprint(self) -> str:
        """Digest of weights and transform."""
        digest = hashlib.sha256(repr(self.transform.config).encode())
        for tensor in self.family.model.state_dict().values():
            half = tensor.bfloat16().cpu().contiguous()
            digest.update(half.view(torch.int16).numpy().tobytes())
        return digest.hexdigest()[:16]

    @torch.inference_mode()
    def encode(self, pixels: Tensor | NDArray[np.uint8]) -> Grid:
        """Encode squares, uint8 (B, 3, size, size), into one grid with features (B, L, D)."""
        return _grid(self._encode(pixels))

    def _encode(self, pixels: Tensor | NDArray[np.uint8]) -> Tensor:
        normal = self.transform.normalize(torch.as_tensor(pixels, device=self.device))
        return self.family.encode(normal.to(self.dtype))

    @torch.inference_mode()
    def decode_batch(
        self, pixels: NDArray[np.uint8], config: GenerationConfig, *, check_attention: bool = False
    ) -> DecodedBatch:
        """Caption squares, uint8 (B, 3, size, size); see `Captioner.decode_batch`."""
        features = self._encode(pixels)
        tokens = self._generate(features, config)
        images = features.repeat_interleave(config.captions, 0)
        sentences = self._read(images, tokens)
        hypotheses = [self._hypothesis(sentence, config) for sentence in sentences]
        effects: list[list[float] | None] = [None] * len(sentences)
        if check_attention:
            rows = zip(images, tokens, sentences, strict=True)
            effects = [self._effects(*row) for row in rows]
        beams = [
            slice(first, first + config.captions)
            for first in range(0, len(images), config.captions)
        ]
        return DecodedBatch(
            [hypotheses[beam] for beam in beams],
            [effects[beam] for beam in beams],
            *_grid(features),
        )

    @torch.inference_mode()
    def word_effects(
        self, pixels: NDArray[np.uint8], words: Sequence[str], *, style: str = ""
    ) -> list[list[float] | None]:
        """Run the deletion test on a given sentence; see `Captioner.word_effects`."""
        self.vocabulary.style(style)
        text = self.vocabulary.join(words)
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        images = self._encode(pixels)
        shortest = self.generation.changed(beam_size=1, maximum_length=1)
        start = self._generate(images, shortest)[:, :1]
        said = torch.tensor([ids], device=self.device).expand(len(images), -1)
        tokens = torch.cat([start, said], 1)
        rows = zip(images, tokens, self._read(images, tokens), strict=True)
        return [self._effects(*row) for row in rows]

    def _generate(self, features: Tensor, config: GenerationConfig) -> Tensor:
        settings: dict[str, Any] = {
            "max_new_tokens": config.maximum_length,
            "min_new_tokens": config.minimum_length or None,
            "no_repeat_ngram_size": config.no_repeat_ngram,
            "num_return_sequences": config.captions,
            "do_sample": config.sample,
            "num_beams": 1 if config.sample else config.beam_size,
        }
        if config.uses_beam:
            settings |= {"length_penalty": config.length_penalty, "early_stopping": False}
        if config.sample:
            names = ("temperature", "top_k", "top_p")
            settings |= {name: getattr(config, name) for name in names}
        if config.seed is None:
            return self.family.generate(features, **settings)
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(config.seed)
            return self.family.generate(features, **settings)

    def _read(self, images: Tensor, tokens: Tensor) -> list[_Sentence]:
        """Read generated tokens (R, 1 + T) of R images."""
        scores, layers = self._score(images, tokens)
        if scores.isnan().any():
            raise GenerationError(f"the scores of {self.name} are not numbers: try --dtype float32")
        attention, scores = self._average(layers).cpu(), scores.cpu()
        ends = np.atleast_1d(self.family.end).tolist()
        sentences = []
        for row, ids in enumerate(tokens[:, 1:].tolist()):
            length = next((at + 1 for at, token in enumerate(ids) if token in ends), len(ids))
            words, spans = self._words(ids[:length])
            looks = [attention[row, span].mean(0) for span in spans]
            sentences.append(
                _Sentence(
                    words,
                    spans,
                    scores[row, :length],
                    torch.stack(looks) if looks else attention[row, :0],
                )
            )
        return sentences

    def _score(self, images: Tensor, tokens: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        """Return the log-probabilities (R, T) of tokens (R, 1 + T), and the attention."""
        logits, layers = self.family.read(images, tokens[:, :-1])
        logs = logits.float().log_softmax(-1)
        return logs.gather(-1, tokens[:, 1:].unsqueeze(-1)).squeeze(-1), layers

    def _average(self, layers: Sequence[Tensor]) -> Tensor:
        """Average attention (R, H, T, L') of layers to (R, T, L) on patches; rows sum to 1."""
        chosen = [layers[at] for at in self.layers if -len(layers) <= at < len(layers)]
        weights = torch.stack(chosen).float().mean(0)
        weights = weights.mean(1) if self.head is None else weights[:, self.head - 1]
        patches = weights[..., _class_tokens(weights.shape[-1]) :]
        return patches / patches.sum(-1, keepdim=True).clamp(min=1e-12)

    def _words(self, ids: list[int]) -> tuple[list[str], list[slice]]:
        """Join sub-words to words: a token belongs to the word that its characters are in."""

        def decode(count: int) -> list[str]:
            text = self.tokenizer.decode(ids[:count], skip_special_tokens=True)
            return self.vocabulary.join([text]).split()

        words, spans, position = decode(len(ids)), [], 0
        reached = [sum(map(len, decode(count + 1))) for count in range(len(ids))]
        for word in words:
            first = next(at for at, reach in enumerate(reached) if reach > position)
            position += len(word)
            last = next(at for at, reach in enumerate(reached) if reach >= position)
            spans.append(slice(first, last + 1))
        return words, spans

    def _hypothesis(self, sentence: _Sentence, config: GenerationConfig) -> Hypothesis:
        after = sentence.spans[-1].stop if sentence.spans else 0
        spans = [*sentence.spans, slice(after, None)]  # the last is the end's
        return Hypothesis(
            tokens=self.vocabulary.encode(sentence.words),
            score=float(sentence.logs.sum()) / len(sentence.logs) ** config.length_penalty,
            log_probabilities=torch.stack([sentence.logs[span].sum() for span in spans]),
            attention=sentence.attention,
        )

    def _effects(self, image: Tensor, tokens: Tensor, sentence: _Sentence) -> list[float]:
        """Test each word of a sentence (1 + T,) of an image (L', D); see captioner.deletion.

        The patches are replaced for the whole sentence, because a transformer has no state before
        the word that could be kept.
        """
        if not sentence.words:
            return []
        cells = attended_cells(sentence.attention)
        drawn = repeated_cells()(cells.sum(-1), cells.shape[-1])
        masks = torch.cat([cells[None], drawn]).flatten(0, 1).to(image.device)
        first = len(image) - cells.shape[-1]
        others, patches = image[:first], image[first:]
        logs = []
        for part in torch.split(masks, _ROWS):
            changed = torch.where(part.unsqueeze(-1), patches.mean(0), patches)
            images = torch.cat([others.expand(len(part), -1, -1), changed], 1)
            logs.append(self._score(images, tokens.expand(len(part), -1))[0].cpu())
        scores = torch.cat(logs).reshape(-1, len(cells), logs[0].shape[-1])
        effects = []
        for at, span in enumerate(sentence.spans):
            deleted, *random = scores[:, at, span].sum(-1).tolist()
            effects.append(sum(random) / len(random) - deleted)
        return effects


def _class_tokens(count: int) -> int:
    """Count the tokens in front of a square of patches."""
    return count - math.isqrt(count) ** 2


def _grid(features: Tensor) -> Grid:
    """Take the square of patches out of image tokens (B, L', D)."""
    patches = features[:, _class_tokens(features.shape[1]) :]
    side = math.isqrt(patches.shape[1])
    return Grid(patches, side, side)


def _generation_of(own: Any) -> GenerationConfig:
    """Take over the settings that the model was published with."""
    length = own.max_new_tokens or (own.max_length or 21) - 1
    return GenerationConfig(
        beam_size=min(own.num_beams or 1, MAX_BEAM_SIZE),
        length_penalty=1.0 if own.length_penalty is None else max(own.length_penalty, 0.0),
        no_repeat_ngram=own.no_repeat_ngram_size or 0,
        minimum_length=0,
        maximum_length=min(length, 256),
        consensus=False,
        different_around="",
    )
