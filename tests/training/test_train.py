"""Training through the front door: the command in a process, on scenes that it draws."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torchvision.ops import StochasticDepth

from captioner import ConfigError
from captioner.checkpoint import load_checkpoint
from captioner.model.config import DECODERS
from captioner.vocabulary import Vocabulary
from captioner_training.data.scenes import write_scenes
from captioner_training.initialization import build_model, load_encoder, load_initial
from captioner_training.losses.objective import Objective, TeacherForcedOutput
from captioner_training.recipe import Recipe, load_recipe
from tests.conftest import MEAN, STD
from tests.launcher import Run
from tests.training.runs import MODEL, records, train_here, write_photos

RECIPE = (
    MODEL
    + """
name: miniature
data: {scenes: {train: 60, validation: 10}, minimum_count: 1, workers: 1}
generation: {beam_size: 2, maximum_length: 12}
stages:
  - {epochs: 3, batch_size: 10, learning_rate: 1.0e-2, warmup: 2}
  - {epochs: 1, batch_size: 10, fine_tune_from: 5, flip: true, crop: 0.1, warmup: 2}
"""
)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "miniature.yaml"
    path.write_text(RECIPE)
    return path


def test_a_broken_photo_ends_the_run_and_its_workers(run_captioner: Run, tmp_path: Path) -> None:
    for split in ("train", "val"):
        write_photos(tmp_path, split, [["a grey square"]] * 8)
    broken = tmp_path / "train" / "5.png"
    broken.write_bytes(broken.read_bytes()[:800])
    (tmp_path / "recipe.yaml").write_text(
        "encoder_weights: random\nencoder: {name: mobilenet_v3_small}\n"
        "transform: {mode: squash, size: 64}\n"
        'data: {train: ["."], validation: ["."], minimum_count: 1, workers: 2}\n'
        "stages: [{epochs: 1, batch_size: 4, fine_tune_from: 0}]\n"
    )
    options = ("--data.root", tmp_path, "--out", tmp_path / "run")
    result = run_captioner("train", tmp_path / "recipe.yaml", *options, timeout=300)
    assert result.returncode == 1
    assert "photo 5.png in" in result.stderr and "Traceback" not in result.stderr
    assert "copy or download it again, or remove it from the data" in result.stderr


SETTING = {"weight": 5, "places": [1, 0.5], "shut": False, "name": "shy"}


class Shy(Objective):
    """A custom objective that penalizes open gates, with a mapping as setting."""

    def __init__(self, setting: Any) -> None:
        assert setting == SETTING
        super().__init__(setting["weight"])

    def loss(self, forced: TeacherForcedOutput) -> torch.Tensor:
        gate = forced.output.gate
        assert gate is not None
        return self.weight * (gate * forced.mask).sum() / forced.tokens


def test_an_objective_of_ones_own_is_a_class_and_a_line_of_the_recipe(
    recipe: Path, tmp_path: Path
) -> None:
    name = f"{__name__}:Shy"
    train_here(
        recipe, tmp_path / "run", stages__1__objectives=json.dumps({name: SETTING}),
        data__workers=0, data__scenes__validation=4, log_every=1, max_steps=6,
    )  # fmt: skip
    steps = [one for one in records(tmp_path / "run") if one["event"] == "step"]
    for one in steps:
        terms = {key: value for key, value in one.items() if key.startswith("loss/")}
        own = {f"loss/{name}"} if one["stage"] == 1 else set()
        assert terms.keys() == own | {
            "loss/cross_entropy", "loss/doubly_stochastic", "loss/attention_entropy"
        }  # fmt: skip
        assert sum(terms.values()) == pytest.approx(one["loss"], rel=1e-5)
    first = [one for one in steps if one["stage"] == 1]
    shut = [one[f"loss/{name}"] for one in first]
    assert 1 < shut[0] < 5 and shut[-1] < 0.8 * shut[0]
    # An epoch has the mean of its steps.
    epoch = next(one for one in records(tmp_path / "run") if one["event"] == "epoch")
    nats = [one["cross_entropy"] for one in first]
    assert epoch["cross_entropy"] == pytest.approx(sum(nats) / 6) and nats[-1] < 0.95 * nats[0]


class Greedy(Objective):
    """Raises the out-of-memory error of a GPU, or an unexpected error."""

    def loss(self, forced: TeacherForcedOutput) -> torch.Tensor:
        raise torch.OutOfMemoryError if self.weight == 1 else RuntimeError("unforeseen")


def test_a_gpu_that_is_too_small_is_said_in_a_sentence(
    run_main: Run, recipe: Path, tmp_path: Path
) -> None:
    objectives = f"--stages.1.objectives={{{__name__}:Greedy: 1}}"
    result = run_main("train", recipe, objectives, "--out", tmp_path / "run", "--data.workers", 0)
    assert result.returncode == 1 and "too little memory" in result.stderr


@pytest.mark.slow  # an interpreter of its own, which waits for workers at its end
def test_a_step_that_fails_ends_the_run_and_its_workers(
    monkeypatch: pytest.MonkeyPatch, run_captioner: Run, recipe: Path, tmp_path: Path
) -> None:
    """Workers ignore SIGTERM, by which multiprocessing would end them."""
    monkeypatch.setenv("CAPTIONER_TESTS_FORK", "0")
    objectives = f"--stages.1.objectives={{{__name__}:Greedy: 2}}"
    pixels = ("--stages.1.fine_tune_from", 5, "--data.workers", 2)  # loaded by workers
    options = (objectives, *pixels, "--out", tmp_path / "run")
    result = run_captioner("train", recipe, *options, timeout=60)
    assert result.returncode == 1 and "unforeseen" in result.stderr


TINY = {
    "encoder.stride": "32", "decoder.embedding_dim": "16", "decoder.hidden_dim": "24",
    "decoder.attention_dim": "8", "decoder.value_dim": "null",
    "transform.mean": str(list(MEAN)), "transform.std": str(list(STD)),
}  # fmt: skip


def built(recipe: Recipe, vocabulary: Vocabulary, origin: Any = None) -> Any:
    return build_model(recipe, vocabulary, encoder=load_encoder(recipe), origin=origin)


def test_weights_of_shared_words_are_kept(recipe: Path, tiny_file: Path) -> None:
    vocabulary = Vocabulary(["zebra", "dog", "a"])
    source = load_checkpoint(tiny_file)
    bias = source.model.decoder.output_bias.data
    bias.copy_(torch.linspace(-2, 2, len(bias)))  # the least are those of <pad>, <start> and so on
    source.save(tiny_file)
    loaded = load_recipe(str(recipe), {**TINY, "weights": str(tiny_file)})
    source = load_checkpoint(tiny_file)
    model = built(loaded, vocabulary, load_initial(loaded))
    theirs = source.model.decoder.embedding.weight[source.vocabulary.encode(["dog", "a"])]
    ours = model.decoder.embedding.weight[vocabulary.encode(["dog", "a"])]
    assert torch.equal(theirs, ours)
    before = source.model.decoder.output_bias
    zebra, dog = model.decoder.output_bias[vocabulary.encode(["zebra", "dog"])].tolist()
    assert zebra == before[source.vocabulary.encode(source.vocabulary.ordinary_words)].min()
    assert dog == before[source.vocabulary.encode(["dog"])[0]] != zebra


def test_a_decoder_that_does_not_fit_into_memory_is_refused(recipe: Path) -> None:
    words: Any = range(2**45)
    with pytest.raises(ConfigError, match=r"miniature does not fit into memory .*: lower decoder"):
        built(load_recipe(str(recipe), TINY), words)


@pytest.mark.parametrize("last_stage", ["null", "4"])
def test_an_encoder_starts_from_a_checkpoint_or_from_a_file_of_its_stages(
    recipe: Path, tiny_file: Path, tmp_path: Path, last_stage: str
) -> None:
    stages = load_checkpoint(tiny_file).model.encoder.stages.state_dict()
    alone = tmp_path / "stages.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in stages.items()}, alone)
    for file in (tiny_file, alone):
        fields = {"encoder_weights": str(file), "encoder.last_stage": last_stage}
        encoder = load_encoder(load_recipe(str(recipe), {**fields, "stages.2.fine_tune_from": "4"}))
        assert len(encoder.stages) == (13 if last_stage == "null" else 5)
        for name, tensor in encoder.stages.state_dict().items():
            assert torch.equal(tensor, stages[name])


def test_stochastic_depth_is_that_of_the_recipe(recipe: Path) -> None:
    fields = {"encoder.name": "efficientnet_b0", "stochastic_depth": "0.3"}
    encoder = load_encoder(load_recipe(str(recipe), fields))
    shares = {part.p for part in encoder.modules() if isinstance(part, StochasticDepth)}
    assert shares == {0.3}


class Bare(torch.nn.Module):
    """A custom decoder without a matrix of word embeddings."""

    def __init__(self, _: object, *, grid_dim: int, vocabulary_size: int) -> None:
        super().__init__()
        self.words = torch.nn.Parameter(torch.randn(vocabulary_size, grid_dim))


def test_weights_of_a_decoder_without_an_embedding_are_taken_over(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DECODERS, "lstm", f"{__name__}:Bare")
    loaded, vocabulary = load_recipe(str(recipe)), Vocabulary(["dog"])
    origin = SimpleNamespace(model=built(loaded, vocabulary), vocabulary=vocabulary)
    model = built(loaded, vocabulary, origin)
    assert torch.equal(model.decoder.words, origin.model.decoder.words)


@pytest.mark.slow
def test_smoke_learns_to_caption_scenes_and_to_look(run_captioner: Run, tmp_path: Path) -> None:
    result = run_captioner("train", "smoke", "--out", tmp_path / "run", timeout=900)
    assert result.returncode == 0, result.stderr
    scores = load_checkpoint(tmp_path / "run").metrics  # in percent of unseen scenes
    assert scores["exact"] >= 95 and scores["pointing"] >= 90


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
    assert scores["different"] >= 600


@pytest.mark.slow
@pytest.mark.parametrize("name", ["coco-scst", "coco", "coco-fast", "flickr8k"])
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
    steps = [one for one in records(out) if one["event"] == "step"]
    assert [one["stage"] for one in steps] == [n for n, _ in enumerate(stages, 1) for _ in "ab"]
    assert all("reward" in one for one in steps) == (name == "coco-scst")
