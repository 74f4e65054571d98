"""Training through the front door: the command in a process, on scenes that it draws."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from captioner import CheckpointMismatchError, CheckpointNotFoundError, ConfigError
from captioner.checkpoint import load_checkpoint
from captioner.decoders.config import KINDS
from captioner.vocabulary import Vocabulary
from captioner_training.data.scenes import write_scenes
from captioner_training.initialization import build_model, load_origin
from captioner_training.recipe_file import load_recipe
from tests.launcher import start

Run = Callable[..., subprocess.CompletedProcess[str]]

RECIPE = """
name: miniature
encoder_weights: random
encoder: {name: mobilenet_v3_small, stride: 16}
transform: {mode: squash, size: 64}
decoder: {embedding_dim: 32, hidden_dim: 48, attention_dim: 16, value_dim: 32, dropout: 0.0}
data: {scenes: {train: 120, validation: 20}, minimum_count: 1, workers: 1}
stages:
  - {epochs: 3, batch_size: 20, learning_rate: 1.0e-2, warmup: 2}
  - {epochs: 1, batch_size: 20, fine_tune_from: 5, flip: true, crop: 0.1, warmup: 2}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "miniature.yaml"
    path.write_text(RECIPE)
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of the recipe."""
    place = tmp_path_factory.mktemp("finished")
    (place / "miniature.yaml").write_text(RECIPE)
    process = start("train", place / "miniature.yaml", "--out", place / "run")
    best, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert Path(best.strip()) == place / "run" / "best.safetensors"
    return place / "run"


def test_a_run_from_recipe_to_scored_checkpoint(
    run_captioner: Run, finished: Path, tmp_path: Path
) -> None:
    out, best = finished, finished / "best.safetensors"
    assert load_checkpoint(best).name == "miniature"
    assert json.loads((out / "recipe.json").read_text())["name"] == "miniature"

    records = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    epochs = [record for record in records if record["event"] == "epoch"]
    assert [record["stage"] for record in epochs] == [1, 1, 1, 2]
    assert [record["epoch"] for record in epochs] == [1, 2, 3, 1]
    assert records[-1]["event"] == "finished"
    losses = [record["cross_entropy"] for record in epochs]
    assert losses[2] < 0.8 * losses[0]  # six steps each; it learns the grammar of scenes at once
    highest = max(record["validation"]["CIDEr"] for record in epochs)
    assert load_checkpoint(best).metrics["CIDEr"] == pytest.approx(highest)

    result = run_captioner(
        "evaluate", "--captions", out / "scenes" / "captions_val.json",
        "--images", out / "scenes" / "val-*.tar", "--checkpoint", best,
        "--predictions", tmp_path / "predictions.jsonl", "--calibration", "--json",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    calibration = report["calibration"]
    captions = json.loads((out / "scenes" / "captions_val.json").read_text())["annotations"]
    words = sum(len(one["caption"].split()) for one in captions)
    assert calibration["tokens"] == words + len(captions)  # and the end of each
    # The same references, there in float32 weights (and bfloat16, where the CPU has it), here from
    # the float16 file.
    surprise = load_checkpoint(best).metrics["cross_entropy"]
    assert calibration["cross_entropy"] == pytest.approx(surprise, rel=0.02)
    assert 0 < min(record["validation"]["cross_entropy"] for record in epochs) <= surprise
    gap = abs(calibration["confidence"] - calibration["accuracy"])
    assert gap - 1e-3 <= calibration["error"] <= 100  # bins cannot cancel more than the whole does
    assert (report["images"], report["beam_size"]) == (20, 5)
    assert len((tmp_path / "predictions.jsonl").read_text().splitlines()) == 20


def test_same_seed_same_model(
    run_captioner: Run, recipe: Path, finished: Path, tmp_path: Path
) -> None:
    result = run_captioner("train", recipe, "--out", tmp_path / "again", timeout=300)
    assert result.returncode == 0, result.stderr
    losses = []
    for out in (finished, tmp_path / "again"):
        records = (out / "log.jsonl").read_text().splitlines()
        losses.append([json.loads(r)["loss"] for r in records if '"epoch"' in r])
    assert len(losses[0]) == 28 and losses[0] == losses[1]  # of 24 steps and 4 epochs


def test_errors_come_before_work(run_captioner: Run, recipe: Path, tmp_path: Path) -> None:
    result = run_captioner("train", "flickr8k", "--data.root", tmp_path, "--out", tmp_path / "o")
    assert (result.returncode, result.stdout) == (1, "")
    assert "is not a prepared data set" in result.stderr
    (tmp_path / "file").write_text("")
    result = run_captioner("train", recipe, "--out", tmp_path / "file")
    assert result.returncode == 1 and "cannot be written" in result.stderr
    result = run_captioner("train", recipe, "--out", tmp_path / "o", "--encoder_weights", "no.st")
    assert result.returncode == 1 and "no file no.st" in result.stderr
    assert "Traceback" not in result.stderr


def test_weights_follow_their_words(recipe: Path, tiny_file: Path, tmp_path: Path) -> None:
    """Going on from a checkpoint with another vocabulary keeps what it knows of shared words."""
    fields = {
        "weights": str(tiny_file), "encoder.stride": "32", "decoder.embedding_dim": "16",
        "decoder.hidden_dim": "24", "decoder.attention_dim": "8", "decoder.value_dim": "null",
    }  # fmt: skip
    vocabulary = Vocabulary(["zebra", "dog", "a"])
    loaded = load_recipe(str(recipe), fields)
    source = load_checkpoint(tiny_file)
    model = build_model(loaded, vocabulary, origin=load_origin(loaded))
    theirs = source.model.decoder.embedding.weight[source.vocabulary.encode(["dog", "a"])]
    ours = model.decoder.embedding.weight[vocabulary.encode(["dog", "a"])]
    assert torch.equal(theirs, ours)
    other = {**fields, "decoder.hidden_dim": "25"}
    with pytest.raises(CheckpointMismatchError, match=r"does not have the recipe's architecture"):
        build_model(load_recipe(str(recipe), other), vocabulary, origin=source)
    missing = {**fields, "weights": str(tmp_path / "missing.safetensors")}
    with pytest.raises(CheckpointNotFoundError, match="missing"):
        load_origin(load_recipe(str(recipe), missing))


def test_a_share_of_an_encoder_is_taken_over(
    run_captioner: Run, recipe: Path, tiny_file: Path, tmp_path: Path
) -> None:
    """The rest of it is the pretrained one's, whole numbers and decoder apart."""
    fields = {
        "weights": str(tiny_file), "encoder_weights": "torchvision", "encoder_share": "0.4",
        "encoder.stride": "32", "decoder.embedding_dim": "16", "decoder.hidden_dim": "24",
        "decoder.attention_dim": "8", "decoder.value_dim": "null",
    }  # fmt: skip
    source = load_checkpoint(tiny_file)
    pretrained = tmp_path / "stages.safetensors"
    stages = {
        name.removeprefix("encoder.stages."): tensor + 1 if tensor.is_floating_point() else tensor
        for name, tensor in source.model.state_dict().items()
        if name.startswith("encoder.stages.")
    }
    save_file(stages, pretrained)
    loaded = load_recipe(str(recipe), {**fields, "encoder_weights": str(pretrained)})
    mixed = build_model(loaded, source.vocabulary, origin=source, encoder_share=0.4).state_dict()
    for name, tensor in source.model.state_dict().items():
        moved = 0.6 if name.startswith("encoder.") and tensor.is_floating_point() else 0.0
        assert torch.allclose(mixed[name].float(), tensor.float() + moved, atol=1e-5), name
    for wrong, told in (
        ({"encoder_share": "0.4"}, "encoder_share has no effect without weights"),
        ({**fields, "encoder_weights": "random"}, "name another pretrained"),
        ({**fields, "encoder_weights": str(tiny_file)}, "name another pretrained"),
        ({**fields, "encoder_share": "1.5"}, "encoder_share"),
        ({**fields, "encoder_weights": "no.st"}, "no file no.st"),
        ({**fields, "encoder_weights": "bundled"}, "(downloads ImageNet weights), or a file"),
    ):
        options = [part for name, value in wrong.items() for part in (f"--{name}", value)]
        result = run_captioner("train", recipe, "--out", tmp_path / "o", *options)
        assert result.returncode in (1, 2) and told in result.stderr, result.stderr


