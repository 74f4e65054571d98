"""A run's folder: whose run it has, and whether that can be gone on with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from captioner.errors import ConfigError
from captioner_training.machinery.processes import Processes
from captioner_training.machinery.state_files import StateFiles
from captioner_training.recipe_file import load_recipe
from captioner_training.run_folder import RunFolder
from captioner_training.run_recipe import plain
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
