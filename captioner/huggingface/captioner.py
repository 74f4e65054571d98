"""Captions from Hugging Face models: BLIP, VisionEncoderDecoder (such as ViT-GPT2) and GIT.

- An image is encoded once, whatever the number of beams. The search is transformers' `generate`.
- One teacher-forced pass over the finished sentences gives log-probabilities and attention.
- Attention is the mean over all heads of the last layers, restricted to the patches.
- Sub-words are joined to words. A word's attention is the mean over the steps that chose its
  sub-words.

Cross-attention shows the patches that a step mixed in, not why the word was chosen. The deletion
test (`check_attention`) measures whether these patches mattered.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from captioner.captioner import Captioner, GeneratedBatch, MachineOptions
from captioner.checkpoint import digest_tensors
from captioner.deletion import attended_cells, random_cells
from captioner.errors import GenerationError
from captioner.generation.beam_search import Hypothesis
from captioner.generation.config import MAX_BEAM_SIZE, GenerationConfig
from captioner.generation.sampling import filter_top
from captioner.huggingface.models import FAMILIES, EncodedImages, load_model
from captioner.model.encoder import Grid
from captioner.photos.transform import Transform
from captioner.trust.trust import Trust
from captioner.vocabulary import Vocabulary

_LAYERS = 3  # the last ones, whose attention is averaged
_PUNCTUATION = ".,;:!?\"'()"
_ROWS = 64  # sentences per batch of the deletion test


class _Sentence(NamedTuple):
    """A sentence of W words."""

    tokens: Tensor  # (1 + T,), the start token, the sentence and padding
    spans: list[slice]  # the tokens of each word, without the start token
    hypothesis: Hypothesis


class HuggingFaceCaptioner(Captioner):
    """Captions photos with a Hugging Face model; see `Captioner` for the methods.

    Args:
        name: OWNER/MODEL, OWNER/MODEL@REVISION or a folder, with or without the prefix "hf:".
        **options: see MachineOptions.

    Raises DeviceError, ConfigError and the exceptions of `load_model`.
    """

    source: str

    def __init__(self, name: str, **options: Unpack[MachineOptions]) -> None:
        self._use_machine(**options)
        loaded = load_model(name)
        self.name, self.version, self.source = loaded.name, loaded.version, loaded.source
        self.tokenizer, self.transform = loaded.tokenizer, Transform(loaded.transform)
        self.model: Any = loaded.model.requires_grad_(False).eval()
        self.family = FAMILIES[type(self.model).__name__]
        self.encoder = attrgetter(self.family.encoder)(self.model)
        self.model.set_submodule(self.family.encoder, EncodedImages(self.encoder.config))
        if self.dtype == torch.float16:  # rounding to it changes the digest
            _ = self.fingerprint
        for part in (self.encoder, self.model):
            part.to(self.device, self.dtype)
        self.start, end = self.family.special(self.model)
        self.ends = np.atleast_1d(end).tolist()
        self.heads = 1
        self.generation = _generation_of(self.model.generation_config)
        self.use_trust(None)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle without the weights, which are loaded again."""
        names = ("trust", "consensus", "vocabulary", "generation")
        state = {name: getattr(self, name) for name in names}
        return partial(HuggingFaceCaptioner, **self.options), (self.source,), state

    @classmethod
    def load(cls, name: str, **options: Any) -> HuggingFaceCaptioner:
        """Load a model and, if there is one, its trust file; arguments as for the class."""
        captioner = cls(name, **options)
        trust = Trust.for_checkpoint(captioner.source, digest=lambda: captioner.fingerprint)
        captioner.use_trust(trust)
        return captioner

    def use_trust(self, trust: Trust | None) -> None:
        """Replace the trust, and set the vocabulary to the words of the trust."""
        self.vocabulary = OpenVocabulary(trust.words if trust else ())
        self.trust, self.consensus = trust, trust.consensus if trust else None

    @property
    def batch_size(self) -> int:
        """Images per batch of `caption`: few, because these models are large."""
        return 16

    @cached_property
    def fingerprint(self) -> str:
        """A digest of weights and transform, which does not depend on the dtype."""
        tensors = (*self.encoder.state_dict().values(), *self.model.state_dict().values())
        return digest_tensors(repr(self.transform.config), tensors)

    @torch.inference_mode()
    def encode(self, pixels: Tensor | NDArray[np.uint8]) -> Grid:
        """Encode square images, uint8 (B, 3, size, size), into a grid with features (B, L, D)."""
        return _grid(self._encode(pixels))

    def _encode(self, pixels: Tensor | NDArray[np.uint8]) -> Tensor:
        """Encode square images to image tokens (B, L', D): class tokens, then patches."""
        normal = self.transform.normalize(torch.as_tensor(pixels, device=self.device))
        features: Tensor = self.encoder(normal.to(self.dtype)).last_hidden_state
        return features

    @torch.inference_mode()
    def generate_batch(
        self, pixels: NDArray[np.uint8], config: GenerationConfig, *, check_attention: bool = False
    ) -> GeneratedBatch:
        """Caption square images, uint8 (B, 3, size, size); see `Captioner.generate_batch`."""
        features = self._encode(pixels)
        grid = _grid(features)
        consensus = self.consensus if config.uses_consensus else None
        count = config.captions if consensus is None else config.beam_size
        sentences = self._generate(features, config, count)
        beams = [sentences[first : first + count] for first in range(0, len(sentences), count)]
        if consensus is not None:
            beams = consensus.rank(grid.features, beams, attrgetter("hypothesis.tokens"))
        beams = [beam[: config.captions] for beam in beams]
        effects = [
            [self._effects(image, sentence) if check_attention else None for sentence in beam]
            for image, beam in zip(features, beams, strict=True)
        ]
        hypotheses = [[sentence.hypothesis for sentence in beam] for beam in beams]
        return GeneratedBatch(hypotheses, effects, grid)

    def _generate(self, features: Tensor, config: GenerationConfig, count: int) -> list[_Sentence]:
        """Generate `count` sentences for each image (B, L', D), in total B * count."""
        images = features.repeat_interleave(count, 0)
        output = self.model.generate(
            pixel_values=(images if config.sample else features).unsqueeze(1),
            num_return_sequences=1 if config.sample else count,
            logits_processor=[_Noise(config, count, self.device)] if config.sample else None,
            max_new_tokens=config.maximum_length,
            min_new_tokens=config.minimum_length or None,
            no_repeat_ngram_size=config.no_repeat_ngram,
            length_penalty=config.length_penalty,
            num_beams=config.beam_size if config.uses_beam else 1,
            do_sample=False,
            return_dict_in_generate=True,
        )
        cache = _of_images(output.cache, len(features), count)
        return self._read(images, output.sequences, config, cache)

    def _read(
        self, images: Tensor, tokens: Tensor, config: GenerationConfig, cache: Any
    ) -> list[_Sentence]:
        """Convert tokens (R, 1 + T), generated for R images, to sentences."""
        scores, layers = self._score(images, tokens, cache)
        if scores.isnan().any():
            raise GenerationError(f"the scores of {self.name} are not numbers: try --dtype float32")
        attention, scores = self._average(layers).cpu(), scores.cpu()
        sentences = []
        for row, ids in enumerate(tokens[:, 1:].tolist()):
            last = next((at for at, token in enumerate(ids) if token in self.ends), len(ids))
            words, spans = self._words(ids[:last])
            logs = scores[row, : last + 1]
            end = slice(spans[-1].stop if spans else 0, None)
            parts = [logs[span].sum() for span in (*spans, end)]
            maps = [attention[row, span].mean(0) for span in spans]
            hypothesis = Hypothesis(
                tokens=self.vocabulary.encode(words),
                score=float(logs.sum()) / len(logs) ** config.length_penalty,
                log_probabilities=torch.stack(parts),
                attention=torch.stack(maps) if maps else attention[row, :0],
            )
            sentences.append(_Sentence(tokens[row], spans, hypothesis))
        return sentences

    def _score(
        self, images: Tensor, tokens: Tensor, cache: Any = None
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """Return the log-probabilities (R, T) of tokens (R, 1 + T), and the attention."""
        logits, layers = self.family.read(self.model, images.unsqueeze(1), tokens[:, :-1], cache)
        logs = logits.float().log_softmax(-1)
        return logs.gather(-1, tokens[:, 1:].unsqueeze(-1)).squeeze(-1), layers

    def _average(self, layers: Sequence[Tensor]) -> Tensor:
        """Return the mean of the last layers' weights (R, H, T, L') on patches: (R, T, L)."""
        weights = torch.stack([*layers[-_LAYERS:]]).float().mean(dim=(0, 2))
        patches = weights[..., _class_tokens(weights.shape[-1]) :]
        return patches / patches.sum(-1, keepdim=True).clamp(min=1e-12)

    def _words(self, ids: list[int]) -> tuple[list[str], list[slice]]:
        """Join sub-words to words; return the words and the tokens of each word."""
        begun = [ids[:count] for count in range(len(ids) + 1)]
        texts = self.tokenizer.batch_decode(begun, skip_special_tokens=True)
        words = [self.vocabulary.join([text]).split() for text in texts]
        # Number of words after each token. Later tokens can join two words ("man '" and "s").
        counts = np.minimum.accumulate([len(part) for part in reversed(words)])[::-1]
        starts = np.searchsorted(counts, range(1, counts[-1] + 1)) - 1
        bounds = pairwise([*starts.tolist(), texts.index(texts[-1])])
        return words[-1], [slice(first, max(after, first + 1)) for first, after in bounds]

    def _effects(self, image: Tensor, sentence: _Sentence) -> list[float]:
        """Test each word of a sentence of an image (L', D); see captioner.deletion.

        The patches are replaced in all steps of the sentence, because a transformer has no
        recurrent state from which a single step could start.
        """
        attention = sentence.hypothesis.attention
        if attention is None or not sentence.spans:
            return []
        cells = attended_cells(attention.to(image.device))
        count = cells.shape[-1]
        generator = torch.Generator().manual_seed(0)
        masks = torch.cat([cells[None], random_cells(generator, cells.sum(-1), count)])
        deleted = pad(masks, (len(image) - count, 0)).flatten(0, 1).unsqueeze(-1)
        mean, tokens, parts = image[-count:].mean(0), sentence.tokens, []
        for part in torch.split(deleted, _ROWS):
            images = torch.where(part, mean, image)
            parts.append(self._score(images, tokens.expand(len(part), -1))[0])
        scores = torch.cat(parts).view(*masks.shape[:2], -1)
        falls = (scores[1:].mean(0) - scores[0]).cpu()
        return [falls[at, span].sum().item() for at, span in enumerate(sentence.spans)]


class _Noise:
    """Samples with a search for the best token, by noise of its own random generator.

    A token that maximises log p + g, with g from a Gumbel distribution, is a sample of p (Maddison
    et al. 2014). The `generate` of transformers samples from torch's generator, which all threads
    share. Every image gets the same noise, so its samples do not depend on the batch.
    """

    def __init__(self, config: GenerationConfig, count: int, device: torch.device) -> None:
        self.config, self.count = config, count
        self.generator = torch.Generator(device)
        if config.seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(config.seed)

    def __call__(self, tokens: Tensor, scores: Tensor) -> Tensor:  # noqa: ARG002
        """Return the scores (B * count, V) with noise."""
        below = scores.float() - scores.amax(dim=-1, keepdim=True)
        scaled = below / max(self.config.temperature, torch.finfo(below.dtype).tiny)
        kept = filter_top(scaled, top_k=self.config.top_k, top_p=self.config.top_p)
        noise = kept.new_empty(self.count, kept.shape[-1]).exponential_(generator=self.generator)
        gumbel = -noise.clamp(min=torch.finfo(noise.dtype).tiny).log()
        return kept + gumbel.repeat(len(kept) // self.count, 1)


_words = threading.Lock()


class OpenVocabulary(Vocabulary):
    """Numbers words when they first appear, because a model of sub-words has no list of words."""

    def encode(self, words: Iterable[str]) -> list[int]:
        """Return the numbers of words; new words are added."""
        words = list(words)
        with _words:
            new = [word for word in dict.fromkeys(words) if word not in self._ids]
            self._ids |= {word: len(self.words) + at for at, word in enumerate(new)}
            self.words = (*self.words, *new)
        return [self._ids[word] for word in words]

    def decode_plain(self, tokens: Iterable[int]) -> list[str]:
        """Return the words as evaluation scores them: in lower case, without punctuation."""
        return [word.lower().strip(_PUNCTUATION) for word in self.decode(tokens)]


def _of_images(cache: Any, images: int, count: int) -> Any:
    """Reduce a cache of `generate` to the images' keys and values, for `count` sentences each.

    Returns None for GIT, where an image and its sentence are one sequence.
    """
    from transformers import DynamicCache, EncoderDecoderCache

    if not isinstance(cache, EncoderDecoderCache):
        return None
    crossed = cache.cross_attention_cache
    rows = torch.arange(len(crossed.layers[0].keys)).view(images, -1)[:, :count]
    crossed.batch_select_indices(rows.flatten())
    return EncoderDecoderCache(DynamicCache(), crossed)


def _class_tokens(count: int) -> int:
    """Return how many of `count` image tokens precede the square of patches."""
    return count - math.isqrt(count) ** 2


def _grid(features: Tensor) -> Grid:
    """Return image tokens (B, L', D) as a grid of patches; class tokens come first and are cut."""
    patches = features[:, _class_tokens(features.shape[1]) :]
    side = math.isqrt(patches.shape[1])
    return Grid(patches, side, side)


def _generation_of(own: Any) -> GenerationConfig:
    """Convert the generation settings of a published model to a GenerationConfig."""
    length = own.max_new_tokens or (own.max_length or 21) - 1
    return GenerationConfig(
        beam_size=min(own.num_beams or 1, MAX_BEAM_SIZE),
        length_penalty=1.0 if own.length_penalty is None else max(own.length_penalty, 0.0),
        no_repeat_ngram=own.no_repeat_ngram_size or 0,
        minimum_length=0,
        maximum_length=min(length, 256),
        consensus=False,
        no_repeat_around="",
    )
