r"""A training run from top to bottom: `captioner train RECIPE --out DIR`.

    captioner train coco --data.root ~/coco --out runs/coco
    torchrun --nproc-per-node 8 -m captioner train coco --data.root ~/coco --out runs/coco
    torchrun --nnodes 2 --node-rank 0 --master-addr node0 --master-port 29500 --nproc-per-node 8 \
        -m captioner train coco --data.root /shared/coco --out /shared/runs/coco

`_train` and `_train_epoch` are the loop of stages, epochs and steps. A step is in step.py, all that
a run needs to go on after an interruption in state.py, what is logged and said in reporting/.
"""

from __future__ import annotations

from pathlib import Path

from captioner_training.data.recipe_data import read_corpus
from captioner_training.distributed import Processes
from captioner_training.initialization import check_encoder, load_origin
from captioner_training.recipe import Recipe
from captioner_training.reporting.clock import Clock
from captioner_training.run import Run
from captioner_training.run_folder import RunFolder
from captioner_training.stage import StageRun

__all__ = ["train"]


def train(recipe: Recipe, *, out: Path, processes: Processes, shared: Path | None = None) -> Path:
    """Run a recipe, or go on with it, and return the path of the best checkpoint.

    Writes into `out`: best.safetensors (highest CIDEr on validation, of equal ones the lowest
    cross-entropy) and last.safetensors, log.jsonl, recipe.json, finished.json at the end,
    TensorBoard's files where wanted; and until the end state/ (from which the same call goes on,
    after whatever end) and cache/ (grids). Several runs may have a folder `shared` instead for
    grids and drawn scenes; it stays.

    Raises:
        ConfigError: the recipe cannot work, or `out` has the run of another one,
            files of others where this would write, or the weights that it goes on from.
        CaptionerError: data, weights or output are not as the recipe needs them.
        KeyboardInterrupt: after Ctrl-C or SIGTERM; a state is saved first.

    """
    processes.main_first(lambda: check_encoder(recipe))
    with RunFolder.open(recipe, out, processes, shared=shared) as folder:
        origin = load_origin(recipe)
        known = origin.vocabulary if origin else None
        corpus = processes.main_first(lambda: read_corpus(recipe, out=folder.shared, known=known))
        with Run.begin(folder, corpus, origin) as run:
            if not run.state.progress.finished:
                _train(run)
    return folder.best


def _train(run: Run) -> None:
    """Go through what is left of the stages and epochs."""
    state = run.state
    while state.progress.stage < len(run.recipe.stages):
        stage = run.begin_stage()
        while not state.stage_is_over(stage.config):
            with run.interrupts.deferred():
                _train_epoch(run, stage)
        state.end_stage()
        run.save()
    run.finish()


def _train_epoch(run: Run, stage: StageRun) -> None:
    """Take the steps that are left of an epoch, and score the model."""
    state, report, progress = run.state, run.report, run.state.progress
    clock = Clock(processes=run.processes.world)
    left = stage.batches.epoch(
        progress.epoch, skip=progress.step, most=state.steps - progress.taken
    )
    with report.epoch_bar(stage.config):
        for parts in clock.waited(left):
            values = stage.step(parts)
            state.count_step(values)
            report.step(values, clock)
            run.save_if_due(clock)
    clock.stop()
    means = state.means().tolist()
    report.refuse_diverged(means)
    with state.averaged():
        scores, captioned = run.validate(stage)
        best = state.count_epoch(scores["CIDEr"], scores["cross_entropy"])
        run.keep_checkpoint(scores, best=best)
    report.epoch(means, scores, captioned, clock=clock, stage=stage.config)
    if not state.stage_is_over(stage.config):
        run.save()
        run.stop_if_asked()
