"""Training on two data sets that describe the same photos in words of their own."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from captioner.checkpoint import load_checkpoint
from captioner.cli import main
from captioner.errors import ConfigError
from captioner.vocabulary import Vocabulary
from captioner_training.data.reading import read_corpus
from captioner_training.data.scenes import write_scenes
from captioner_training.distributed import Processes
from captioner_training.recipe import load_recipe
from captioner_training.run_folder import RunFolder
from captioner_training.train import Run
from tests.launcher import Run as Command
from tests.training.runs import MODEL, train_here

pytestmark = pytest.mark.slow

RECIPE = (
    MODEL
    + """
name: miniature
data: {train: [plain, loud], validation: [plain, loud], styles: true, minimum_count: 1, workers: 0}
generation: {beam_size: 2, maximum_length: 12}
label_smoothing: 0.0
stages:
  - {epochs: 3, batch_size: 8, learning_rate: 3.0e-2, warmup: 2}
  - {epochs: 1, batch_size: 20, learning_rate: 1.0e-3, warmup: 2, self_critical: {samples: 3}}
"""
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    (root / "two.yaml").write_text(RECIPE)
    for name in ("plain", "loud"):
        write_scenes(root / name, splits={"train": 40, "val": 10}, seed=1)
    for path in (root / "loud").glob("captions_*.json"):
        path.write_text(path.read_text().replace('"caption":"', '"caption":"wow '))
    return root


@pytest.fixture(scope="module")
def trained(data: Path) -> Path:
    train_here(data / "two.yaml", data / "run", data__root=data)
    return data / "run" / "last.safetensors"


@pytest.fixture(scope="module")
def reports(trained: Path, data: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The reports of `captioner evaluate` for each data set in each style."""

    def evaluated(name: str, style: str) -> dict[str, Any]:
        options = ("--checkpoint", trained, "--style", style, "--calibration", "--json")
        with contextlib.redirect_stdout(io.StringIO()) as said:
            assert main(["evaluate", *map(str, (data / name, *options))]) == 0
        found: dict[str, Any] = json.loads(said.getvalue())
        return found

    names = ("plain", "loud")
    return {(name, style): evaluated(name, style) for name in names for style in names}


def test_one_model_captions_in_two_styles(
    run_main: Command, trained: Path, data: Path, tmp_path: Path
) -> None:
    assert load_checkpoint(trained).vocabulary.styles == ("plain", "loud")
    photos, said = data / "plain" / "val-00.tar", {}
    for name, options in ("plain", ["--style", "plain"]), ("loud", ["--style", "loud"]), ("", []):
        output = tmp_path / f"of {name}.jsonl"
        done = run_main("batch", photos, "--output", output, "--checkpoint", trained, *options)
        assert done.returncode == 0, done.stderr
        written = [json.loads(line) for line in output.read_text().splitlines()]
        said[name] = [one["caption"] for one in written]
        assert not name or {one["style"] for one in written} == {name}
    assert said["plain"] == said[""] and not any("wow" in text for text in said["plain"])
    assert all(text.startswith("wow ") for text in said["loud"])
    options = ("--checkpoint", trained, "--style", "quiet")
    for refused in (
        run_main("batch", photos, *options, "--output", tmp_path / "new.jsonl"),
        run_main("evaluate", data / "plain", *options),
    ):
        assert refused.returncode == 2 and "the model has 'plain', 'loud'" in refused.stderr
    assert not (tmp_path / "new.jsonl").exists()


def test_each_split_is_scored_in_its_own_style(
    reports: dict[tuple[str, str], dict[str, Any]],
) -> None:
    for name, other in (("plain", "loud"), ("loud", "plain")):
        own, wrong = reports[name, name], reports[name, other]
        assert (own["style"], wrong["style"]) == (name, other)
        nats = [one["calibration"]["cross_entropy"] for one in (own, wrong)]
        assert nats[0] + 0.3 < nats[1]
        scores = [one["nltk"]["BLEU-1"] for one in (own, wrong)]
        assert scores[0] > scores[1], name


