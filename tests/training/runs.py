"""Helpers for tests of training runs: a miniature recipe, a run, and its results."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from captioner.checkpoint import Checkpoint
from captioner_training.data.batches import Batch
from captioner_training.data.captions import CaptionTable
from captioner_training.data.scenes import write_scenes
from captioner_training.distributed import Processes
from captioner_training.losses.objective import CrossEntropy, Objective
from captioner_training.recipe import DataConfig, Recipe, ScenesConfig, Stage, load_recipe
from captioner_training.state import TrainState
from captioner_training.step import TrainStep
from captioner_training.train import train
from tests.conftest import MEAN, STD
from tests.launcher import environment, start

MODEL = """
encoder_weights: random
encoder: {name: mobilenet_v3_small, stride: 16}
transform: {mode: squash, size: 64}
decoder: {embedding_dim: 32, hidden_dim: 48, attention_dim: 16, value_dim: 32, dropout: 0.0}
"""

# Everything that draws random numbers or remembers something: dropout, augmentation,
# drawn captions, averaged weights, accumulated gradients, workers.
RECIPE = (
    MODEL.replace("dropout: 0.0", "dropout: 0.2")
    + """
name: miniature
data: {scenes: {train: 36, validation: 6}, minimum_count: 1, workers: 2}
generation: {beam_size: 2, maximum_length: 6}
log_every: 1
save_every_minutes: 1.0e-9
stages:
  - {epochs: 2, batch_size: 6, learning_rate: 1.0e-2, warmup: 2}
  - {epochs: 1, batch_size: 6, fine_tune_from: 5, flip: true, crop: 0.1, warmup: 2, accumulate: 2}
  - {epochs: 1, batch_size: 12, warmup: 2, self_critical: {samples: 3}}
"""
)


def write_own(place: Path, **splits: int) -> Path:
    """Write own.yaml, a recipe of two stages that takes seconds, and its data: scenes."""
    write_scenes(place / "data", splits=splits)
    (place / "own.yaml").write_text(OWN)
    return place


# As the shared tiny model, which these runs may start from (--weights).
OWN = f"""
name: own
encoder_weights: random
encoder: {{name: mobilenet_v3_small, stride: 32}}
transform: {{mode: squash, size: 64, mean: {list(MEAN)}, std: {list(STD)}}}
decoder: {{embedding_dim: 16, hidden_dim: 24, attention_dim: 8, dropout: 0.0}}
data: {{train: [data], validation: [data], minimum_count: 1, workers: 0}}
generation: {{beam_size: 1, maximum_length: 10}}
log_every: 1
stages:
  - {{epochs: 1, batch_size: 10, warmup: 2}}
  - {{epochs: 1, batch_size: 10, fine_tune_from: 5, warmup: 2}}
