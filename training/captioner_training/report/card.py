"""The model card of a run: its data, initial weights and scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from captioner.checkpoint import Checkpoint
from captioner.errors import DataError
from captioner.hub import is_hub_name
from captioner.model_card import ModelCard, Scores
from captioner_training.evaluation.evaluate import read_report
from captioner_training.recipe import Recipe
from captioner_training.report.measures import SCORES, has_number, main_scores
from captioner_training.run_folder import read_json, read_recipe

_BUNDLED = "checkpoint bundled with Captioner (trained on Flickr8k and COCO, for research use)"
_TREEBANK = "Treebank tokens"


def describe_run(
    checkpoint: Checkpoint,
    folder: Path,
    *,
    repository: str,
    reports: Sequence[Path] = (),
    license: str | None = None,
    data: str | None = None,
) -> ModelCard:
    """Describe a checkpoint by the run that made it, and by reports of `captioner evaluate`.

    Args:
        checkpoint: the model.
        folder: the folder of the checkpoint; it may be the folder of a run.
        repository: OWNER/MODEL.
        reports: report.json files about this checkpoint.
        license: a license identifier of the Hub.
        data: name of the data; None: the names of the recipe's folders.
    """
    note = read_json(folder / "finished.json") or {}
    recipe = read_recipe(note.get("recipe") or read_json(folder / "recipe.json"))
    name = data or (None if recipe is None else _data_name(recipe))
    scores = [_scores_of(path, checkpoint) for path in reports]
    if isinstance(gain := note.get("gain"), Mapping) and recipe is not None and not scores:
        scores = [_final_scores(gain, name or recipe.name, recipe)]
    return ModelCard(
        repository=repository,
        license=license,
        data=name,
        origin=None if recipe is None else _origin(recipe),
        scores=scores,
    )


def _data_name(recipe: Recipe) -> str:
    """Name the training data by their folders, without the paths of this machine."""
    if recipe.data.scenes is not None:
        return "synthetic scenes"
    return ", ".join(dict.fromkeys(map(recipe.data.style_of, recipe.data.train)))


def _origin(recipe: Recipe) -> str:
    if recipe.weights is not None:
        return _weights(recipe.weights)
    names = {"torchvision": "torchvision (ImageNet)", "random": "none, all random"}
    return f"encoder: {names.get(recipe.encoder_weights) or _weights(recipe.encoder_weights)}"


def _weights(name: str) -> str:
    if name == "bundled":
        return _BUNDLED
    return name if is_hub_name(name) and not Path(name).exists() else Path(name).name


def _final_scores(gain: Mapping[str, Any], data: str, recipe: Recipe) -> Scores:
    """Return the gain of a run as scores; see captioner_training.conclusion."""
    intervals = gain.get("intervals") or {}
    return Scores(
        data=data,
        split=gain["split"],
        images=gain["images"],
        scorer=_TREEBANK,
        beam_size=recipe.generation.beam_size,
        values={"CIDEr": gain["after"]},
        intervals={"CIDEr": intervals["after"]} if "after" in intervals else {},
    )


def _scores_of(path: Path, checkpoint: Checkpoint) -> Scores:
    report = read_report(path)
    made_by = report.get("checkpoint") or {}
    if made_by.get("hash") != checkpoint.fingerprint():
        raise DataError(
            f"{path} has the scores of {made_by.get('name', 'captions from a file')}, not of the "
            "checkpoint to upload: evaluate that checkpoint with `captioner evaluate --checkpoint "
            "CHECKPOINT --report DIR`, and name the new report"
        )
    scores, split = main_scores(report), report["split"]
    if not scores:
        raise DataError(f"{path} has no scores: run `captioner evaluate --report` again")
    is_official = "tokenizer" in report.get("pycocoevalcap", {})
    names = [measure.key.partition(".")[2] for measure in SCORES]
    return Scores(
        data=Path(str(report["data"])).stem,
        split=split.get("name", Path(str(report["data"])).stem),
        images=split["images"],
        scorer="pycocoevalcap, PTB tokens" if is_official else _TREEBANK,
        beam_size=report["beam_size"],
        values={name: scores[name] for name in names if has_number(scores, name)},
        intervals={
            name: interval
            for name, interval in (scores.get("intervals") or {}).items()
            if isinstance(interval, list) and None not in interval
        },
    )
