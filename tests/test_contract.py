"""One record through every front end, with values worked out by hand.

The model is a table of word pairs, and does not look at the photo: the probability of a word
depends only on the word before, and no word depends on the attended cells (effect 0). Head 1
attends to the middle row of the grid, head 2 to its right column, four times as much as to other
cells. Weights are saved as float16, hence the tolerance.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, pairwise, product
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

from captioner import Captioner
from captioner.checkpoint import Checkpoint
from captioner.generation.config import GenerationConfig
from captioner.model.config import DecoderConfig
from captioner.model.encoder import EncoderConfig
from captioner.model.model import CaptionModel, ModelConfig
from captioner.photos.transform import TransformConfig
from captioner.trust.trust import digest_weights, trust_file
from captioner.vocabulary import END, Vocabulary
from tests.conftest import make_trust
from tests.launcher import Run
from tests.serving.server.running import serving

WORDS, STYLES = ("a", "the", "dog", "cat", "runs", "sits"), ("long", "short")
# The logit of a word after another or after a style; 0 for other pairs.
PAIRS = {
    ("long", "a"): 5.0, ("long", "the"): 4.0, ("short", "dog"): 5.0, ("short", "cat"): 4.0,
    ("a", "dog"): 4.0, ("a", "cat"): 3.0, ("the", "dog"): 4.0, ("dog", "runs"): 5.0,
    ("cat", "sits"): 5.0, ("dog", "<end>"): 3.0, ("runs", "<end>"): 6.0, ("sits", "<end>"): 6.0,
}  # fmt: skip
LONGEST = 4  # words


def probabilities(last: str) -> dict[str, float]:
    """Return the probabilities of the words after a word or style, and of <end>."""
    logits = {word: PAIRS.get((last, word), 0.0) for word in (*WORDS, "<end>")}
    total = sum(map(math.exp, logits.values()))
    return {word: math.exp(logit) / total for word, logit in logits.items()}


def rank_sentences(style: str) -> list[tuple[float, tuple[str, ...], list[float]]]:
    """Return score, words and their probabilities of all sentences, best first."""
    sentences = []
    for words in chain.from_iterable(product(WORDS, repeat=n) for n in range(1, LONGEST + 1)):
        pairs = list(pairwise(words))
        if len(set(pairs)) < len(pairs) or any(first == second for first, second in pairs):
            continue  # no pair occurs twice, and no word twice in a row
        steps = pairwise((style, *words, "<end>"))
        shares = [probabilities(last)[word] for last, word in steps]
        score = sum(map(math.log, shares)) / len(shares) ** 0.5
        sentences.append((score, words, shares[:-1]))
    return sorted(sentences, reverse=True)


def expected_sentence(sentence: tuple[float, tuple[str, ...], list[float]]) -> dict[str, Any]:
    """Return the part of a record that describes a sentence."""
    score, words, shares = sentence
    middle_row, right_column = np.ones((2, 3, 3)) / 18
    middle_row[1], right_column[:, 2] = 4 / 18, 4 / 18
    # The logistic function of 1 + ln(1/2) + ln(share) / 2.
    trusts = [1 / (1 + 2 * math.exp(-1) / share**0.5) for share in shares]
    whole = math.prod(trusts) ** 0.05
    attention = {
        "rows": 3, "columns": 3, "box": pytest.approx([0, 1 / 6, 1, 5 / 6], abs=1e-3),
        "weights": pytest.approx(((middle_row + right_column) / 2).ravel(), abs=1e-3),
        "heads": [pytest.approx(head.ravel(), abs=1e-3) for head in (middle_row, right_column)],
    }  # fmt: skip
    return {
        "caption": " ".join(words),
        "score": pytest.approx(score, abs=1e-3),
        "trust": pytest.approx(whole / (1 + whole), abs=1e-3),
        "words": [
            {
                "word": word,
                "probability": pytest.approx(share, abs=1e-3),
                "trust": pytest.approx(trust, abs=1e-3),
                "gate": pytest.approx(0.75, abs=1e-3),
                "effect": pytest.approx(0, abs=1e-3),
                "attention": attention,
            }
            for word, share, trust in zip(words, shares, trusts, strict=True)
        ],
    }


def mark_doubtful(sentence: dict[str, Any], limit: float = 0.55) -> dict[str, Any]:
    """Mark the words whose trust is below the limit."""
    words = [
        word | ({"doubtful": True} if word["trust"].expected < limit else {})
        for word in sentence["words"]
    ]
    return sentence | {"words": words}


def make_table() -> Checkpoint:
    """Make the model of word pairs."""
    vocabulary = Vocabulary(WORDS, styles=STYLES)
    size = len(vocabulary)
    config = ModelConfig(
        encoder=EncoderConfig(name="mobilenet_v3_small"),
        decoder=DecoderConfig(
            embedding_dim=size, hidden_dim=size, attention_dim=2, value_dim=2, heads=2,
            positions="binary", scaled_positions=False,
        ),
    )  # fmt: skip
    model = CaptionModel(config, vocabulary_size=size).eval()
    decoder = model.decoder
    logits = torch.zeros(size, size)
    for pair, logit in PAIRS.items():
        logits[tuple(token_of(vocabulary, word) for word in reversed(pair))] = logit
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.zero_()
        decoder.embedding.weight.copy_(torch.eye(size))
        # Open input and output gates, a closed forget gate: the cell state is the last word's
        # embedding, and the hidden state its tanh.
        gates = torch.tensor([30.0, -30.0, 30.0, 0.0]).repeat_interleave(size)
        decoder.word_gates.bias.copy_(gates)
        decoder.word_gates.weight[3 * size :] = 30 * torch.eye(size)
        # The deep output is the embedding plus L_h h, and has to be a column of the table.
        decoder.deep_hidden.weight.copy_((logits - torch.eye(size)) / math.tanh(1))
        decoder.output_bias.fill_(-30)
        decoder.output_bias[[END, *vocabulary.encode(WORDS)]] = 0
        decoder.gate.bias.fill_(math.log(3))
        # The lowest bit of a row is 1 in the middle; the second bit of a column, on the right.
        row, column = decoder.grid_dim, decoder.grid_dim + 6 + 1
        decoder.attention.score.key.weight[[0, 1], [row, column]] = 30
        decoder.attention.score.score.weight.fill_(math.log(4))
    transform = TransformConfig(mode="crop", size=96)
    generation = GenerationConfig(maximum_length=LONGEST)
    return Checkpoint(
        model=model, vocabulary=vocabulary, transform=transform, generation=generation, name="table"
    )


def token_of(vocabulary: Vocabulary, word: str) -> int:
    """Return the token of a word, of <end>, or of a style."""
    if word in STYLES:
        return vocabulary.start(word)
    return END if word == "<end>" else vocabulary.encode([word])[0]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of word pairs with its trust file."""
    path = tmp_path_factory.mktemp("table") / "table.safetensors"
    checkpoint = make_table()
    checkpoint.save(path)
    trust = make_trust(words=len(checkpoint.vocabulary), weights=digest_weights(path))
    none = np.zeros_like(trust.word_features.coefficients)
    flat = replace(trust.word_features, coefficients=none)  # half of the people, always
    replace(trust, word_features=flat).save(trust_file(path))
    return path


