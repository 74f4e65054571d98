"""What a recipe starts from: files whose header makes no sense are named, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from captioner.errors import CheckpointFormatError
from captioner_training.recipe_file import load_recipe
from captioner_training.recipe_weights import check_weights


@pytest.mark.parametrize("field", ["weights", "encoder_weights"])
@pytest.mark.parametrize("encoder", [["name"], "efficientnet", 7])
def test_headers_that_make_no_sense(tmp_path: Path, field: str, encoder: Any) -> None:
    path = tmp_path / "odd.safetensors"
    header = {"format_version": 1, "encoder": encoder, "decoder": {}}
    save_file({"x": np.zeros(1)}, path, metadata={"captioner": json.dumps(header)})
    with pytest.raises(CheckpointFormatError, match=r"odd\.safetensors has a header"):
        check_weights(load_recipe("smoke", {field: str(path)}))
