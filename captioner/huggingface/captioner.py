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
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from captioner.decoded import DecodedBatch
from captioner.deletion import attended_cells, repeated_cells
from captioner.device import find_device, find_dtype
from captioner.errors import ConfigError, GenerationError
from captioner.generation.config import MAX_BEAM_SIZE, GenerationConfig
from captioner.generation.hypothesis import Hypothesis
from captioner.huggingface.families import EncodedImages, family_of
from captioner.huggingface.loading import load_model
from captioner.predictor import Captioner
from captioner.trust.trust import Trust, trust_file
from captioner.vision.encoder import Grid
from captioner.vision.image import MAX_PIXELS
from captioner.vision.transform import Transform
from captioner.vocabulary import Vocabulary, is_printable

__all__ = ["HuggingFaceCaptioner", "OpenVocabulary"]

_LAYERS = (-3, -2, -1)
_ROWS = 64  # sentences that the deletion test reads at once
_PUNCTUATION = ".,;:!?\"'()"


class OpenVocabulary(Vocabulary):
    """Words numbered as they first appear: a model of sub-words has no list of words."""

    def __init__(self, words: Sequence[str] = ()) -> None:
        super().__init__(words)
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

    def decode_plain(self, tokens: Iterable[int]) -> list[str]:
        """Name the words as they are scored: in lower case, without punctuation."""
        return [word.lower().strip(_PUNCTUATION) for word in self.decode(tokens)]


class _Sentence(NamedTuple):
    """A sentence of W words.

    tokens: (1 + T,), with the start and padding; spans: of each word, its tokens after the start.
    """

    tokens: Tensor
    spans: list[slice]
    hypothesis: Hypothesis