def test_a_run_validates_each_image_in_its_own_style(
    reports: dict[tuple[str, str], dict[str, Any]], trained: Path, data: Path, tmp_path: Path
) -> None:
    """And in the checkpoint's own where the model does not have that of the validation set."""
    metrics = load_checkpoint(trained).metrics
    own = [reports[name, name] for name in ("plain", "loud")]
    tokens = [one["calibration"]["tokens"] for one in own]
    nats = [one["calibration"]["cross_entropy"] for one in own]
    mean = (nats[0] * tokens[0] + nats[1] * tokens[1]) / sum(tokens)
    assert metrics["cross_entropy"] == pytest.approx(mean, abs=2e-2)  # bfloat16 there, if it can
    # What it says of ten scenes in one way and ten in the other: "wow" is a word more in half.
    lengths = [one["captions"]["words"]["mean"] for one in own]
    assert metrics["words"] == pytest.approx(sum(lengths) / 2, abs=0.2)
    assert lengths[1] > lengths[0] + 0.6
    shutil.copytree(data / "loud", data / "mine")
    train_here(
        data / "two.yaml", tmp_path / "run", data__root=data, weights=trained, max_steps=1,
        data__validation="[mine]", generation__style="loud", stages__1__learning_rate=0,
        stages__2__learning_rate=0,
    )  # fmt: skip
    found = load_checkpoint(tmp_path / "run" / "last.safetensors").metrics["cross_entropy"]
    assert found == pytest.approx(nats[1], abs=2e-2)


def begin(data: Path, out: Path, **fields: object) -> Run:
    named = {name.replace("__", "."): str(value) for name, value in fields.items()}
    recipe = load_recipe(str(data / "two.yaml"), {"data.root": str(data), **named})
    folder = RunFolder(recipe, out, default_precision="float32")
    run = Run.begin(folder, processes=Processes(device=torch.device("cpu")))
    assert run is not None
    return run


def test_a_run_can_add_a_style_to_a_model_or_drop_its_styles(
    trained: Path, data: Path, tmp_path: Path
) -> None:
    """A new style and a run without styles start from the default style."""
    write_scenes(data / "third", splits={"train": 20, "val": 5}, seed=2)
    fields = {"weights": trained, "data__validation": "[plain]"}
    run = begin(data, tmp_path / "1", data__train="[third]", **fields)
    assert run.corpus.vocabulary.styles == ("plain", "loud", "third")
    rows, start = run.state.model.decoder.embedding.weight, run.corpus.vocabulary.start
    assert (rows[start("third")] == rows[start("plain")]).all()
    assert not (rows[start("third")] == rows[start("loud")]).all()
    fields |= {"data__train": "[plain]", "data__styles": "false"}
    run, origin = begin(data, tmp_path / "2", **fields), load_checkpoint(trained)
    assert run.corpus.vocabulary.styles == ()
    rows, before = (one.decoder.embedding.weight for one in (run.state.model, origin.model))
    assert (rows[run.corpus.vocabulary.start()] == before[origin.vocabulary.start()]).all()
    with pytest.raises(ConfigError, match="the model has one style of captions only"):
        begin(data, tmp_path / "3", **fields, generation__style="loud")


def test_a_dry_run_has_photos_of_every_set(data: Path, tmp_path: Path) -> None:
    corpus = begin(data, tmp_path, max_steps=1).corpus
    assert [image.style for image in corpus.train] == ["plain"] * 10 + ["loud"] * 10
    assert {image.style for image in corpus.validation} == {"plain", "loud"}


def test_any_style_is_drawn_anew_in_every_epoch(data: Path, tmp_path: Path) -> None:
    run = begin(data, tmp_path, data__any_style=0.25, stages__1__fine_tune_from=12)
    origin = Vocabulary(["wow"], styles=("old", "loud"))  # of a checkpoint without "any"
    continued = read_corpus(run.recipe, out=tmp_path, origin=origin)
    assert continued.vocabulary.styles == ("any", "old", "loud", "plain")
    corpus, batches = run.corpus, run._batches()
    assert corpus.vocabulary.styles == ("any", "plain", "loud")
    assert {image.style for image in corpus.validation} == {""}
    begun = [
        {
            position: start
            for parts in batches.epoch(epoch, skip=0, max_batches=100)
            for part in parts
            for position, start in zip(part.positions, part.tokens[:, 0, 0].tolist(), strict=True)
        }
        for epoch in (0, 1, 0)
    ]
    usual = corpus.vocabulary.start("any")
    assert begun[0] == begun[2] != begun[1]
    for epoch in begun:
        assert len(epoch) == 80
        assert 5 <= sum(start == usual for start in epoch.values()) <= 35  # of 80: 20 +- 3.9
        for position, start in epoch.items():
            assert start in (usual, run.captions.starts[position])
