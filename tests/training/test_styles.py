"""Training on two data sets that describe the same photos in words of their own."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from captioner.checkpoint import load_checkpoint
from captioner.vision.transform import Transform
from captioner_training.data.batches import StageBatches
from captioner_training.data.dataset import ImageDataset
from captioner_training.data.reading import read_corpus
from captioner_training.data.scenes import write_scenes
from captioner_training.distributed import Processes
from captioner_training.recipe_file import load_recipe
from tests import launcher

Run = Callable[..., subprocess.CompletedProcess[str]]

RECIPE = """
name: miniature
encoder_weights: random
encoder: {name: mobilenet_v3_small, stride: 16}
transform: {mode: squash, size: 64}
decoder: {embedding_dim: 32, hidden_dim: 48, attention_dim: 16, value_dim: 32, dropout: 0.0}
data: {train: [plain, loud], validation: [plain, loud], styles: true, minimum_count: 1, workers: 0}
generation: {beam_size: 2}
label_smoothing: 0.0
stages:
  - {epochs: 15, batch_size: 20, learning_rate: 2.0e-2, warmup: 2, scheduled_sampling: 0.2}
  - {epochs: 1, batch_size: 20, learning_rate: 1.0e-3, warmup: 2, self_critical: {samples: 3}}
"""


def louder(path: Path) -> None:
    """Have the captions of a data set begin with WOW."""
    data = json.loads(path.read_text())
    for one in data["annotations"]:
        one["caption"] = f"wow {one['caption']}"
    path.write_text(json.dumps(data))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    for name in ("plain", "loud"):
        write_scenes(root / name, splits={"train": 60, "val": 10}, seed=1)
    for split in ("train", "val"):
        louder(root / "loud" / f"captions_{split}.json")
    return root


@pytest.fixture(scope="module")
def trained(data: Path) -> Path:
    recipe = data / "two.yaml"
    recipe.write_text(RECIPE)
    result = launcher.run("train", recipe, "--data.root", data, "--out", data / "run")
    assert result.returncode == 0, result.stderr
    assert "captions are learned as plain, loud; the model has the styles plain" in result.stderr
    return data / "run" / "last.safetensors"


def captions(
    run_captioner: Run, photos: object, folder: Path, *options: object
) -> list[dict[str, Any]]:
    output = folder / f"{'-'.join(map(str, options[2:])) or 'usual'}.jsonl"
    result = run_captioner("batch", photos, "--output", output, *options)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in output.read_text().splitlines()]


def test_one_model_says_it_in_either_way(
    run_captioner: Run, trained: Path, data: Path, tmp_path: Path
) -> None:
    assert load_checkpoint(trained).vocabulary.styles == ("plain", "loud")
    photos, told = data / "plain" / "val-00.tar", {}
    for style in ("plain", "loud"):
        told[style] = captions(
            run_captioner, photos, tmp_path, "--checkpoint", trained, "--style", style
        )
        assert {one["style"] for one in told[style]} == {style}
    assert not any("wow" in one["caption"] for one in told["plain"])
    assert all(one["caption"].startswith("wow ") for one in told["loud"])
    usual = captions(run_captioner, photos, tmp_path, "--checkpoint", trained)
    assert [one["caption"] for one in usual] == [one["caption"] for one in told["plain"]]
    options = ("--checkpoint", trained, "--style", "quiet", "--output", tmp_path / "new.jsonl")
    refused = run_captioner("batch", photos, *options)
    assert refused.returncode == 2 and "the model has 'plain', 'loud'" in refused.stderr
    assert not (tmp_path / "new.jsonl").exists()


def test_each_split_is_scored_in_its_own_style(
    run_captioner: Run, trained: Path, data: Path, tmp_path: Path
) -> None:
    def report(name: str, style: str) -> dict[str, Any]:
        options = ("--checkpoint", trained, "--style", style, "--calibration", "--deletion")
        result = run_captioner("evaluate", data / name, *options, "--json")
        assert result.returncode == 0, result.stderr
        told: dict[str, Any] = json.loads(result.stdout)
        assert told["style"] == style
        return told

    for name, other in (("plain", "loud"), ("loud", "plain")):
        own, wrong = report(name, name), report(name, other)
        nats = [one["calibration"]["cross_entropy"] for one in (own, wrong)]
        assert nats[0] + 0.3 < nats[1]
        scores = [one["nltk"]["BLEU-1"] for one in (own, wrong)]
        assert scores[0] > scores[1], name
    result = run_captioner("evaluate", data / "plain", "--style", "quiet", "--checkpoint", trained)
    assert result.returncode == 2 and "the model has 'plain', 'loud'" in result.stderr


def test_a_run_validates_each_image_in_its_own_style(
    run_captioner: Run, trained: Path, data: Path
) -> None:
    """And in the checkpoint's own where the model does not have that of the validation set."""
    metrics = load_checkpoint(trained).metrics
    nats = {
        (name, style): evaluated(run_captioner, trained, data / name, style)
        for name in ("plain", "loud")
        for style in ("plain", "loud")
    }
    tokens = {name: told[1] for (name, _), told in nats.items()}
    right = [nats[name, name][0] * tokens[name] for name in tokens]
    assert metrics["cross_entropy"] == pytest.approx(
        sum(right) / sum(tokens.values()), abs=2e-2
    )  # in bfloat16 there, where the CPU has it
    # What it says of ten scenes in one way and ten in the other: "wow" is a word more in half.
    lengths = [nats[name, name][2] for name in tokens]
    assert metrics["words"] == pytest.approx(sum(lengths) / 2, abs=0.2)
    assert lengths[1] > lengths[0] + 0.6
    recipe = data / "other.yaml"
    still = RECIPE.replace("validation: [plain, loud]", "validation: [mine]")
    still = (
        still.replace("2.0e-2", "0.0").replace("1.0e-3", "0.0").replace("epochs: 15", "epochs: 1")
    )
    recipe.write_text(still.replace("{beam_size: 2}", "{beam_size: 2, style: loud}"))
    shutil.copytree(data / "loud", data / "mine", dirs_exist_ok=True)
    out = data / "validated"
    result = run_captioner("train", recipe, "--data.root", data, "--weights", trained, "--out", out)
    assert result.returncode == 0, result.stderr
    found = load_checkpoint(out / "last.safetensors").metrics["cross_entropy"]
    assert found == pytest.approx(nats["loud", "loud"][0], abs=2e-2)