class Bare(torch.nn.Module):
    """What a decoder of one's own may be: no matrix embeds and scores its words."""

    def __init__(self, _: object, *, grid_dim: int, vocabulary_size: int) -> None:
        super().__init__()
        self.words = torch.nn.Parameter(torch.randn(vocabulary_size, grid_dim))


def test_weights_of_a_decoder_without_an_embedding_are_taken_over(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KINDS, "lstm", f"{__name__}:Bare")
    loaded, vocabulary = load_recipe(str(recipe)), Vocabulary(["dog"])
    origin: Any = SimpleNamespace(model=build_model(loaded, vocabulary), vocabulary=vocabulary)
    model = build_model(loaded, vocabulary, origin=origin)
    assert torch.equal(model.decoder.words, origin.model.decoder.words)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
def test_a_decoder_that_memory_does_not_hold_is_told_of(recipe: Path) -> None:
    large = load_recipe(str(recipe), {"decoder.hidden_dim": str(2**15)})  # 17 GB
    before = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + 2**32, before[1]))
    try:
        with pytest.raises(ConfigError, match="has not the memory for: lower decoder"):
            build_model(large, Vocabulary(["dog"]))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, float]:
    """What the smoke recipe ends with, in percent of unseen scenes."""
    process = start("train", "smoke", "--out", tmp_path_factory.mktemp("smoke"))
    best, errors = process.communicate(timeout=900)
    assert process.returncode == 0, errors
    return load_checkpoint(best.strip()).metrics


