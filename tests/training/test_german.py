"""Another language: drawn scenes with captions in German words."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from captioner.checkpoint import load_checkpoint
from captioner_training.data.scenes import write_scenes
from tests.launcher import Run
from tests.training.runs import records

# Words of the scenes, without the endings of adjectives.
ENGLISH = (
    "a large small red orange yellow green blue purple white black circle square triangle star"
    " heart cross above below left right of"
)
GERMAN = (
    "ein groß klein rot orangefarben gelb grün blau violett weiß schwarz Kreis Quadrat Dreieck"
    " Stern Herz Kreuz über unter links rechts von"
)
WORDS = dict(zip(ENGLISH.split(), GERMAN.split(), strict=True))


def write_german(folder: Path, **splits: int) -> None:
    write_scenes(folder, splits=splits)
    for split in splits:
        path = folder / f"captions_{split}.json"
        content = json.loads(path.read_text())
        for one in content["annotations"]:
            one["caption"] = " ".join(WORDS[word] for word in one["caption"].split())
        path.write_text(json.dumps(content))


@pytest.mark.slow
def test_german_scenes_are_learned_with_capital_letters(run_main: Run, tmp_path: Path) -> None:
    write_german(tmp_path / "data", train=160, val=12, test=12)
    result = run_main(
        "train", "new-language", "--data.root", tmp_path / "data", "--out", tmp_path / "run",
        "--data.lowercase", "false", "--transform.size", 64, "--stages.1.epochs", 4,
        "--stages.1.batch_size", 8, "--stages.1.warmup", 5, "--stages.2.epochs", 1,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    gain = re.search(r"CIDEr ([\d.]+) \[[\d.]+, [\d.]+\] on 12 test photos", result.stderr)
    assert gain is not None and float(gain[1]) > 100, result.stderr
    vocabulary = load_checkpoint(tmp_path / "run").vocabulary  # a run's folder is its best
    assert {"Kreis", "groß", "weiß"} <= {*vocabulary.words}
    assert (vocabulary.tokenizer, vocabulary.lowercase) == ("unicode", False)


@pytest.mark.slow
def test_finetune_on_another_language_prints_a_note_and_gains(
    run_main: Run, tmp_path: Path
) -> None:
    """The penalty for new words also applies to the model that does not know them."""
    write_german(tmp_path / "data", train=24, val=6)
    result = run_main(
        "train", "finetune", "--data.root", tmp_path / "data", "--out", tmp_path / "run",
        "--data.minimum_count", 1, "--stages.1.epochs", 2, "--stages.1.learning_rate", "1e-3",
        "--transform.size", 64,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "for another language use `captioner train new-language`" in result.stderr
    origin, *_ = log = records(tmp_path / "run")
    # Of thirty new words each costs at least log 30 nats where it is only known as <unk>.
    assert origin["validation"]["cross_entropy"] > min(
        one["validation"]["cross_entropy"] for one in log if one["event"] == "epoch"
    )
    assert load_checkpoint(tmp_path / "run").name == "finetune"  # and not the bundled one
    assert "on 6 validation photos (optimistic" in result.stderr
