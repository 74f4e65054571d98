"""What a stage learns from besides images and captions."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from captioner.checkpoint import load_checkpoint
from captioner.errors import DataError
from captioner.vision.encoder import Encoder
from captioner.vision.transform import TransformConfig
from captioner_training.distributed import Processes
from captioner_training.recipe import Recipe
from captioner_training.recipe_file import load_recipe
from captioner_training.stage import _sized, read_supervision
from captioner_training.train import train
from tests.training.runs import RECIPE


def corpus(*words: str) -> Any:
    return SimpleNamespace(train=[SimpleNamespace(id=7, words=(words,))])


def boxes(path: Path, category: str) -> Path:
    content = {
        "images": [{"id": 7, "width": 64, "height": 64}],
        "categories": [{"id": 1, "name": category}],
        "annotations": [{"image_id": 7, "category_id": 1, "bbox": [0, 0, 32, 64]}],
    }
    path.write_text(json.dumps(content))
    return path


def asking(folder: Path, *files: Path) -> Recipe:
    path = folder / "recipe.yaml"
    path.write_text(RECIPE)
    named = json.dumps([str(file) for file in files])
    return load_recipe(str(path), {"data.boxes": named, "stages.1.attention_supervision": "0.3"})


def test_boxes_of_an_image_are_those_of_every_file(tmp_path: Path) -> None:
    files = [boxes(tmp_path / f"{name}.json", name) for name in ("person", "dog")]
    one = read_supervision(asking(tmp_path, files[1]), corpus("a", "man", "and", "dog"))
    both = read_supervision(asking(tmp_path, *files), corpus("a", "man", "and", "dog"))
    assert one is not None and one.words == 1
    assert both is not None and both.words == 2


def test_boxes_of_what_no_caption_names_are_refused(tmp_path: Path) -> None:
    recipe = asking(tmp_path, boxes(tmp_path / "dog.json", "dog"))
    with pytest.raises(DataError, match="nothing to learn from"):
        read_supervision(recipe, corpus("a", "red", "circle"))


def test_a_stage_may_see_photos_smaller_than_they_are_in_use(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    recipe = load_recipe(str(path), {"stages.2.size": "32", "max_steps": "1"})
    seen: set[tuple[bool, int]] = set()  # whether with slopes, and the side of the squares

    def look(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if isinstance(module, Encoder):
            seen.add((torch.is_grad_enabled(), inputs[0].shape[-1]))

    with register_module_forward_pre_hook(look):
        train(recipe, out=tmp_path / "run", processes=Processes(device=torch.device("cpu")))
    # Smaller where it is fine-tuned; in use, in validation and while it is frozen, as it is.
    assert seen == {(True, 32), (False, 64)}
    assert load_checkpoint(tmp_path / "run" / "last.safetensors").transform.size == 64


@pytest.mark.parametrize(
    ("mode", "resize", "size", "expected"),
    [("crop", 256, 112, (112, 128)), ("squash", None, 112, (112, None)), ("crop", 256, None, None)],
)
def test_a_smaller_square_frames_the_same_part_of_a_photo(
    mode: Any, resize: int | None, size: int | None, expected: tuple[int, int | None] | None
) -> None:
    transform = TransformConfig(mode=mode, size=224, resize=resize)
    sized = _sized(transform, size)
    assert (sized.size, sized.resize) == (expected or (224, 256))
