"""A decoder of one head and one of several through every front end: caption, batch and the API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageChops, ImageStat

from captioner import Captioner
from captioner.checkpoint import Checkpoint
from captioner.decoders.config import DecoderConfig
from captioner.model import CaptionModel, ModelConfig
from tests.conftest import make_tiny
from tests.launcher import Run
from tests.serving.server.conftest import Server, serve

VARIANTS: dict[str, dict[str, Any]] = {
    "lstm-none": {"score": "none"},
    "transformer-additive-4": {"kind": "transformer", "score": "additive", "heads": 4},
}


def made(**variant: Any) -> Checkpoint:
    """The tiny model with another decoder; it speaks in sentences of three words and more."""
    tiny = make_tiny()
    sizes = {"embedding_dim": 16, "hidden_dim": 24, "attention_dim": 8, "value_dim": 24}
    sizes |= {"positions": "learned", "scaled_positions": False}
    config = ModelConfig(
        encoder=tiny.model.config.encoder, decoder=DecoderConfig(**{**sizes, **variant})
    )
    model = CaptionModel(
        config, vocabulary_size=len(tiny.vocabulary), encoder=tiny.model.encoder
    ).eval()
    torch.nn.init.normal_(model.decoder.embedding.weight)
    # Cells and heads that differ: the tiny encoder sees the same everywhere.
    for name, parameter in model.decoder.named_parameters():
        parameter.data.mul_(8 if "positions" in name else 3 if "score" in name else 1)
    generation = replace(tiny.generation, minimum_length=3, maximum_length=6)
    return replace(tiny, model=model, generation=generation, name="variant")


@pytest.fixture(scope="module", params=VARIANTS)
def variant(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, int]:
    """A checkpoint file, and how many heads it has."""
    path = tmp_path_factory.mktemp("variants") / f"{request.param}.safetensors"
    checkpoint = made(**VARIANTS[request.param])
    checkpoint.save(path)
    return path, checkpoint.model.config.decoder.heads


@pytest.fixture(scope="module")
def running(
    variant: tuple[Path, int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    with serve(folder, "--checkpoint", variant[0]) as server:
        yield server


def mean_of(heads: list[list[float]]) -> list[float]:
    return [sum(weights) / len(heads) for weights in zip(*heads, strict=True)]


def test_command_and_batch_draw_a_head_and_check_its_words(
    run_main: Run, variant: tuple[Path, int], photo: Path, tmp_path: Path
) -> None:
    path, heads = variant
    caption = Captioner.from_pretrained(path).caption(photo)
    pictures = {
        "overlay": caption.overlay(head=heads, labelled=True),
        "sheet": caption.contact_sheet(head=heads),
        "animation": caption.animation(head=heads)[1],
    }
    means = caption.overlay(labelled=True), caption.contact_sheet(), caption.animation()[1]
    for of_head, of_all in zip(pictures.values(), means, strict=True):
        assert (of_head.tobytes() != of_all.tobytes()) == (heads > 1)

    record = ("--attention", "--check-attention", "--checkpoint", path, "--head", heads)
    drawn = [part for kind in pictures for part in (f"--{kind}", tmp_path / f"{kind}.webp")]
    told = run_main("caption", photo, "--json", *record, *drawn)
    assert told.returncode == 0, told.stderr
    for word in json.loads(told.stdout)["words"]:
        assert isinstance(word["effect"], float)
        attention = word["attention"]
        assert ("heads" in attention) == (heads > 1)
        if heads > 1:
            assert len(attention["heads"]) == heads
            assert attention["weights"] == pytest.approx(mean_of(attention["heads"]), abs=1e-5)
    for kind, picture in pictures.items():
        with Image.open(tmp_path / f"{kind}.webp") as image:
            image.seek(min(1, getattr(image, "n_frames", 1) - 1))
            apart = ImageStat.Stat(ImageChops.difference(image.convert("RGB"), picture)).mean
            assert max(apart) < 4, kind  # compressed

    for kind in ("sheet", "overlay"):
        output, maps = tmp_path / f"{kind}.jsonl", tmp_path / kind
        batch = ("batch", photo, "--output", output, *record, "--maps", kind, "--maps-to", maps)
        result = run_main(*batch)
        assert result.returncode == 0, result.stderr
        assert json.loads(output.read_text()) == json.loads(told.stdout)
        with Image.open(next(maps.rglob("*.png"))) as image:
            assert image.convert("RGB").tobytes() == pictures[kind].tobytes()
    other = run_main(*(part for part in batch if part != "--check-attention"))
    assert other.returncode == 2 and "--check-attention was given and is not given" in other.stderr
    wrong = run_main("caption", photo, *record[2:-1], heads + 1, "--sheet", tmp_path / "no.png")
    has = "one head" if heads == 1 else f"the heads 1 to {heads}"
    assert wrong.returncode == 2
    assert wrong.stderr == f"captioner: --head {heads + 1}: the model variant has {has}\n"


def test_the_api_captions_and_then_draws_and_checks_its_record(
    running: Server, variant: tuple[Path, int], photo: Path
) -> None:
    """A model with a minimum length is healthy, too."""
    heads, image = variant[1], {"image": ("a.jpg", photo.read_bytes())}
    with running.client() as client:
        assert client.get("/api/health").status_code == 200

        def caption(**fields: str) -> dict[str, Any]:
            answer = client.post("/api/caption", files=image, data=fields)
            (record,) = answer.raise_for_status().json()["records"]
            return dict(record)

        checked = caption(attention="true", check_attention="true", captions="2")
        for words in (checked["words"], checked["alternatives"][0]["words"]):
            assert {"effect", "attention"} <= words[0].keys()
            assert ("heads" in words[0]["attention"]) == (heads > 1)
        assert "effect" not in caption()["words"][0]
        record = caption(attention="true")
        posted = {"record": json.dumps(record)}
        again = client.post("/api/effect", files=image, data=posted).json()["records"][0]
        for word, expected in zip(again["words"], checked["words"], strict=True):
            assert word["word"] == expected["word"]
            assert word["effect"] == pytest.approx(expected["effect"], abs=0.01)
        for head, status in ((heads, 200), (heads + 1, 422)):
            for picture in ("overlay", "sheet", "animation"):
                fields = posted | {"head": str(head)}
                answer = client.post(f"/api/{picture}", files=image, data=fields)
                assert answer.status_code == status