def evaluated(
    run_captioner: Run, checkpoint: Path, folder: Path, style: str
) -> tuple[float, int, float]:
    """Nats a token of people's captions, how many tokens, and the model's words a caption."""
    options = ("--checkpoint", checkpoint, "--style", style, "--calibration", "--json")
    result = run_captioner("evaluate", folder, *options)
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    found = told["calibration"]
    return found["cross_entropy"], found["tokens"], told["captions"]["words"]["mean"]


def test_a_run_goes_on_from_it_with_a_style_more(
    run_captioner: Run, trained: Path, data: Path, tmp_path: Path
) -> None:
    """A style that is new begins as the usual one of the model did."""
    recipe = data / "three.yaml"
    lines = RECIPE.replace("[plain, loud]", "[third]").replace("epochs: 15", "epochs: 1")
    recipe.write_text(lines.replace("2.0e-2", "0.0").replace("1.0e-3", "0.0"))
    if not (data / "third").exists():
        (data / "third").symlink_to(data / "other")
        write_scenes(data / "other", splits={"train": 20, "val": 5}, seed=2)
    result = run_captioner(
        "train", recipe, "--data.root", data, "--weights", trained, "--out", tmp_path / "run"
    )
    assert result.returncode == 0, result.stderr
    made = load_checkpoint(tmp_path / "run" / "last.safetensors")
    assert made.vocabulary.styles == ("plain", "loud", "third")
    rows = made.model.decoder.embedding.weight
    start = made.vocabulary.start
    assert (rows[start("third")] == rows[start("plain")]).all()
    assert not (rows[start("third")] == rows[start("loud")]).all()


