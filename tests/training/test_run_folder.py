"""A run's folder: whose run it has, and whether that can be gone on with."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from captioner.errors import ConfigError
from captioner_training.distributed import Processes
from captioner_training.progress import Progress
from captioner_training.recipe import Recipe
from captioner_training.recipe_file import load_recipe
from captioner_training.run_folder import RunFolder
from captioner_training.run_recipe import plain
from captioner_training.state_files import StateFiles
from tests.training.runs import RECIPE, older

ALONE = Processes(device=torch.device("cpu"))


def test_a_state_from_before_there_were_these_fields_is_gone_on_with(tmp_path: Path) -> None:
    path, out = tmp_path / "recipe.yaml", tmp_path / "run"
    path.write_text(RECIPE)
    recipe = load_recipe(str(path))
    noted = plain(recipe)
    older(noted)
    StateFiles(out / "state", keep=2).save({"recipe": noted, "data": "digest"}, step=3)
    with RunFolder.open(recipe, out, ALONE) as folder:
        assert folder.state is not None and folder.finished is None
    searched = replace(recipe, generation=replace(recipe.generation, exact=False))
    with (
        pytest.raises(ConfigError, match=r"generation\.exact: True there, False now\nstart"),
        RunFolder.open(searched, out, ALONE),
    ):
        pass


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return load_recipe(str(tmp_path / "recipe.yaml"), {"keep_files": "false"})


def files(out: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in out.rglob("*")
        if path.is_file() and path.name != "lock"
    }


@pytest.mark.parametrize(
    ("there", "told"),
    [
        (("best.safetensors",), "has best.safetensors, but neither"),
        (("best.safetensors", "last.safetensors", "recipe.json", "log.jsonl"), "and last.safet"),
        (("log.jsonl", "state/thesis.txt", "cache/c.txt"), "has log.jsonl, but neither"),
        (("best.safetensors", "state/thesis.txt"), "has best.safetensors, but neither"),
    ],
)
def test_files_that_are_not_known_to_be_of_a_run_are_not_replaced(
    recipe: Recipe, tmp_path: Path, there: tuple[str, ...], told: str
) -> None:
    out = tmp_path / "run"
    for name in there:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("theirs")
    if "recipe.json" in there:
        (out / "recipe.json").write_text(json.dumps(plain(recipe)))
    before = files(out)
    with pytest.raises(ConfigError, match=told), RunFolder.open(recipe, out, ALONE):
        pass
    assert files(out) == before


@pytest.mark.parametrize("note", ["{", "{}", "[]", '{"recipe": {}, "data": "", "progress": {}}'])
def test_a_damaged_note_of_a_finished_run_is_refused(
    recipe: Recipe, tmp_path: Path, note: str
) -> None:
    (tmp_path / "finished.json").write_text(note)
    for asked in (recipe, replace(recipe, max_steps=2)):
        with (
            pytest.raises(ConfigError, match=r"finished\.json is damaged.*another --out"),
            RunFolder.open(asked, tmp_path, ALONE),
        ):
            pass


def test_weights_that_the_run_would_replace_are_refused(recipe: Recipe, tmp_path: Path) -> None:
    out = tmp_path / "run"
    for field in ("weights", "encoder_weights"):
        own = replace(recipe, **{field: str(out / ".." / "run" / "best.safetensors")})
        with (
            pytest.raises(ConfigError, match="would be replaced by this run"),
            RunFolder.open(own, out, ALONE),
        ):
            pass


def test_a_run_that_ended_before_its_first_state_begins_again(
    recipe: Recipe, tmp_path: Path
) -> None:
    other = replace(recipe, seed=2)
    for asked in (recipe, other, recipe):  # with no checkpoint there, by any recipe
        with RunFolder.open(asked, tmp_path, ALONE) as folder:
            folder.begin()
            (tmp_path / "log.jsonl").write_text("")
    (tmp_path / "best.safetensors").write_text("as it was")  # the model that it went on from
    for asked in (other, recipe):
        with RunFolder.open(asked, tmp_path, ALONE) as folder:
            folder.begin()
    (tmp_path / "last.safetensors").write_text("of the first epoch")
    with RunFolder.open(recipe, tmp_path, ALONE) as folder:
        folder.begin()
    with pytest.raises(ConfigError, match="seed: 1 there, 2 now"):
        RunFolder.open(other, tmp_path, ALONE).__enter__()


def test_a_dry_run_gives_way_at_whatever_moment_the_real_one_is_killed(
    recipe: Recipe, tmp_path: Path
) -> None:
    with RunFolder.open(replace(recipe, max_steps=2), tmp_path, ALONE) as folder:
        folder.begin()
        (tmp_path / "best.safetensors").write_text("dry")
        folder.finish(digest="few", progress=Progress(finished=True, best_at=(1, 1)))
    assert not (tmp_path / "state").exists()
    for _ in range(2):
        with RunFolder.open(recipe, tmp_path, ALONE) as folder:
            assert folder.finished is None
            folder.begin()
    assert not (tmp_path / "finished.json").exists()


def test_only_files_of_the_run_are_removed(recipe: Recipe, tmp_path: Path) -> None:
    for name in ("state/thesis.txt", "cache/c.txt", "cache/grids-0-00000.f16", "lock"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("theirs")
    (linked := tmp_path / "linked").mkdir()
    (linked / "cache").symlink_to(tmp_path / "cache")
    with RunFolder.open(recipe, linked, ALONE) as folder:
        folder.finish(digest="digest", progress=Progress(finished=True))
    assert (tmp_path / "cache" / "grids-0-00000.f16").exists()
    shutil.rmtree(linked)
    with RunFolder.open(recipe, tmp_path, ALONE) as folder:
        folder.begin()
        folder.save({"progress": {"total": 3}}, digest="digest")
        folder.finish(digest="digest", progress=Progress(finished=True))
    assert (tmp_path / "lock").read_text() == "theirs"
    left = {"state/thesis.txt", "cache/c.txt", "recipe.yaml", "recipe.json", "finished.json"}
    assert files(tmp_path).keys() == left
