"""`captioner evaluate` on a Hugging Face model, beside a checkpoint of ours."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from captioner import Captioner
from tests.captioner.hugging_face import save_tiny
from tests.launcher import Run


@pytest.fixture
def split(tmp_path: Path) -> list[str]:
    """Four photos with two captions each, as options of the command."""
    (tmp_path / "photos").mkdir()
    chance = np.random.default_rng(0)
    images, annotations = [], []
    for number in range(4):
        name = f"{number}.png"
        pixels = chance.integers(0, 256, (60, 80, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / name)
        images.append({"id": number, "file_name": name})
        annotations += [
            {"id": 2 * number + at, "image_id": number, "caption": text}
            for at, text in enumerate(("a dog runs on the grass", "two red balls"))
        ]
    captions = tmp_path / "captions.json"
    captions.write_text(json.dumps({"images": images, "annotations": annotations}))
    return ["--captions", str(captions), "--images", str(tmp_path / "photos")]


def test_a_hugging_face_model_is_evaluated_beside_ours(
    split: list[str], tiny_file: Path, tmp_path: Path, run_main: Run
) -> None:
    folder = save_tiny("git", tmp_path / "git")
    common = [*split, "--dtype", "float32", "--json"]
    ours = run_main(
        "evaluate", *common, "--checkpoint", tiny_file, "--report", tmp_path / "ours", "--deletion"
    )
    assert ours.returncode == 0, ours.stderr
    done = run_main(
        "evaluate", *common, "--checkpoint", f"hf:{folder}", "--report", tmp_path / "theirs",
        "--deletion", "--compare", tmp_path / "ours" / "report.json",
        "--predictions", tmp_path / "said.json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["checkpoint"]["name"] == "git"
    assert "CIDEr" in report["nltk"]
    captioner = Captioner.from_pretrained(f"hf:{folder}", dtype="float32")
    photos = [tmp_path / "photos" / f"{number}.png" for number in range(4)]
    captions = captioner.caption(photos, check_attention=True)
    said = json.loads((tmp_path / "said.json").read_text())
    assert [one["caption"] for one in said] == [caption.text for caption in captions]
    from captioner_training.evaluation.content import FUNCTION_WORDS

    effects = [
        word.effect
        for caption in captions
        for word in caption.words
        if word.text not in FUNCTION_WORDS and word.effect is not None
    ]
    content = report["deletion"]["content"]
    assert content["words"] == len(effects)
    assert content["effect"] == pytest.approx(sum(effects) / len(effects), abs=1e-3)
    assert (tmp_path / "theirs" / "report.html").is_file()


def test_calibration_needs_a_decoder_of_ours(
    split: list[str], tmp_path: Path, run_main: Run
) -> None:
    checkpoint = f"hf:{save_tiny('git', tmp_path / 'git')}"
    done = run_main("evaluate", *split, "--checkpoint", checkpoint, "--calibration")
    assert done.returncode != 0 and "--calibration scores references with our own" in done.stderr