def test_a_run_without_styles_goes_on_from_the_usual_one(
    run_captioner: Run, trained: Path, data: Path, tmp_path: Path
) -> None:
    """Nobody's captions are not in the style of the first data set of the model before."""
    recipe = data / "one.yaml"
    lines = RECIPE.replace("[plain, loud]", "[plain]").replace("styles: true", "styles: false")
    lines = lines.replace("epochs: 15", "epochs: 1").replace("2.0e-2", "0.0")
    recipe.write_text(lines.replace("1.0e-3", "0.0"))
    options = ("--data.root", data, "--weights", trained, "--out", tmp_path / "run")
    result = run_captioner("train", recipe, *options)
    assert result.returncode == 0, result.stderr
    assert "its styles, plain, loud, are given up: data.styles would keep" in result.stderr
    made, origin = load_checkpoint(tmp_path / "run" / "last.safetensors"), load_checkpoint(trained)
    assert made.vocabulary.styles == ()
    rows, before = (one.model.decoder.embedding.weight for one in (made, origin))
    assert (rows[made.vocabulary.start()] == before[origin.vocabulary.start()]).all()
    result = run_captioner(
        "train", recipe, *options[:-1], tmp_path / "2", "--generation.style", "loud"
    )
    assert result.returncode == 2 and "the model has one style of captions only" in result.stderr


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{scenes: {train: 9, validation: 3}, styles: true}", "data.styles has no effect on scen"),
        ("{train: [{captions: a, images: b}], validation: [v], styles: true}", "needs the style"),
        ("{train: [a/set, b/set], validation: [v], styles: true}", "two have the same name"),
        (
            "{train: [{captions: a, images: b, style: c}], validation: [v]}",
            "has no effect without data.styles",
        ),
        ("{train: [a], validation: [v], any_style: 0.5}", "any_style has no effect without"),
        (
            "{root: /x/any, train: [.], validation: [v], styles: true, any_style: 0.5}",
            "a training set has that name",
        ),
        ("{train: [a], validation: [v], styles: true, any_style: 1}", "should be less than 1"),
    ],
)
def test_styles_that_cannot_be(run_captioner: Run, tmp_path: Path, line: str, told: str) -> None:
    (tmp_path / "odd.yaml").write_text(f"name: odd\ndata: {line}\nstages: [{{epochs: 1}}]\n")
    result = run_captioner("train", tmp_path / "odd.yaml", "--out", tmp_path / "run")
    assert result.returncode == 2 and told in result.stderr


def test_a_dry_run_has_photos_of_every_set(data: Path, tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text(RECIPE)
    recipe = load_recipe(str(tmp_path / "two.yaml"), {"data.root": str(data), "max_steps": "1"})
    corpus = read_corpus(recipe, out=tmp_path)
    assert [image.style for image in corpus.train] == ["plain", "loud"] * 10
    assert {image.style for image in corpus.validation} == {"plain", "loud"}


def test_a_style_of_no_set_is_learned_from_all(
    run_captioner: Run, data: Path, tmp_path: Path
) -> None:
    """Half of what it learns from begins with WOW, and the other half is the same without."""
    recipe = tmp_path / "any.yaml"
    recipe.write_text(RECIPE.replace("styles: true", "styles: true, any_style: 0.5"))
    result = run_captioner("train", recipe, "--data.root", data, "--out", tmp_path / "run")
    assert result.returncode == 0, result.stderr
    assert "captions are learned as any, plain, loud" in result.stderr
    last = tmp_path / "run" / "last.safetensors"
    assert load_checkpoint(last).vocabulary.styles == ("any", "plain", "loud")
    options = ("--checkpoint", last, "--calibration", "--json")
    nats: dict[str, dict[str, float]] = {}
    for style in ("any", "plain", "loud"):
        for name in ("plain", "loud"):
            result = run_captioner("evaluate", data / name, *options, "--style", style)
            assert result.returncode == 0, result.stderr
            told = json.loads(result.stdout)["calibration"]["cross_entropy"]
            nats.setdefault(style, {})[name] = told
    for name, other in (("plain", "loud"), ("loud", "plain")):
        assert nats[name][name] < nats["any"][name] < nats[other][name]
    usual = run_captioner("evaluate", data / "loud", *options)
    assert json.loads(usual.stdout)["style"] == "any"


def test_any_style_is_drawn_anew_in_every_epoch(data: Path, tmp_path: Path) -> None:
    (tmp_path / "any.yaml").write_text(
        RECIPE.replace("styles: true", "styles: true, any_style: 0.25")
    )
    recipe = load_recipe(str(tmp_path / "any.yaml"), {"data.root": str(data)})
    corpus = read_corpus(recipe, out=tmp_path)
    batches = StageBatches(
        recipe,
        0,
        corpus=corpus,
        dataset=ImageDataset(corpus.train, Transform(recipe.transform)),
        processes=Processes(device=torch.device("cpu")),
    )
    begun = [
        {
            position: start
            for parts in batches.epoch(epoch, skip=0, most=100)
            for part in parts
            for position, start in zip(
                part.positions.tolist(), part.tokens[:, 0, 0].tolist(), strict=True
            )
        }
        for epoch in (0, 1, 0)
    ]
    usual = corpus.vocabulary.start("any")
    assert begun[0] == begun[2] != begun[1]
    for epoch in begun:
        assert len(epoch) == 120
        assert 15 <= sum(start == usual for start in epoch.values()) <= 45  # of 120: 30 +- 4.7
        for position, start in epoch.items():
            assert start in (usual, corpus.train_starts[position])
    assert {image.style for image in corpus.validation} == {""}