class HuggingFaceCaptioner(Captioner):
    """Captions photos with a Hugging Face model; see `Captioner` for the methods.

    Args:
        name: OWNER/MODEL, OWNER/MODEL@REVISION or a folder; "hf:" may stand in front.
        device, dtype, max_pixels: see `Captioner`.
        layers: decoder layers whose attention is averaged; negative numbers count from the end.
        head: the head, from 1, whose attention is shown; None averages all.

    Raises as `captioner.huggingface.loading.load_model`, DeviceError and ConfigError.
    """

    def __init__(
        self,
        name: str,
        *,
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
        self.name, self.version, self.source, model, self.tokenizer, transform = load_model(name)
        self.model: Any = model.requires_grad_(False).eval().to(self.device, self.dtype)
        self.family = family_of(model.config)
        if self.family.name == "VisionEncoderDecoderModel":
            # Its decoder's other implementations of attention do not return the weights.
            model.decoder.set_attn_implementation("eager")
        self.encoder = attrgetter(self.family.encoder)(model)
        model.set_submodule(self.family.encoder, EncodedImages(self.encoder.config))
        self.layers, self.head, self.heads, self.max_pixels = tuple(layers), head, 1, max_pixels
        self.transform = Transform(transform)
        self.generation = _generation_of(model.generation_config)
        self.use_trust(None)

    @classmethod
    def load(cls, name: str, **options: Any) -> HuggingFaceCaptioner:
        """Load a model with its trust; arguments as above."""
        captioner = cls(name, **options)
        file = trust_file(captioner.source or name)
        if file.is_file():
            captioner.use_trust(Trust.read(file, digest=lambda: captioner.fingerprint))
        return captioner

    def use_trust(self, trust: Trust | None) -> None:
        """Use this trust, which has the words that it is of."""
        self.vocabulary = OpenVocabulary(trust.words if trust else ())
        self.trust, self.consensus = trust, trust.consensus if trust else None

    @property
    def batch_size(self) -> int:
        """Images per batch of `caption`: few, because these models are large."""
        return 16

    @cached_property
    def fingerprint(self) -> str:
        """Digest of weights and transform."""
        digest = hashlib.sha256(repr(self.transform.config).encode())
        for part in (self.encoder, self.model):
            for tensor in part.state_dict().values():
                half = tensor.bfloat16().cpu().contiguous()
                digest.update(half.view(torch.int16).numpy().tobytes())
        return digest.hexdigest()[:16]

    @torch.inference_mode()
    def encode(self, pixels: Tensor | NDArray[np.uint8]) -> Grid:
        """Encode squares, uint8 (B, 3, size, size), into one grid with features (B, L, D)."""
        return _grid(self._encode(pixels))

    def _encode(self, pixels: Tensor | NDArray[np.uint8]) -> Tensor:
        """Encode squares to image tokens (B, L', D): patches, and class tokens in front."""
        normal = self.transform.normalize(torch.as_tensor(pixels, device=self.device))
        features: Tensor = self.encoder(normal.to(self.dtype)).last_hidden_state
        return features

    @torch.inference_mode()
    def decode_batch(
        self, pixels: NDArray[np.uint8], config: GenerationConfig, *, check_attention: bool = False
    ) -> DecodedBatch:
        """Caption squares, uint8 (B, 3, size, size); see `Captioner.decode_batch`."""
        features = self._encode(pixels)
        grid = _grid(features)
        consensus = self.consensus if config.uses_consensus else None
        count = config.captions if consensus is None else config.beam_size
        tokens = self._generate(features, config, count)
        sentences = self._read(features.repeat_interleave(count, 0), tokens, config)
        beams = [sentences[first : first + count] for first in range(0, len(sentences), count)]
        if consensus is not None:
            words = [[sentence.hypothesis.tokens for sentence in beam] for beam in beams]
            beams = [
                [beam[at] for at in order]
                for beam, order in zip(beams, consensus.order(grid.features, words), strict=True)
            ]
        beams = [beam[: config.captions] for beam in beams]
        effects = [
            [self._effects(image, sentence) if check_attention else None for sentence in beam]
            for image, beam in zip(features, beams, strict=True)
        ]
        hypotheses = [[sentence.hypothesis for sentence in beam] for beam in beams]
        return DecodedBatch(hypotheses, effects, *grid)

    @torch.inference_mode()
    def word_effects(
        self, pixels: NDArray[np.uint8], words: Sequence[str], *, style: str = ""
    ) -> list[list[float] | None]:
        """Run the deletion test on a given sentence; see `Captioner.word_effects`."""
        self.vocabulary.style(style)
        features = self._encode(pixels)
        tokens = self._tokens([self.vocabulary.join(words)]).expand(len(features), -1)
        sentences = self._read(features, tokens, self.generation)
        return [self._effects(*pair) for pair in zip(features, sentences, strict=True)]

    @torch.inference_mode()
    def force(self, pixels: Tensor | NDArray[np.uint8], texts: Sequence[str]) -> tuple[Tensor, ...]:
        """Score every token of given sentences of one square by those before it.

        Returns:
            Of all N tokens, ends of sentences among them: logits (N, V), and the tokens (N,).
        """
        tokens = self._tokens(texts)
        images = self._encode(pixels).expand(len(tokens), -1, -1)
        logits, _ = self.family.read(self.model, images.unsqueeze(1), tokens[:, :-1].clamp(min=0))
        is_token = tokens[:, 1:] >= 0
        return logits[is_token].float(), tokens[:, 1:][is_token]

    def _tokens(self, texts: Sequence[str]) -> Tensor:
        """Encode sentences with start and end to (R, 1 + T); -1 pads."""
        start, end = self.family.start(self.model), np.atleast_1d(self.family.end(self.model))[0]
        ids = self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        rows = [torch.tensor([start, *row, end], device=self.device) for row in ids]
        return pad_sequence(rows, batch_first=True, padding_value=-1)

    def _generate(self, features: Tensor, config: GenerationConfig, count: int) -> Tensor:
        """Generate `count` sentences of each image: token ids (B * count, 1 + T)."""
        settings: dict[str, Any] = {
            "max_new_tokens": config.maximum_length,
            "min_new_tokens": config.minimum_length or None,
            "no_repeat_ngram_size": config.no_repeat_ngram,
            "num_return_sequences": count,
            "do_sample": config.sample,
            "num_beams": 1 if config.sample else config.beam_size,
        }
        if config.uses_beam:
            settings |= {"length_penalty": config.length_penalty, "early_stopping": False}
        if config.sample:
            names = ("temperature", "top_k", "top_p")
            settings |= {name: getattr(config, name) for name in names}
        on_gpu = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(on_gpu, enabled=config.seed is not None):
            if config.seed is not None:
                torch.manual_seed(config.seed)
            tokens: Tensor = self.model.generate(pixel_values=features.unsqueeze(1), **settings)
        return tokens

    def _read(self, images: Tensor, tokens: Tensor, config: GenerationConfig) -> list[_Sentence]:
        """Read generated tokens (R, 1 + T) of R images."""
        scores, layers = self._score(images, tokens)
        if scores.isnan().any():
            raise GenerationError(f"the scores of {self.name} are not numbers: try --dtype float32")
        attention, scores = self._average(layers).cpu(), scores.cpu()
        ends = np.atleast_1d(self.family.end(self.model)).tolist()
        sentences = []
        for row, ids in enumerate(tokens[:, 1:].tolist()):
            length = next((at + 1 for at, token in enumerate(ids) if token in ends), len(ids))
            words, spans = self._words(ids[:length])
            logs = scores[row, :length]
            maps = [attention[row, span].mean(0) for span in spans]
            # What follows the last word is the end's.
            last = slice(spans[-1].stop if spans else 0, None)
            hypothesis = Hypothesis(
                tokens=self.vocabulary.encode(words),
                score=float(logs.sum()) / length**config.length_penalty,
                log_probabilities=torch.stack([logs[span].sum() for span in (*spans, last)]),
                attention=torch.stack(maps) if maps else attention[row, :0],
            )
            sentences.append(_Sentence(tokens[row], spans, hypothesis))
        return sentences

    def _score(self, images: Tensor, tokens: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        """Return the log-probabilities (R, T) of tokens (R, 1 + T), and the attention."""
        logits, layers = self.family.read(self.model, images.unsqueeze(1), tokens[:, :-1])
        logs = logits.float().log_softmax(-1)
        return logs.gather(-1, tokens[:, 1:].unsqueeze(-1)).squeeze(-1), layers

    def _average(self, layers: Sequence[Tensor]) -> Tensor:
        """Average attention (R, H, T, L') of layers to (R, T, L) on patches; rows sum to 1."""
        chosen = [layers[at] for at in self.layers if -len(layers) <= at < len(layers)]
        if not chosen or not 1 <= (self.head or 1) <= chosen[0].shape[1]:
            raise ConfigError(
                f"layers {self.layers} and head {self.head} must be among {len(layers)} layers and "
                f"{layers[0].shape[1]} heads"
            )
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

    def _effects(self, image: Tensor, sentence: _Sentence) -> list[float]:
        """Test each word of a sentence of an image (L', D); see captioner.deletion.

        The patches are replaced for the whole sentence, because a transformer has no state before
        the word that could be kept.
        """
        attention = sentence.hypothesis.attention
        if attention is None or not sentence.spans:
            return []
        cells = attended_cells(attention)
        drawn = repeated_cells()(cells.sum(-1), cells.shape[-1])
        masks = torch.cat([cells[None], drawn]).flatten(0, 1).to(image.device)
        first = len(image) - cells.shape[-1]
        class_tokens, patches = image[:first], image[first:]
        logs = []
        for part in torch.split(masks, _ROWS):
            changed = torch.where(part.unsqueeze(-1), patches.mean(0), patches)
            images = torch.cat([class_tokens.expand(len(part), -1, -1), changed], 1)
            logs.append(self._score(images, sentence.tokens.expand(len(part), -1))[0].cpu())
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
