"""A custom decoder, added as in docs/design.md: a class, and a row in the table."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from captioner import Captioner, ConfigError, GenerationConfig
from captioner.checkpoint import Checkpoint
from captioner.model.config import DECODERS, DecoderConfig
from captioner.model.decoder import DecoderOutput, State, StepOutput, WordDecoder
from captioner.model.encoder import EncoderConfig
from captioner.model.model import CaptionModel, ModelConfig
from captioner.photos.transform import TransformConfig
from captioner.vocabulary import START, Vocabulary
from captioner_training.recipe import Stage, fields_text
from tests.training.runs import begin_step, make_batch


class BigramDecoder(WordDecoder):
    """Predicts a word from the previous word and the mean of the grid, without attention."""

    def __init__(self, config: DecoderConfig, *, grid_dim: int, vocabulary_size: int) -> None:
        super().__init__(config, vocabulary_size=vocabulary_size)
        self.look = nn.Linear(grid_dim, config.embedding_dim)

    def start(self, features: Tensor) -> State:
        # In `image` every part has a row for each cell; a mean has one, and goes with hypotheses.
        mean = self.look(features.mean(dim=1, keepdim=True))
        return State(image={}, hypothesis={"mean": mean})

    def step(self, tokens: Tensor, state: State) -> StepOutput:
        deep = self.embed(tokens) + state.hypothesis["mean"]
        return StepOutput(self.logits(deep), state, None, None, None)

    def forward(self, features: Tensor, tokens: Tensor) -> DecoderOutput:
        mean = self.start(features).hypothesis["mean"]
        return DecoderOutput(self.embed(tokens) + mean.unsqueeze(1))


@pytest.fixture
def checkpoint(monkeypatch: pytest.MonkeyPatch) -> Checkpoint:
    monkeypatch.setitem(DECODERS, "bigram", f"{__name__}:BigramDecoder")
    torch.manual_seed(0)
    vocabulary = Vocabulary(["a", "dog", "cat", "runs"])
    config = ModelConfig(
        encoder=EncoderConfig(name="mobilenet_v3_small"),
        decoder=DecoderConfig(kind="bigram", embedding_dim=8),
    )
    model = CaptionModel(config, vocabulary_size=len(vocabulary)).eval()
    return Checkpoint(
        model=model,
        vocabulary=vocabulary,
        transform=TransformConfig(size=32),
        name="bigram",
        generation=GenerationConfig(beam_size=3, maximum_length=5),
    )


def test_a_custom_decoder_is_saved_loaded_and_captions(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    checkpoint.save(tmp_path / "bigram.safetensors")
    captioner = Captioner.from_pretrained(tmp_path / "bigram.safetensors", dtype="float32")
    assert type(captioner.model.decoder) is BigramDecoder
    caption = captioner.caption(Image.new("RGB", (40, 30), "teal"), check_attention=True)
    assert 1 <= len(caption.words) <= 5
    assert {(word.attention, word.effect) for word in caption.words} == {(None, None)}


def test_a_step_of_training_moves_every_weight(checkpoint: Checkpoint) -> None:
    model = checkpoint.model
    stage = Stage(epochs=1, batch_size=2, learning_rate=1e-2, warmup=0)
    step = begin_step(checkpoint, stage, steps=2)
    batch = make_batch(
        torch.randn(2, 4, 576), [[[4, 5, 6]]] * 2, starts=[START] * 2, maximum_length=5
    )
    before = [weight.detach().clone() for weight in model.decoder.parameters()]
    assert step([batch])["loss"].isfinite()
    for old, new in zip(before, model.decoder.parameters(), strict=True):
        assert not torch.equal(old, new)


def test_a_recipe_accepts_the_kind_while_it_is_registered(checkpoint: Checkpoint) -> None:
    assert "decoder.kind: lstm  (lstm, top_down, transformer, bigram)" in fields_text()
    with pytest.raises(ConfigError, match=r"kind 'trigram' is invalid: use lstm, .*, bigram"):
        DecoderConfig(kind="trigram")
