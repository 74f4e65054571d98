"""Language first: a stage that learns from captions without photos."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from captioner.checkpoint import load_checkpoint
from captioner_training.data.grids import CachedGrids, MeanDataset
from captioner_training.data.scenes import write_scenes
from tests.launcher import Run
from tests.training.runs import MODEL, newest_state, records, train_here

SENTENCE = "an octopus sits on the table"
RECIPE = (
    MODEL
    + """
name: miniature
data: {train: [plain], validation: [plain], minimum_count: 1, workers: 0, text: [{file: text.gz}]}
generation: {beam_size: 2}
save_every_steps: 4
keep_states: 99
keep_files: true
stages:
  - {epochs: 5, batch_size: 40, learning_rate: 2.0e-2, warmup: 2, text: true, hand_on: last}
  - {epochs: 1, batch_size: 40, learning_rate: 0.0, warmup: 2}
"""
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    write_scenes(root / "plain", splits={"train": 40, "val": 5}, seed=1)
    lines = [SENTENCE, "", *[SENTENCE] * 99, *["a zebra"] * 19]
    with gzip.open(root / "text.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(lines))
    (root / "empty.txt").write_text("\n\n")
    (root / "no.gz").write_text("no archive")
    (root / "text.yaml").write_text(RECIPE)
    train_here(root / "text.yaml", root / "run", data__root=root)
    return root


def test_it_learns_sentences_that_no_photo_has(data: Path) -> None:
    """The second stage, whose rate is 0, changes nothing: what the model knows is of the first."""
    made = load_checkpoint(data / "run" / "last.safetensors")
    words = made.vocabulary
    assert "octopus" in words and "zebra" not in words  # it stands 19 times, and 20 are asked
    tokens = torch.tensor([[[words.start(), *words.encode(SENTENCE.split())]]])
    for features in (torch.zeros(1, 16, made.model.encoder.channels()), torch.rand(1, 1, 576)):
        with torch.no_grad():
            output = made.model.decoder(features, tokens[..., :-1])
            logs = made.model.decoder.logits(output.deep).log_softmax(dim=-1)
        said = logs.gather(-1, tokens[..., 1:].unsqueeze(-1)).flatten()[1:]  # after "an"
        assert said.exp().min() > 0.5


def test_the_cell_in_place_of_a_photo_is_the_mean_of_all(tmp_path: Path) -> None:
    cells = np.zeros((2048, 2, 2), np.float16)  # photos of two cells; all is in the last one
    cells[-1] = [[1024, 4096], [3072, 4096]]
    (tmp_path / "grids.f16").write_bytes(cells.tobytes())
    mean = CachedGrids([tmp_path / "grids.f16"], cells.shape).mean()
    item = MeanDataset(mean, 7)[6]
    assert item.image.tolist() == [[1.0, 2.0]] and item.position == 6


def test_a_batch_counts_captions(data: Path) -> None:
    """Those of the text, of which two lines are empty, and those of the photos."""
    about = json.loads((data / "plain" / "captions_train.json").read_text())
    captions = 118 + len(about["annotations"])
    assert newest_state(data / "run")["progress"]["total"] == 5 * -(-captions // 40) + 1


def test_an_interrupted_run_ends_alike(data: Path, tmp_path: Path) -> None:
    whole = data / "run"
    out = Path(shutil.copytree(whole, tmp_path / "run"))
    for path in (out / "finished.json", *(out / "state").glob("step-*.pt")):
        if path.name > "step-000000004.pt" or path.name == "finished.json":
            path.unlink()
    assert [path.name for path in (out / "state").iterdir()] == ["step-000000004.pt"]
    train_here(data / "text.yaml", out, data__root=data)
    assert records(out) == records(whole)
    weights, others = (load_file(one / "last.safetensors") for one in (whole, out))
    assert all(torch.equal(weights[name], others[name]) for name in weights)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("text.gz", "none.txt", "there is no file"),
        ("text.gz", "no.gz", "no.gz is no text in UTF-8, a caption a line"),
        ("text.gz", "empty.txt", "empty.txt has no captions"),
        ("text.gz}", "text.gz, style: loud}", "has no effect without data.styles"),
        ("workers: 0,", "workers: 0, styles: true,", ""),
        (
            "workers: 0, text: [{file: text.gz}]",
            "styles: true, text: [{file: text.gz, style: loud}]",
            "there is no style 'loud': the model has 'plain'",
        ),
        (", text: [{file: text.gz}]", "", "data.text and a stage with text: true need each other"),
        ("text: true, ", "", "data.text and a stage with text: true need each other"),
        ("text: true", "text: true, fine_tune_from: 0", "a stage with text sees no photos"),
        ("text: true", "text: true, self_critical: {}", "a stage with text sees no photos"),
    ],
)
def test_what_cannot_be_learned_from(
    run_main: Run, data: Path, tmp_path: Path, old: str, new: str, said: str
) -> None:
    assert old in RECIPE
    (tmp_path / "text.yaml").write_text(RECIPE.replace(old, new, 1))
    options = ("--data.root", data, "--out", tmp_path / "run", "--max-steps", 1)
    result = run_main("train", tmp_path / "text.yaml", *options)
    assert bool(result.returncode) == bool(said), result.stderr
    assert said in result.stderr and "Traceback" not in result.stderr