@pytest.mark.slow
def test_smoke_learns_to_caption_scenes(smoke: Mapping[str, float]) -> None:
    assert smoke["exact"] >= 95


@pytest.mark.slow
def test_smoke_looks_at_the_right_shape(smoke: Mapping[str, float]) -> None:
    assert smoke["pointing"] >= 90


@pytest.mark.slow
@pytest.mark.skipif("CAPTIONER_DATA" not in os.environ, reason="CAPTIONER_DATA names no data sets")
def test_bundled_checkpoint_reaches_its_scores(run_captioner: Run) -> None:
    data = Path(os.environ["CAPTIONER_DATA"])
    result = run_captioner(
        "evaluate", "--captions", data / "flickr8k" / "captions_val.json",
        "--images", data / "flickr8k" / "val*.tar", "--json", timeout=900,
    )  # fmt: skip
    scores = json.loads(result.stdout)["nltk"]
    assert scores["BLEU-1"] >= 66 and scores["BLEU-4"] >= 23
    assert scores["different"] >= 600 and scores["attention_distance"] >= 0.15


@pytest.mark.parametrize(
    "name",
    [
        "coco-scst",
        pytest.param("coco", marks=pytest.mark.slow),
        pytest.param("coco-fast", marks=pytest.mark.slow),
        pytest.param("flickr8k", marks=pytest.mark.slow),
    ],
)
def test_shipped_recipes_run_dry(run_captioner: Run, tmp_path: Path, name: str) -> None:
    """A few steps of every stage, on small pictures; torchvision's weights are not downloaded."""
    write_scenes(tmp_path / "data", splits={"train": 16, "val": 4})
    stages = load_recipe(name).stages
    fields = [
        field
        for number, _ in enumerate(stages, start=1)
        for field in (f"--stages.{number}.epochs", 1, f"--stages.{number}.batch_size", 8)
    ]
    weights = ["--encoder-weights", "random"] if name == "coco" else []
    out = tmp_path / "run"
    result = run_captioner(
        "train", name, "--data.root", tmp_path / "data", "--out", out, "--transform.size", 64,
        "--data.minimum_count", 1, "--data.workers", 1, "--log-every", 1, *weights, *fields,
        "--max-steps", 2, timeout=300,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    records = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    steps = [record for record in records if record["event"] == "step"]
    numbers = [number for number, _ in enumerate(stages, start=1) for _ in "ab"]
    assert [record["stage"] for record in steps] == numbers
    assert all("reward" in record for record in steps) == (name == "coco-scst")


def test_early_stopping_ends_a_stage(run_captioner: Run, recipe: Path, tmp_path: Path) -> None:
    """At a rate of zero nothing gets better, so that patience runs out at once."""
    result = run_captioner(
        "train", recipe, "--out", tmp_path / "run", "--stages.1.learning_rate", 0,
        "--stages.1.epochs", 9, "--stages.1.patience", 1, "--stages.2.learning_rate", 0,
        "--stages.2.encoder_learning_rate", 0, "--stages.2.epochs", 2, "--stages.2.patience", 1,
        "--tensorboard", "true", timeout=300,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    # Of the second stage, whose second epoch is its last anyway, it is not said.
    assert result.stderr.count("no better score for 1 epoch: the stage ends here") == 1
    lines = (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    epochs = [record for record in map(json.loads, lines) if record["event"] == "epoch"]
    assert [(record["stage"], record["epoch"]) for record in epochs] == [
        (1, 1), (1, 2), (2, 1), (2, 2)
    ]  # fmt: skip
    from tensorboard.backend.event_processing import event_accumulator

    board = event_accumulator.EventAccumulator(
        str(tmp_path / "run" / "tensorboard"), {"images": 0, "scalars": 0}
    )
    board.Reload()
    tags = board.Tags()
    assert {"photos/0", "photos/5"} <= set(tags["images"])
    curve = board.Scalars("validation/CIDEr")
    assert [point.step for point in curve] == [6, 12, 18, 24]
    scores = [record["validation"]["CIDEr"] for record in epochs]
    assert [point.value for point in curve] == pytest.approx(scores, rel=1e-5)
    sheet = board.Images("photos/0")[0]
    assert sheet.width > 200 and sheet.height > 100
