"""Another language: drawn scenes with German captions, learned from nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from captioner.checkpoint import load_checkpoint
from captioner_training.data.scenes import COLORS, RELATIONS, SHAPES, write_scenes
from tests.launcher import Run
from tests.training.runs import records

# The scenes' grammar in German: nouns with their gender, adjectives that agree, datives.
NOUNS = {
    "circle": ("Kreis", "m"), "square": ("Quadrat", "n"), "triangle": ("Dreieck", "n"),
    "star": ("Stern", "m"), "heart": ("Herz", "n"), "cross": ("Kreuz", "n"),
}  # fmt: skip
ADJECTIVES = {
    "red": "rot", "orange": "orangefarben", "yellow": "gelb", "green": "grün", "blue": "blau",
    "purple": "violett", "white": "weiß", "black": "schwarz", "large": "groß", "small": "klein",
}  # fmt: skip
PLACES = {"above": "über", "below": "unter", "left of": "links von", "right of": "rechts von"}
NOMINATIVE = {"m": "er", "n": "es"}
ONE = r"a (\w+) (\w+) (\w+)"


def german(caption: str) -> str:
    found = re.fullmatch(rf"{ONE} (.+) {ONE}", caption)
    assert found is not None
    size, color, shape, place, *second = found.groups()
    noun, gender = NOUNS[shape]
    ending = NOMINATIVE[gender]
    first = f"ein {ADJECTIVES[size]}{ending} {ADJECTIVES[color]}{ending} {noun}"
    other = f"einem {ADJECTIVES[second[0]]}en {ADJECTIVES[second[1]]}en {NOUNS[second[2]][0]}"
    return f"{first} {PLACES[place]} {other}"


def write_german(folder: Path, **splits: int) -> None:
    write_scenes(folder, splits=splits)
    for split in splits:
        path = folder / f"captions_{split}.json"
        content = json.loads(path.read_text())
        for one in content["annotations"]:
            one["caption"] = german(one["caption"])
        path.write_text(json.dumps(content))


def test_the_grammar_agrees() -> None:
    assert NOUNS.keys() == {*SHAPES} and PLACES.keys() == {*RELATIONS}
    assert {*COLORS} <= ADJECTIVES.keys()
    assert german("a large red circle above a small blue square") == (
        "ein großer roter Kreis über einem kleinen blauen Quadrat"
    )


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
    assert {"Kreis", "großer", "großes", "weißen"} <= {*vocabulary.words}
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
