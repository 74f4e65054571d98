"""Recipes: typed, read safely, and every error at once."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from captioner import ConfigError
from captioner_training.recipe import import_class, load_recipe, resolve, shipped_recipes


def test_shipped_recipes_load_and_are_named_in_the_help(run_main: Callable[..., Any]) -> None:
    for name in shipped_recipes():
        assert load_recipe(name).name == name
    unbroken = re.sub(r"-\n +", "-", run_main("train", "--help").stdout)
    assert {*re.findall(r"[\w-]+", unbroken)} >= {*shipped_recipes()} >= {"coco", "smoke"}
    shown = run_main("train", "finetune", "--show").stdout
    assert shown == shipped_recipes()["finetune"].read_text()


def test_only_long_stages_with_a_frozen_encoder_are_compiled_on_a_gpu() -> None:
    """By default; on an H100 compiling took one to three minutes a stage."""
    recipe = load_recipe("coco-fast")
    frozen, tuned, critical = recipe.stages
    for stage, steps, device, wanted in (
        (frozen, 2_000, "cuda", True), (critical, 2_000, "cuda", True),
        (frozen, 1_999, "cuda", False), (frozen, 2_000, "cpu", False),
        (tuned, 100_000, "cuda", False),
    ):  # fmt: skip
        assert recipe.compiles(stage, steps=steps, device=device) == wanted
    for setting in (True, False):
        chosen = load_recipe("coco-fast", {"compile": str(setting).lower()})
        assert chosen.compiles(tuned, steps=1, device="cpu") == setting


def test_fields_can_be_set_anew() -> None:
    overrides = {
        "seed": "7", "stages.1.epochs": "1", "stages.1.learning_rate": "1e-3",
        "decoder.dropout": ".5", "generation.consensus": "false", "weights": "null",
        "data.train": "[a, b]",
    }  # fmt: skip
    recipe = load_recipe("finetune", overrides)
    stage = recipe.stages[0]
    assert (recipe.seed, stage.epochs, stage.learning_rate) == (7, 1, 1e-3)
    assert (recipe.decoder.dropout, recipe.generation.consensus) == (0.5, False)
    assert recipe.weights is None and recipe.data.train == ("a", "b")


def test_texts_are_read_as_they_are_typed() -> None:
    """Folders may be called so; YAML would read a comment, a number, a date or a mapping."""
    for name in ("pd #2", "2024-05-01", "on", "1e5", "a: b"):
        assert load_recipe("finetune", {"data.root": name}).data.root == name
    assert resolve("~/data", "set") == Path.home() / "data" / "set"
    assert resolve("/data", "/other") == Path("/other")


def test_a_recipe_is_a_yaml_file_or_a_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yml").write_text("data: {scenes: {}}\nstages: [{epochs: 1}]\n")
    assert load_recipe("mine.yml").name == "mine"
    shutil.copy("mine.yml", "mine.yaml")
    with pytest.raises(ConfigError, match=r"no recipe 'mine', did you mean mine\.yaml\? Use a"):
        load_recipe("mine")
    (tmp_path / "mine.yaml").write_bytes(b"name: \0")
    with pytest.raises(ConfigError, match=r"recipe mine\.yaml is not a text file"):
        load_recipe("mine.yaml")
    with pytest.raises(ConfigError, match=r"there is no file my\.yaml, did you mean mine\.yaml"):
        load_recipe("my.yaml")


def test_a_class_of_ones_own_may_be_a_file_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_words").mkdir()
    (tmp_path / "own_words" / "part.py").write_text("class Words(dict): pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])
    assert issubclass(import_class("own_words.part:Words", dict, field="f"), dict)
    for path in ("./own_words/part.py:Words", "own_words.part.Words", "own-words:Words"):
        with pytest.raises(
            ConfigError, match=r"is not module:Class, such as package\.module:Class$"
        ):
            import_class(path, dict, field="f")


def test_every_error_is_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "encoder: {name: resnet99}\ninvention: 1\ndata: {scenes: {train: many}}\n"
        "stages: [{epochs: 1, learning_rat: 3}]\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_recipe(str(path), {"stages.4.epochs": "1"})
    wrong = ("resnet99", "invention", "data.scenes.train", "learning_rate?", "stages.4.epochs")
    assert all(name in str(caught.value) for name in wrong)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"name": "a\x1b[2Jb"}, r"name 'a\x1b[2Jb' cannot be a folder's name"),
        ({"seed.x": "1"}, "seed: "),
        ({"data.wokers": "1"}, "data.wokers: there is no such field, did you mean data.workers?"),
        ({"stages.2.epochs": "1"}, "stages.2.epochs: there is no 2: use 1 to 1"),
        ({"data": "{}"}, "either scenes, or both train and validation"),
        ({"transform.size": "100"}, "size is 100; it must be a multiple of encoder.stride 16"),
        ({"stages.1.flip": "1"}, "stages.1: flip has no effect while the encoder is frozen"),
        ({"stages.1.self_critical.samples": "1"}, "samples: should be greater than or equal to 2"),
        ({"stages.1.objectives": "x"}, "objectives: should be a valid dictionary (given: 'x')"),
        ({"data": "{scenes: {}, styles: true}"}, "data.styles has no effect on scenes"),
        (
            {"data": "{train: [a/set, b/set], validation: [v], styles: true}"},
            "training folders with different names: rename one",
        ),
        ({"data": "{train: [a], validation: [v], any_style: 0.5}"}, "any_style needs data.styles"),
        (
            {"data": "{root: /any, train: [.], validation: [v], styles: true, any_style: 0.5}"},
            "any_style adds the style any: rename the training set any",
        ),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(fields: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        load_recipe("smoke", fields)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("seed: [1", "invalid YAML: expected ',' or ']'"),
        ("name: 2024", "name: should be a valid string (given: 2024)"),
        ("seed: 2024-99-99", "invalid YAML"),
        (f"seed: {'9' * 5000}", "invalid YAML"),
        (f"seed: {'[' * 500}", "invalid YAML"),
        ("seed: !!map [1]", "invalid YAML: expected a mapping node"),
        ("[1, 2]", "not a YAML mapping"),
        ("seed: 1\nname: a\nseed: 2", "line 3: invalid YAML: seed is given twice"),
        ("generation: {beam_size: 2, beam_size: 3}", "beam_size is given twice"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused_in_a_sentence(
    tmp_path: Path, text: str, problem: str
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"{text}\n")
    with pytest.raises(ConfigError, match=re.escape(problem)) as caught:
        load_recipe(str(path), {"data.scenes": "{}", "stages": "[{epochs: 1}]"})
    assert len(str(caught.value)) < 300


def test_every_field_is_listed_with_its_reason(run_main: Callable[..., Any]) -> None:
    fields = re.split(r"\n(?! )", run_main("train", "--fields").stdout.strip())
    listed = {text.partition(":")[0]: re.split(r"\n +", text) for text in fields}
    plain = asdict(load_recipe("flickr8k"))
    named = {"": plain, "stages.1.": plain["stages"][0], "data.": plain["data"]}
    for prefix, values in named.items():
        assert {f"{prefix}{name}" for name in values} <= listed.keys()
    assert listed["data.minimum_count"] == [
        "data.minimum_count: 5",
        "Words that occur less often in the training captions become <unk>.",
    ]
    assert listed["data.tokenizer"][0] == "data.tokenizer: words  (words, unicode, characters)"
    assert listed["stages.1.epochs"][0] == "stages.1.epochs: (required)"
    bare = [name for name, lines in listed.items() if len(lines) == 1]
    assert len(bare) < 0.2 * len(listed), bare
