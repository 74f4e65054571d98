"""A training that comes to no number ends soon, with a sentence and a log that can be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from captioner.errors import GenerationError
from captioner_training.distributed import Processes
from captioner_training.recipe_file import load_recipe
from captioner_training.train import train
from tests.training.test_interrupts import RECIPE


@pytest.mark.parametrize(
    ("batch_size", "noticed"),
    [(1, 2), (20, 1)],
    ids=["by the loss", "by the validation, which comes first"],
)
def test_a_diverged_run_says_what_to_lower(tmp_path: Path, batch_size: int, noticed: int) -> None:
    (tmp_path / "miniature.yaml").write_text(RECIPE)
    fields = {"learning_rate": "1.0e38", "warmup": "0", "batch_size": str(batch_size)}
    named = {f"stages.1.{name}": value for name, value in fields.items()}
    recipe = load_recipe(str(tmp_path / "miniature.yaml"), named)
    with pytest.raises(GenerationError, match=rf"infinite by step {noticed}: lower learning_rate"):
        train(recipe, out=tmp_path / "run", processes=Processes(device=torch.device("cpu")))
    for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)
