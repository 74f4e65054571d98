"""A training run from top to bottom: `captioner train RECIPE --out DIR`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from captioner.checkpoint import Checkpoint
from captioner.model import CaptionModel
from captioner_training.build import Data, build_data, build_model
from captioner_training.machinery.processes import Processes
from captioner_training.recipe import Recipe
from captioner_training.run import Run
from captioner_training.stage import StageRun

__all__ = ["train"]


def train(recipe: Recipe, *, out: Path, processes: Processes) -> Path:
    """Run a recipe, or go on with it, and return the path of the best checkpoint.

    Writes into `out`: best.safetensors (highest CIDEr on validation) and last.safetensors,
    log.jsonl, recipe.json, state/ (from which the same call goes on, after whatever end), cached
    grids, and TensorBoard's files.

    Raises:
        ConfigError: `out` has the run of another recipe.
        CaptionerError: data, weights or output are not as the recipe needs them.

    """
    with Run.open(recipe, out, processes) as run:
        if run.progress.finished:
            run.say(f"this run is finished: {out / 'best.safetensors'} is its best checkpoint")
            return out / "best.safetensors"
        torch.backends.cudnn.benchmark = True  # every image has the same size
        torch.manual_seed(recipe.seed)
        data = _data(run)
        model = build_model(recipe, data.vocabulary).to(processes.device)
        model.encoder.to(memory_format=torch.channels_last)
        if recipe.compile:
            model.encoder.compile()
        torch.manual_seed(recipe.seed + 7919 * processes.rank)  # each drops out other units
        run.restore_model(model, data)
        for number in range(run.progress.stage, len(recipe.stages)):
            if run.done and run.progress.step == 0:  # the last epoch has been validated
                break
            model.encoder.fine_tune(from_stage=recipe.stages[number].fine_tune_from)
            _run_stage(run, StageRun(run, number, data=data, model=model), data, model)
        run.finish(model)
    return out / "best.safetensors"


def _data(run: Run) -> Data:
    """Read the data; drawn scenes are written by one process first."""
    if run.processes.main:
        data = build_data(run.recipe, out=run.out)
    run.processes.wait()
    if not run.processes.main:
        data = build_data(run.recipe, out=run.out)
    run.say(
        f"{len(data.train):,} training images, {len(data.validation):,} validation images, "
        f"{len(data.vocabulary):,} words"
    )
    return data


def _run_stage(run: Run, stage: StageRun, data: Data, model: CaptionModel) -> None:
    """Train for the epochs that are left of a stage, keeping the checkpoints."""
    progress = run.progress
    run.restore_stage(stage.engine)
    patience = stage.stage.patience
    while progress.epoch < stage.stage.epochs:
        result = stage.train_epoch()
        with stage.engine.average.applied():
            scores = stage.validate()
            progress.stale = 0 if scores["CIDEr"] > progress.stage_best else progress.stale + 1
            progress.stage_best = max(progress.stage_best, scores["CIDEr"])
            _keep(run, data, model, scores)
        stage.report(result, scores)
        progress.epoch, progress.step = progress.epoch + 1, 0
        if run.done or (patience is not None and progress.stale >= patience):
            if not run.done and progress.epoch < stage.stage.epochs:
                run.say(f"no better CIDEr for {progress.stale} epochs: the stage ends here")
            break
        if progress.epoch < stage.stage.epochs:
            run.save(model, stage.engine)
    progress.stage, progress.epoch, progress.step = progress.stage + 1, 0, 0
    progress.stage_best, progress.stale = -1.0, 0
    run.save(model, None)


def _keep(run: Run, data: Data, model: CaptionModel, scores: dict[str, Any]) -> None:
    """Write last.safetensors, and best.safetensors where it is the best."""
    best = scores["CIDEr"] > run.progress.best
    run.progress.best = max(run.progress.best, scores["CIDEr"])
    if not run.processes.main:
        return
    checkpoint = Checkpoint(
        model=model,
        vocabulary=data.vocabulary,
        transform=run.recipe.transform,
        name=run.recipe.name,
        metrics=scores,
        generation=run.recipe.generation,
    )
    checkpoint.save(run.out / "last.safetensors")
    if best:
        checkpoint.save(run.out / "best.safetensors")
