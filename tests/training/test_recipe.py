"""Recipes: typed, and every error at once."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision

from captioner import ConfigError
from captioner.attention.score_names import SCORE_NAMES
from captioner.attention.scores import SCORES
from captioner.vision.backbones import backbones
from captioner.vision.encoder import Encoder, EncoderConfig
from captioner_training.recipe_fields import fields_text
from captioner_training.recipe_file import load_recipe, shipped_recipes
from captioner_training.run_recipe import plain
from captioner_training.verbs import train
from tests import launcher


def test_shipped_recipes_load() -> None:
    shipped = {"ablation", "bundled", "coco", "coco-fast", "coco-scst", "flickr8k", "own", "smoke"}
    assert set(shipped_recipes()) == shipped
    for name in shipped_recipes():
        assert load_recipe(name).name == name
    train.add_arguments(parser := argparse.ArgumentParser())
    assert shipped <= set(re.findall(r"[\w-]+", parser.format_help()))


def test_fields_can_be_set_anew() -> None:
    overrides = {"seed": "7", "data.root": "/data", "stages.1.epochs": "1", "decoder.dropout": ".5"}
    recipe = load_recipe("smoke", overrides)
    assert (recipe.seed, recipe.data.root, recipe.stages[0].epochs) == (7, "/data", 1)
    assert recipe.decoder.dropout == 0.5


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("seed", "99999999999999999999", "seed: should be less than or equal to 4294967295"),
        ("seed", "999999999999999", "seed: should be less than or equal to 4294967295"),
        ("data.scenes.train", "100000000000", "train: should be less than or equal to 1000000"),
        ("name", "../../zz", "'../../zz' is no plain file name"),
        ("name", "..", "'..' is no plain file name"),
    ],
)
def test_what_would_end_elsewhere_or_never_is_refused(field: str, value: str, told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        load_recipe("smoke", {field: value})


def test_every_error_is_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "encoder: {name: resnet99}\n"
        "transform: {mode: stretch}\n"
        "invention: 1\n"
        "data: {scenes: {train: many}}\n"
        "stages: [{epochs: 1, learning_rat: 3}]\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_recipe(str(path), {"stages.4.epochs": "1"})
    message = str(caught.value)
    for expected in (
        "resnet99", "stretch", "invention", "data.scenes.train", "learning_rat", "stages.4.epochs"
    ):  # fmt: skip
        assert expected in message
    assert "many" in message  # the value as given


def told(fields: dict[str, str]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_recipe("smoke", fields)
    return [line.strip().partition(" (")[0] for line in str(caught.value).splitlines()[1:]]


def test_contradictions_are_told_with_the_other_errors() -> None:
    size = "transform.size 100 is not a multiple of encoder.stride 16: use 96 or 112"
    flip = "stages.1: flip has no effect in a stage whose encoder is frozen: set fine_tune_from, or"
    epochs = "stages.1.epochs: should be greater than or equal to 1"
    boxes = "attention_supervision needs data.boxes: name files of boxes, or leave it out"
    assert told({"transform.size": "100", "seed": "many"})[1:] == [f"recipe: {size}"]
    first, second = told({"transform.size": "100", "stages.1.flip": "true"})
    assert first.startswith(flip) and second == f"recipe: {size}"
    stages = "[{epochs: 0, flip: true}, {epochs: 1, attention_supervision: 1}]"
    more = told({"transform.size": "100", "stages": stages})
    assert (
        more[0] == epochs and more[1].startswith(flip) and more[2:] == [f"recipe: {boxes}; {size}"]
    )
    missing = told({"stages": "[{flip: true}]", "transform.size": "100"})
    assert missing[0] == "stages.1.epochs: Field required" and missing[1].startswith(flip)
    assert missing[2:] == [f"recipe: {size}"]


def test_what_hangs_on_a_field_that_is_wrong_is_not_told() -> None:
    """Neither size nor heads nor flip is wrong: nobody knows what the other field was to be."""
    for fields in (
        {"transform.size": "112", "encoder.stride": "zero"},
        {"decoder.kind": "transfomer", "decoder.heads": "4"},
        {"stages.1.flip": "true", "stages.1.fine_tune_from": "last"},
        {"generation.sample": "7", "generation.captions": "6"},
        {"data.scenes": "many"},
        {"stages": "none"},
        {"transform": "[]"},
        {"transform.mean": "[0.1, 0.2]"},
    ):
        assert len(told(fields)) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "not a YAML mapping"),
        ("a: [", "not YAML"),
        ("stages: [{epochs: 1, flip: true, epochs: 3}]", "epochs comes twice"),
        ("data: {scenes: {}}\nstages: []", "at least one stage"),
        ("data: {}\nstages: [{epochs: 1}]", "either scenes, or both train and validation"),
    ],
)
def test_files_that_are_no_recipe(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_recipe(str(path))
    with pytest.raises(ConfigError, match=r"nowhere\.yaml cannot be read"):
        load_recipe(str(tmp_path / "nowhere.yaml"))


def test_every_field_is_listed_with_its_reason() -> None:
    """Every leaf of a loaded recipe is in the list; nearly every one has a comment beside it."""
    listed: dict[str, list[str]] = {}
    for line in fields_text().splitlines():
        if not line.startswith(" "):
            listed[line.partition(":")[0]] = [line]
        else:
            listed[next(reversed(listed))].append(line.strip())
    plain = asdict(load_recipe("flickr8k"))
    plain["stages"] = {"1": plain["stages"][0]}

    def leaves(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
        for name, value in values.items():
            if isinstance(value, dict):
                yield from leaves(value, f"{prefix}{name}.")
            else:
                yield prefix + name

    assert {name for name in leaves(plain) if name not in listed} == set()
    assert listed["data.minimum_count"][:2] == [
        "data.minimum_count: 5", "rarer words become <unk>: too few examples to learn from"
    ]  # fmt: skip
    assert listed["data.tokenizer"][0] == "data.tokenizer: words  (words, characters)"
    assert listed["stages.1.epochs"][0] == "stages.1.epochs: (required)"
    assert "as the paper does" in listed["decoder.value_dim"][1]
    assert listed["generation.exact"][1].startswith("A beam search ends when nothing unfinished")
    assert listed["generation.no_repeat_ngram"][1].startswith("No n words stand twice")
    bare = [name for name, lines in listed.items() if len(lines) == 1]
    assert len(bare) < 0.2 * len(listed), bare


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"transform.size": "100"}, "transform.size 100 is not a multiple of encoder.stride 16"),
        (
            {"stages.1.fine_tune_from": "5", "stages.1.size": "100"},
            "stages.1.size 100 is not a multiple of encoder.stride 16: use 96 or 112",
        ),
        (
            {"stages.1.fine_tune_from": "5", "stages.1.size": "128"},
            "the size of a stage is that of the transform",
        ),
        ({"stages.1.size": "96"}, "size has no effect in a stage whose encoder is frozen"),
        ({"encoder.stride": "0", "encoder.last_stage": "3"}, "encoder.stride: should be greater"),
        ({"encoder.last_stage": "-1"}, "encoder.last_stage: should be greater"),
        ({"stages.1.flip": "true"}, "stages.1: flip has no effect in a stage whose encoder"),
        ({"stages.1.crop": "0.1"}, "stages.1: crop has no effect"),
        ({"stages.1.hand_on": "last"}, "hand_on has no effect in the last stage: leave it out"),
        ({"stages.1.encoder_learning_rate": "1e-4"}, "encoder_learning_rate has no effect"),
        (
            {"stages.1.self_critical": "{}", "stages.1.scheduled_sampling": "0.1"},
            "scheduled_sampling has no effect in a self-critical stage",
        ),
        ({"stages.1.learning_rate": "-1"}, "stages.1.learning_rate: should be greater"),
        ({"stages.1.attention_entropy": "nan"}, "stages.1.attention_entropy"),
        ({"name": r'"a\x1b[2Jb"'}, r"name 'a\\x1b\[2Jb' has characters that steer a terminal"),
        ({"weight_decay": "-0.1"}, "weight_decay: should be greater"),
        ({"data.maximum_length": "0"}, "data.maximum_length: should be greater"),
        ({"generation.beam_size": "2.5"}, "generation.beam_size: should be a valid integer"),
        ({"stages.0.epochs": "3"}, "which are counted from 1"),
        ({"data.minimum_cuont": "3"}, r"no such field, did you mean minimum_count\?"),
    ],
)
def test_what_cannot_work_is_refused_with_a_sentence(fields: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_recipe("smoke", fields)


def test_numbers_are_read_as_people_write_them() -> None:
    assert load_recipe("smoke", {"stages.1.learning_rate": "1e-3"}).stages[0].learning_rate == 1e-3


def test_texts_are_read_as_they_are_typed() -> None:
    """Folders may be called so; YAML would read a comment, a number, a date or a mapping."""
    for name in ("pd #2", "2024", "2024-05-01", "on", "1e5", "[x]", "a: b", " x", "'", "null"):
        assert load_recipe("own", {"data.root": name}).data.root == name
    assert load_recipe("own", {"data.root": "'pd #2'"}).data.root == "pd #2"
    assert load_recipe("own", {"weights": "runs/a #2/best.safetensors"}).weights == (
        "runs/a #2/best.safetensors"
    )
    assert load_recipe("own", {"weights": "null"}).weights is None
    with pytest.raises(ConfigError, match="weights: is empty: give a value, or null"):
        load_recipe("own", {"weights": ""})
    assert load_recipe("own", {"generation.style": ""}).generation.style == ""
    assert load_recipe("own", {"data.boxes": "[a.json, b.json]"}).data.boxes == ("a.json", "b.json")
    with pytest.raises(ConfigError, match=r"stages: should be a list \(given: 'none'\)"):
        load_recipe("own", {"stages": "none"})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        # Two kilobytes of these would take more memory than there is.
        (
            "a: &a [x]\nb: [*a, *a]",
            "line 1, is not YAML as recipes are: anchors, aliases and merge",
        ),
        ("b: [x]\na: {<<: *b}", "line 2, is not YAML as recipes are: anchors, aliases and merge"),
        ("<<: {seed: 1}", "<<: there is no such field"),
        ("seed: !!int x", "tags (!) are not read"),
        ("seed: 2024-99-99", "seed: should be a valid integer"),
        (f"seed: {'9' * 5000}", "is no number with up to 40 digits"),
        ("seed: 0x_", "0x_ is no number"),
        (f"seed: {'[' * 3000}", "more than 10 lists and mappings lie inside each other"),
        (f"{'? ' * 3000}", "more than 10 lists and mappings lie inside each other"),
        (f"seed: [{'1,' * 25_000}]", "more than 50,000 bytes"),
    ],
)
def test_what_yaml_says_beyond_json_is_refused_in_a_sentence(
    tmp_path: Path, text: str, told: str
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"{text}\n")
    with pytest.raises(ConfigError, match=re.escape(told)) as caught:
        load_recipe(str(path), {"data.scenes": "{}", "stages": "[{epochs: 1}]"})
    assert len(str(caught.value)) < 300
    value = text.partition(": ")[2]
    with pytest.raises(ConfigError, match="seed: should be a"):  # as an option, too
        load_recipe("smoke", {"seed": value})


def test_a_date_is_a_text(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: 2024-02-31\ndata: {scenes: {}}\nstages: [{epochs: 1}]\n")
    assert load_recipe(str(path)).name == "2024-02-31"


def test_mistakes_are_told_before_torch_is_imported(tmp_path: Path) -> None:
    """What takes seconds to import comes after what can be known at once."""
    (tmp_path / "data").mkdir()
    (tmp_path / "mine.yaml").write_text("{}")
    (tmp_path / "notes.json").write_text("a dog")
    (tmp_path / "one.json").write_text(
        '{"images": [{"id": 1, "file_name": "1.jpg"}],'
        ' "annotations": [{"image_id": 1, "caption": "a dog"}]}'
    )
    (tmp_path / "done").mkdir()
    recipe = plain(load_recipe("smoke", {"seed": "1"}))
    note = {"recipe": recipe, "data": "", "progress": {"finished": True}}
    (tmp_path / "done" / "finished.json").write_text(json.dumps(note))
    wanted = (
        ("train smoke --seed 2 --out done", 2, "the run of another recipe:\n  seed: 1 there"),
        ("train flickr8k --data.root date", 1, "did you mean data?"),
        ("train flickr8k --data.root data", 1, "captioner prepare KIND"),
        ("train flickr8k --data.wokers 1", 2, "did you mean workers?"),
        ("train flickr9k", 2, "mean flickr8k? Name a .yaml file, or one of ablation, bundled, "),
        ("train mine", 2, "did you mean mine.yaml? Name"),
        ("train mien.yaml", 2, "there is no file mien.yaml, did you mean mine.yaml?"),
        ("train flickr8k --encoder.name resnet50", 2, "set --encoder_weights torchvision"),
        (
            "train own --encoder.name resnet50", 1,
            "or begin without it: --weights null --encoder_weights torchvision",
        ),
        ("train own --data.tokenizer characters", 1, "begin without it: --weights null\n"),
        ("train flickr8k --encoder.name resnet51", 2, "known are convnext_base"),
        ("train flickr8k --encoder_weights torchvision", 2, "set --encoder_weights bundled"),
        (
            "train own --encoder_share 0.5 --encoder_weights torchvision", 2,
            "set --encoder_weights a file of its own",
        ),
        ("train flickr8k --encoder_weights notes.jsn", 1, "did you mean notes.json?"),
        ("train flickr8k --stages.2.fine_tune_from 8", 2, "the encoder has the stages 0 to 7"),
        ("train --fields", 0, ""),
        ("evaluate --captions notes.json --images data", 1, "notes.json is not JSON"),
        ("evaluate --captions one.json --images date", 1, "tar file date, did you mean data?"),
        ("evaluate --captions one.json --images data", 1, "images that are not in data: 1, 1.jpg"),
    )  # fmt: skip
    told = launcher.refuse(*(arguments for arguments, _, _ in wanted), cwd=tmp_path)
    for (arguments, status, message), (ended, loaded, said) in zip(wanted, told, strict=True):
        assert message in f"{said}\n"
        assert ended == str(status), said
        assert not loaded or arguments.startswith("evaluate"), said


def test_backbones_and_scores_are_known_without_torch() -> None:
    families = ("resnet", "resnext", "wide_resnet", "efficientnet", "convnext", "mobilenet")
    theirs = torchvision.models.list_models(module=torchvision.models)
    theirs = [name for name in theirs if name.startswith(families)]
    assert set(backbones()) == {*theirs, "efficientnet_v2_b0"}
    with torch.device("meta"):
        for name in backbones():
            config = EncoderConfig(name=name)
            assert len(Encoder(config).stages) == config.stage_count, name
    assert set(SCORES) == set(SCORE_NAMES)
