"""What decoding.py measures on: ResNet-101 grids, and a decoder that has learned to describe them.

An untrained decoder scores all words nearly alike, so which of them wins says nothing about a
number format. Therefore the decoder first learns, from drawn scenes, sentences of exactly twenty
words, in which colours, shapes and relation must be read from the grid.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import OneCycleLR
from torchvision.models import ResNet101_Weights
from torchvision.models.resnet import Bottleneck

from captioner.decoders.config import DecoderConfig
from captioner.decoders.lstm import LSTMDecoder
from captioner.vision.encoder import Encoder, EncoderConfig
from captioner.vision.transform import Transform, TransformConfig
from captioner.vocabulary import END, START, Vocabulary
from captioner_training.data.scenes import COLORS, SHAPES, Scene, SceneConfig, draw_scene

SIDE = 256  # pixels of a photo: a grid of 8 x 8 cells
WORDS = 20  # of every sentence
VOCABULARY = 9490  # words and special tokens, as many as the usual COCO vocabulary has

_BATCH = 32  # scenes, in encoding and in training
_RATE = 1e-3
_OPPOSITE = {"above": "below", "below": "above", "left of": "right of", "right of": "left of"}


class Subject(NamedTuple):
    """A trained decoder, and what it was trained from."""

    decoder: LSTMDecoder
    vocabulary: Vocabulary
    encoder: Encoder
    transform: Transform
    origin: str  # of the encoder's weights, in words


def scenes(first: int, count: int) -> list[Scene]:
    """Draw the scenes of `count` seeds in a row."""
    config = SceneConfig(side=SIDE, large=(0.42, 0.50), small=(0.26, 0.32))
    return [draw_scene(seed, config) for seed in range(first, first + count)]


def describe(scene: Scene) -> list[str]:
    """Say what is in a scene in twenty words, and the relation in both directions.

    "left of" and "right of" are two words, so that with them the second half leaves colours out.
    """
    large, small = scene.objects
    relation = scene.caption.removeprefix(f"{large} ").removesuffix(f" {small}")
    if " " in relation:
        again = f"the small {small.shape}", f"the large {large.shape}"
    else:
        again = f"the small {small.color} {small.shape}", f"the large {large.color} {large.shape}"
    return f"{scene.caption} and {again[0]} is {_OPPOSITE[relation]} {again[1]}".split()


def build_vocabulary() -> Vocabulary:
    """Number the words of the descriptions; words that are never said fill it up."""
    template = ["a", "the", "and", "is", "large", "small", "above", "below", "left", "right", "of"]
    words = [*template, *COLORS, *SHAPES]
    missing = VOCABULARY - len(Vocabulary(words))
    return Vocabulary([*words, *(f"unused{number}" for number in range(missing))])


@torch.inference_mode()
def encode(encoder: Encoder, transform: Transform, images: list[Image.Image]) -> Tensor:
    """Encode images into grids (images, L, D)."""
    return torch.cat([encoder(batch).features for batch in _batches(transform, images)])


def _batches(transform: Transform, images: list[Image.Image]) -> Iterator[Tensor]:
    for first in range(0, len(images), _BATCH):
        pixels = torch.stack([transform(image) for image in images[first : first + _BATCH]])
        yield pixels.contiguous(memory_format=torch.channels_last)


def build_encoder(transform: Transform, images: list[Image.Image]) -> tuple[Encoder, str]:
    """Build ResNet-101, with ImageNet's weights where torchvision has them on disk already.

    Otherwise it has random ones, and the BatchNorm statistics of `images`. Either way a last
    BatchNorm gives all features one scale: the decoder then learns in a few hundred steps.
    """
    name = Path(ResNet101_Weights.DEFAULT.url).name
    cached = (Path(torch.hub.get_dir()) / "checkpoints" / name).is_file()
    encoder = Encoder(EncoderConfig(name="resnet101"), pretrained=cached)
    scale = nn.BatchNorm2d(encoder.channels(), affine=False)
    encoder.stages.append(scale)
    encoder = encoder.to(memory_format=torch.channels_last).eval()
    _calibrate([scale] if cached else encoder.stages, encoder, next(_batches(transform, images)))
    if cached:
        return encoder, "ImageNet weights from torchvision"
    return encoder, "random weights, BatchNorm calibrated on the scenes"


@torch.inference_mode()
def _calibrate(parts: Iterable[nn.Module], encoder: Encoder, pixels: Tensor) -> None:
    """Take the BatchNorm statistics of these parts from a batch of images.

    Each residual branch in them is scaled down, as is usual at the start of training (Goyal et al.
    2017): a hundred random layers would leave little of the picture otherwise.
    """
    for module in (module for part in parts for module in part.modules()):
        if isinstance(module, Bottleneck):
            module.bn3.weight.fill_(0.2)
        if isinstance(module, nn.BatchNorm2d):
            module.train().momentum = 1.0
    encoder(pixels)
    encoder.eval()


def train(grids: Tensor, sentences: Tensor, *, steps: int) -> LSTMDecoder:
    """Train a decoder of the paper's sizes on grids (N, L, D) and their sentences (N, T).

    Only words that are said compete here, which makes a step three times as fast. The biases of the
    others start so low (about a word in 20,000) that training would not move them.
    """
    config = DecoderConfig(embedding_dim=512, hidden_dim=512, attention_dim=512, value_dim=None)
    decoder = LSTMDecoder(config, grid_dim=grids.shape[-1], vocabulary_size=VOCABULARY)
    said = int(sentences.max()) + 1
    nn.init.constant_(decoder.output_bias[said:], -10.0)
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=_RATE, betas=(0.9, 0.98))
    schedule = OneCycleLR(optimizer, _RATE, total_steps=steps, pct_start=0.15)
    order = torch.zeros(0, dtype=torch.long)
    for _ in range(steps):
        if len(order) < _BATCH:
            order = torch.randperm(len(grids))
        chosen, order = order[:_BATCH], order[_BATCH:]
        wanted = sentences[chosen].unsqueeze(1)
        with torch.autocast("cpu", torch.bfloat16):
            deep = decoder(grids[chosen], wanted[..., :-1]).deep
            logits = F.linear(deep, decoder.embedding.weight[:said], decoder.output_bias[:said])
        loss = F.cross_entropy(logits.flatten(0, 2).float(), wanted[..., 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return decoder.eval().requires_grad_(False)


def build_subject(*, scenes_seen: int, steps: int) -> Subject:
    """Draw and encode the scenes, and train the decoder on them."""
    torch.manual_seed(0)
    seen = scenes(0, scenes_seen)
    images = [scene.image for scene in seen]
    transform = Transform(TransformConfig(size=SIDE))
    encoder, origin = build_encoder(transform, images)
    vocabulary = build_vocabulary()
    sentences = [[START, *vocabulary.encode(describe(scene)), END] for scene in seen]
    grids = encode(encoder, transform, images).clone()
    decoder = train(grids, torch.tensor(sentences), steps=steps)
    return Subject(decoder, vocabulary, encoder, transform, origin)