@pytest.fixture(scope="module")
def client(table: Path) -> Iterator[httpx.Client]:
    """A server with the model of word pairs."""
    captioner = Captioner.from_pretrained(table, device="cpu", dtype="float32")
    with serving(captioner) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """A photo of 120 x 80 pixels that EXIF turns by 90 degrees."""
    exif = Image.Exif()
    exif[274] = 6
    path = tmp_path / "turned.jpg"
    Image.radial_gradient("L").resize((120, 80)).convert("RGB").save(path, exif=exif)
    return path


def test_every_front_end_gives_the_record_worked_out_by_hand(
    table: Path, client: httpx.Client, photo: Path, run_main: Run
) -> None:
    style = STYLES[1]  # the first is the default
    sentences = rank_sentences(style)[:3]
    best, *others = (mark_doubtful(expected_sentence(sentence)) for sentence in sentences)
    expected = {
        **best, "image": str(photo), "familiarity": 1.0, "style": style, "alternatives": others,
        "model": {"name": "table", "version": "1", "dtype": "float32"},
    }  # fmt: skip
    captioner = Captioner.from_pretrained(table, device="cpu", dtype="float32")
    caption = captioner.caption(photo, captions=3, style=style, check_attention=True)
    assert caption.size == (80, 120)
    assert caption.record(attention=True) == expected

    options = ("--captions", 3, "--style", style, "--attention", "--check-attention")
    options += ("--checkpoint", table, "--device", "cpu", "--dtype", "float32")
    result = run_main("caption", photo, "--json", *options)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == expected

    output = photo.with_name("out.jsonl")
    result = run_main("batch", photo, "--output", output, *options)
    assert result.returncode == 0, result.stderr
    assert json.loads(output.read_text()) == expected

    fields = {"captions": "3", "style": style, "attention": "true", "check_attention": "true"}
    files = {"image": (photo.name, photo.read_bytes())}
    answer = client.post("/api/caption", files=files, data=fields)
    assert answer.json() == {"records": [expected | {"image": photo.name}]}


def test_the_command_draws_the_head_that_is_chosen(table: Path, photo: Path, run_main: Run) -> None:
    captioner = Captioner.from_pretrained(table, device="cpu", dtype="float32")
    caption = captioner.caption(photo)

    def drawings(head: int, **look: Any) -> dict[str, Image.Image]:
        return {
            "overlay": caption.overlay(head=head, labelled=True, **look),
            "sheet": caption.contact_sheet(head=head, **look),
            "animation": caption.animation(head=head, **look)[1],
        }

    first, second = (drawings(head, colors="viridis") for head in (1, 2))
    word = mark_doubtful(expected_sentence(rank_sentences(STYLES[0])[0]))["words"][0]
    assert word["doubtful"]
    files = {kind: photo.with_name(f"{kind}.png") for kind in second}
    files["animation"] = photo.with_name("animation.webp")
    options = ("--checkpoint", table, "--device", "cpu", "--dtype", "float32", "--head")
    drawn = [part for kind, file in files.items() for part in (f"--{kind}", file)]
    result = run_main("caption", photo, *options, 2, *drawn, "--colors", "viridis")
    assert result.returncode == 0, result.stderr
    shown = f"{files['overlay']} shows {word['word']!r}, word 1 of 3 (head 2 of 2), doubtful\n"
    assert result.stderr == shown
    for kind, file in files.items():
        with Image.open(file) as image:
            image.seek(kind == "animation")  # the frame of the first word
            apart, other = (mean_difference(image, heads[kind]) for heads in (second, first))
        assert apart < (2 if kind == "animation" else 1e-9) < other
    result = run_main("caption", photo, *options, 3, *drawn)
    assert result.returncode == 2 and "head 3: the model table has the heads 1 to" in result.stderr


def mean_difference(picture: Image.Image, other: Image.Image) -> float:
    """Return the mean absolute difference of two pictures of one size, 0 to 255."""
    assert picture.size == other.size
    return float(np.abs(np.asarray(picture.convert("RGB"), int) - np.asarray(other, int)).mean())
