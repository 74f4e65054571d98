"""Every decoder with every attention keeps the promises that generation and training rely on."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from captioner import Captioner, ConfigError
from captioner.checkpoint import Checkpoint, load_checkpoint
from captioner.generation.config import GenerationConfig
from captioner.generation.generate import generate
from captioner.inference.decoders import FastDecoder, can_pack, fast_decoder, pack_linear
from captioner.model.config import DecoderConfig
from captioner.model.decoder import Decoder, build_decoder
from captioner.model.model import CaptionModel, ModelConfig
from captioner.model.positions import POSITIONS
from captioner.model.scores import SCORES
from captioner.vocabulary import END, START
from tests.conftest import make_tiny, rewrite_header

SIZES: dict[str, Any] = {
    "embedding_dim": 12, "hidden_dim": 8, "attention_dim": 16, "value_dim": 8,
}  # fmt: skip
HEADS = {"additive": 4, "scaled_dot": 4}
VARIANTS: list[dict[str, Any]] = [
    {"kind": "lstm", "score": "dot", "query": "current"},
    *(
        {"kind": kind, "score": score, "heads": HEADS.get(score, 1)}
        for kind in ("lstm", "top_down", "transformer")
        for score in SCORES
    ),
    *({"kind": "lstm", "positions": positions} for positions in POSITIONS[1:]),
    *({"kind": kind, "positions": "sine"} for kind in ("top_down", "transformer")),
    {"kind": "lstm", "score": "scaled_dot", "heads": 2, "query": "current", "positions": "binary"},
    *(
        {"kind": kind, "encoder_layers": 2, "score": "scaled_dot", "heads": 2, "positions": where}
        for kind, where in (("lstm", "binary"), ("top_down", "sine"), ("transformer", "learned"))
    ),
    {"kind": "lstm", "encoder_layers": 1, "norm": "post", "value_dim": None},
    {"kind": "lstm", "value_dim": None},
    {"kind": "top_down", "value_dim": None, "positions": "binary"},
    {"kind": "transformer", "value_dim": None, "norm": "post", "layers": 3},
    {"kind": "transformer", "score": "scaled_dot", "norm": "post", "layers": 1, "heads": 2},
]

# Settings that a file stores: kinds, heads, positions, norms, and no attention.
SAVED: list[dict[str, Any]] = [
    {"kind": "lstm", "score": "additive", "heads": 4},
    {"kind": "lstm", "encoder_layers": 1, "norm": "post", "value_dim": None},
    {"kind": "top_down", "score": "none", "positions": "binary"},
    {"kind": "transformer", "encoder_layers": 2, "score": "scaled_dot", "heads": 2,
     "positions": "learned", "layers": 1},
]  # fmt: skip


def named(variant: dict[str, Any]) -> str:
    return "-".join(f"{value}" for value in variant.values())


close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)
every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=named)


def made(variant: dict[str, Any]) -> Decoder:
    torch.manual_seed(0)
    config = DecoderConfig(**{**SIZES, "dropout": 0.0, **variant})
    decoder = build_decoder(config, grid_dim=6, vocabulary_size=11)
    torch.nn.init.normal_(decoder.embedding.weight)  # far from uniform: no near-ties
    return decoder.eval()


@every_variant
@pytest.mark.parametrize("cells", [9, 16], ids=["9 cells", "16 cells"])
def test_steps_with_their_cache_are_teacher_forcing(variant: dict[str, Any], cells: int) -> None:
    """Also the steps of the stand-ins: without tables, with tables, and with packed weights."""
    decoder, heads = made(variant).requires_grad_(False), variant.get("heads", 1)
    features, tokens = torch.randn(2, cells, 6), torch.randint(0, 11, (2, 3, 5))
    whole = decoder(features, tokens)
    logits = decoder.logits(whole.deep)
    prepared = {
        "plain": decoder,
        "folded": fast_decoder(decoder, tables=False),
        "with tables": fast_decoder(decoder),
    }
    if can_pack():
        prepared["packed"] = fast_decoder(copy.deepcopy(decoder))
        pack_linear(prepared["packed"])
    for name, steps in prepared.items():
        has_stand_in = name != "plain" and variant["kind"] != "transformer"
        assert isinstance(steps, FastDecoder) == has_stand_in
        state = steps.start(features).expand(3)
        for t in range(5):
            output = steps.step(tokens[..., t], state)
            state = output.state
            torch.testing.assert_close(logits[:, :, t], output.logits, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(whole.attention[:, :, t], output.attention)
            assert (whole.gate is None) == (output.gate is None)
            if output.gate is not None:
                torch.testing.assert_close(whole.gate[:, :, t], output.gate)
            torch.testing.assert_close(output.attention.sum(-1), torch.ones(2, 3))
            if heads == 1:
                assert output.heads is None
            else:
                assert output.heads.shape == (2, 3, heads, cells)
                torch.testing.assert_close(output.heads.mean(2), output.attention)
            assert all(part.shape[:2] == (2, cells) for part in state.image.values())
            assert all(part.shape[:2] == (2, 3) for part in state.hypothesis.values())


@every_variant
def test_a_search_returns_the_values_of_teacher_forcing(variant: dict[str, Any]) -> None:
    """Each hypothesis of a beam follows its own parent, also with the decoder's stand-in."""
    decoder, features = made(variant), torch.randn(2, 9, 6)
    config = GenerationConfig(beam_size=4, captions=4, minimum_length=3, maximum_length=6)
    fast = fast_decoder(copy.deepcopy(decoder))
    if can_pack():
        pack_linear(fast.requires_grad_(False))
    sentences = []
    for model in (decoder, fast):
        beams = generate(model, features, config)
        sentences.append([hypothesis.tokens for beam in beams for hypothesis in beam])
        assert len({tuple(tokens) for tokens in sentences[-1][:4]}) == 4
        for image, hypothesis in enumerate(chain(*beams)):
            tokens = torch.tensor([START, *hypothesis.tokens, END])[None, None]
            alone = model(features[image // 4 : image // 4 + 1], tokens[..., :-1])
            logs = model.logits(alone.deep)[0, 0].log_softmax(-1).gather(1, tokens[0, 0, 1:, None])
            close(hypothesis.log_probabilities, logs.squeeze(1))
            close(hypothesis.attention, alone.attention[0, 0, :-1])
            for part in ("gate", "heads"):
                expected = getattr(alone, part)
                close(getattr(hypothesis, part), None if expected is None else expected[0, 0, :-1])
    assert sentences[0] == sentences[1]


@pytest.mark.parametrize("kind", ["lstm", "top_down"])
def test_stand_ins_are_copied_and_keep_up_with_a_dtype(kind: str) -> None:
    decoder = fast_decoder(made({"kind": kind}))
    token, features = torch.tensor([[3]]), torch.randn(1, 9, 6)
    computed = decoder.step(token, decoder.start(features)).logits
    copied = pickle.loads(pickle.dumps(copy.deepcopy(decoder))).to(torch.bfloat16)
    assert {part.dtype for part in copied.state_dict().values()} == {torch.bfloat16}
    rounded = copied.step(token, copied.start(features.bfloat16())).logits
    torch.testing.assert_close(rounded.float(), computed, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("kind", ["lstm", "top_down", "transformer"])
def test_initial_scores_of_words_have_the_variance_of_the_output(kind: str) -> None:
    """The matrix of the words, which is used for both, must not multiply them by sqrt(m)."""
    config = DecoderConfig(kind=kind, embedding_dim=64)
    decoder = build_decoder(config, grid_dim=6, vocabulary_size=500)
    assert decoder.logits(torch.randn(500, 64)).std().item() == pytest.approx(1, abs=0.05)


@every_variant
def test_every_parameter_has_a_gradient(variant: dict[str, Any]) -> None:
    decoder = made({**variant, "dropout": 0.5}).train()
    output = decoder(torch.randn(2, 9, 6), torch.randint(0, 11, (2, 3, 5)))
    decoder.logits(output.deep).square().mean().backward()
    assert [name for name, p in decoder.named_parameters() if p.grad is None] == []


@pytest.fixture(scope="module")
def base() -> Checkpoint:
    """A checkpoint whose encoder all variants share: it takes longest to make."""
    return make_tiny()


@pytest.mark.parametrize("variant", SAVED, ids=named)
def test_a_saved_checkpoint_gives_the_same_captions(
    variant: dict[str, Any], base: Checkpoint, tmp_path: Path, photo: Path
) -> None:
    torch.manual_seed(0)
    config = ModelConfig(
        encoder=base.model.config.encoder, decoder=DecoderConfig(**{**SIZES, **variant})
    )
    model = CaptionModel(config, vocabulary_size=len(base.vocabulary), encoder=base.model.encoder)
    torch.nn.init.normal_(model.decoder.embedding.weight)
    checkpoint = replace(base, model=model.eval())
    path = tmp_path / "variant.safetensors"
    checkpoint.save(path, dtype=torch.float32)
    generation = GenerationConfig(minimum_length=3, maximum_length=6)
    before = Captioner(checkpoint).caption(photo, generation)
    loaded = load_checkpoint(path)
    assert loaded.model.config == config
    caption = Captioner(loaded).caption(photo, generation)
    assert caption.text == before.text
    for word in caption.words:
        assert word.attention.sum().item() == pytest.approx(1, abs=1e-5)
    heads = variant.get("heads", 1)
    maps = np.stack([caption.words[0].map(head + 1) for head in range(heads)])
    np.testing.assert_allclose(maps.mean(0), caption.words[0].attention, atol=1e-6)
    for head in (heads + 1, 0, -1):
        with pytest.raises(ConfigError, match=f"no head {head}: choose from 1 to {heads}"):
            caption.contact_sheet(head=head)


@pytest.mark.parametrize(
    ("kind", "positions"), [("lstm", "learned"), ("lstm", "binary"), ("transformer", "sine")]
)
def test_older_checkpoints_add_unscaled_positions(
    kind: str, positions: str, base: Checkpoint, tmp_path: Path, photo: Path
) -> None:
    """Older files have neither the setting nor the tensor of a scale."""
    old = DecoderConfig(**SIZES, kind=kind, positions=positions, scaled_positions=False)
    config = ModelConfig(encoder=base.model.config.encoder, decoder=old)
    model = CaptionModel(config, vocabulary_size=len(base.vocabulary), encoder=base.model.encoder)
    torch.nn.init.normal_(model.decoder.embedding.weight)
    checkpoint, path = replace(base, model=model.eval()), tmp_path / "old.safetensors"
    checkpoint.save(path, dtype=torch.float32)
    with safe_open(path, "pt") as file:
        assert not any("scale" in name for name in file.keys() if "positions" in name)  # noqa: SIM118
    rewrite_header(path, lambda document: document["decoder"].pop("scaled_positions"))
    loaded = load_checkpoint(path)
    assert loaded.model.config == config
    generation = GenerationConfig(minimum_length=3, maximum_length=6)
    before, after = (Captioner(model).caption(photo, generation) for model in (checkpoint, loaded))
    assert before.words == after.words


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"score": "dotty"}, "score 'dotty' is invalid: use"),
        ({"heads": 3}, "heads is 3, which does not divide"),
        ({"heads": 2, "value_dim": None}, "heads 2 needs projected values: set value_dim"),
        ({"score": "dot", "value_dim": None}, "set value_dim, for example to hidden_dim, 8"),
        ({"score": "dot", "value_dim": 6}, "of the same size, not 8 and 6"),
        ({"score": "none", "heads": 2}, "needs no more than one"),
        ({"hidden_dim": 0}, "hidden_dim 0"),
        ({"dropout": 1.0}, "dropout 1.0"),
        ({"kind": "transformer", "hidden_dim": 3, "positions": "sine"}, "at least 4, not 3"),
        ({"kind": "top_down", "query": "current"}, "needs kind lstm, not top_down"),
        ({"encoder_layers": 1, "hidden_dim": 10, "heads": 4}, "does not divide hidden_dim"),
    ],
)
def test_invalid_settings_are_refused_when_read(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        DecoderConfig(**{**SIZES, **changes})
