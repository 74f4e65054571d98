"""A caption without words is an error of its photo."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import torch

from captioner import Captioner
from captioner.checkpoint import Checkpoint
from captioner.errors import NoWordsError
from captioner.vocabulary import END
from tests.conftest import ROOT
from tests.launcher import Run
from tests.serving.server.running import serving

PHOTO = sorted((ROOT / "assets" / "samples").glob("*.jpg"))[0]


@pytest.fixture
def silent(tiny_checkpoint: Checkpoint, tmp_path: Path) -> Path:
    """A checkpoint of a model that ends every caption before its first word."""
    with torch.no_grad():
        tiny_checkpoint.model.decoder.output_bias[END] = 1000.0
    generation = replace(tiny_checkpoint.generation, minimum_length=0)
    path = tmp_path / "silent.safetensors"
    replace(tiny_checkpoint, generation=generation).save(path)
    return path


def test_a_caption_without_words_is_an_error(silent: Path, run_main: Run, tmp_path: Path) -> None:
    captioner = Captioner.from_pretrained(silent, device="cpu")
    with pytest.raises(NoWordsError, match="made no words for"):
        captioner.caption(PHOTO)
    (left,) = captioner.caption([PHOTO], errors="return")
    assert isinstance(left, NoWordsError)
    result = run_main("caption", PHOTO, "--checkpoint", silent)
    assert (result.returncode, result.stdout) == (1, "") and "made no words" in result.stderr
    output = tmp_path / "c.jsonl"
    result = run_main("batch", PHOTO, "--checkpoint", silent, "--output", output)
    assert result.returncode == 1 and "1 failed" in result.stderr
    assert json.loads(Path(f"{output}.errors.jsonl").read_text())["error"]["type"] == "no-words"
    with serving(captioner) as url, httpx.Client(base_url=url, timeout=300) as client:
        answer = client.post("/api/caption", files={"image": PHOTO.read_bytes()})
    assert (answer.status_code, answer.json()["type"]) == (422, "no-words")