"""


def train_here(
    recipe: Path,
    out: Path,
    *,
    shared: Path | None = None,
    tensorboard: bool = False,
    keep_states: bool = False,
    **fields: object,
) -> None:
    """Run a recipe, or go on with it, in this process; dots in fields' names are "__".

    Runs with the same folder `shared` have the same grids and scenes.
    """
    for name in ("cache", "scenes") if shared is not None else ():
        (shared / name).mkdir(parents=True, exist_ok=True)
        out.mkdir(parents=True, exist_ok=True)
        if not (out / name).exists():
            (out / name).symlink_to(shared / name)
    if keep_states:
        link_states(out)
    named = {name.replace("__", "."): str(value) for name, value in fields.items()}
    processes = Processes(device=torch.device("cpu"))
    train(load_recipe(str(recipe), named), out=out, processes=processes, tensorboard=tensorboard)


def link_states(out: Path) -> Path:
    """Keep the states of a run in another folder; the end of a run deletes only the link."""
    states, beside = out / "state", out.with_name(f"{out.name}-states")
    if not states.is_symlink():
        out.mkdir(parents=True, exist_ok=True)
        if states.exists():
            states.rename(beside)
        beside.mkdir(exist_ok=True)
        states.symlink_to(beside)
    return out


def pair(*arguments: object) -> list[subprocess.Popen[str]]:
    """Start two processes, each in its own process group, faster than torchrun does."""
    world = {
        "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    return [
        start(
            *arguments,
            env=environment(**world, RANK=rank, LOCAL_RANK=rank),
            start_new_session=True,
        )
        for rank in "01"
    ]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def begin_step(
    checkpoint: Checkpoint, stage: Stage, *objectives: Objective, steps: int = 4, **fields: Any
) -> TrainStep:
    """Begin a stage, the first of two, and return its training step on the CPU."""
    model, cpu = checkpoint.model.requires_grad_(True), Processes(device=torch.device("cpu"))
    model.encoder.fine_tune(from_stage=stage.fine_tune_from)
    stages = (stage, Stage(epochs=1))
    recipe = Recipe(name="t", data=DataConfig(scenes=ScenesConfig()), stages=stages, **fields)
    return TrainStep(
        TrainState(model, processes=cpu).begin_stage(recipe, steps=steps), recipe,
        objectives={type(term).__name__: term for term in objectives or [CrossEntropy()]},
        processes=cpu,
    )  # fmt: skip


def make_batch(
    images: Tensor,
    captions: Sequence[Sequence[Sequence[int]]],
    *,
    starts: Sequence[int],
    maximum_length: int,
) -> Batch:
    """Make a batch of images and of captions given as word numbers."""
    table = CaptionTable(captions, starts=starts, maximum_length=maximum_length)
    return Batch(images, table.batch(range(len(images))), range(len(images)))


def records(out: Path) -> list[dict[str, Any]]:
    """Read the log of a run without what depends on the clock."""
    lines = (out / "log.jsonl").read_text().splitlines()
    return [
        {name: value for name, value in json.loads(line).items() if name != "timing"}
        for line in lines
    ]


def newest_state(out: Path) -> dict[str, Any]:
    path = max((out / "state").glob("step-*.pt"))
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state


def assert_same(one: Path, two: Path) -> None:
    """Compare the logs and every weight, average and checkpoint of two runs, bit for bit."""
    assert records(one) == records(two)
    for name in ("best.safetensors", "last.safetensors"):
        assert (one / name).read_bytes() == (two / name).read_bytes()
    first, second = newest_state(one), newest_state(two)
    assert first["model"].keys() == second["model"].keys()
    for name, tensor in first["model"].items():
        assert torch.equal(tensor, second["model"][name]), name
    random = [state["processes"][0]["random"]["torch"] for state in (first, second)]
    assert torch.equal(*random)


def wait_for_lines(process: subprocess.Popen[str], out: Path, *, grown: int) -> None:
    """Wait until the log of a run has grown by so many lines, or the process has ended."""
    log = out / "log.jsonl"

    def count() -> int:
        return log.read_text().count("\n") if log.exists() else 0

    target = count() + grown
    while process.poll() is None and count() < target:
        time.sleep(0.01)


def write_split(
    data: Path, split: str, pictures: Sequence[Image.Image], captions: Sequence[Sequence[str]]
) -> None:
    """Write pictures as 0.png, 1.png and so on, and their captions in COCO's format."""
    (data / split).mkdir(parents=True)
    images, annotations = [], []
    for number, (picture, sentences) in enumerate(zip(pictures, captions, strict=True)):
        picture.save(data / split / f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png"})
        annotations += [
            {"id": 10 * number + k, "image_id": number, "caption": words}
            for k, words in enumerate(sentences)
        ]
    content = {"images": images, "annotations": annotations}
    (data / f"captions_{split}.json").write_text(json.dumps(content))


def noise(count: int, *, width: int = 64, height: int = 64, seed: int = 0) -> list[Image.Image]:
    """Draw pictures of noise."""
    chance = np.random.default_rng(seed)
    shape = (height, width, 3)
    return [Image.fromarray(chance.integers(0, 256, shape, dtype=np.uint8)) for _ in range(count)]


def write_photos(folder: Path, split: str, captions: Sequence[Sequence[str]]) -> None:
    """Write a split with a photo of noise, 64 x 64, for each list of captions."""
    write_split(folder, split, noise(len(captions), seed=len(split)), captions)


def write_data(data: Path, *, photos: int) -> None:
    """Write the splits train and val, of pictures in slightly different colours."""
    pictures = [Image.new("RGB", (40, 40), (200, 2 * at, 20)) for at in range(photos)]
    for split in ("train", "val"):
        write_split(data, split, pictures, [["a red ball"]] * photos)
