"""An ablation from top to bottom: train every variant alike, measure each, put them side by side.

What is finished is not done again: a run goes on as `captioner train` does, and what was measured
lies beside its checkpoint.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch

from captioner.checkpoint import Checkpoint, load_checkpoint
from captioner.decoders.build import build_decoder
from captioner.decoders.config import DecoderConfig
from captioner.encoder import Encoder
from captioner.errors import ConfigError
from captioner.files import replace_file
from captioner_training.ablation.chart import draw_chart
from captioner_training.ablation.config import AblationConfig
from captioner_training.ablation.measures import Examination, People
from captioner_training.ablation.table import Measures, Row, table_text
from captioner_training.ablation.times import decoding_times
from captioner_training.ablation.variants import decoder_variants
from captioner_training.data.corpus import Corpus
from captioner_training.data.recipe_data import read_corpus
from captioner_training.machinery.processes import Processes
from captioner_training.precision import settled
from captioner_training.recipe import Recipe
from captioner_training.run_recipe import goes_on, plain, read_note, recipe_there, with_defaults

__all__ = ["Ablation"]

_MEASURES = 2  # how they are taken; the effect of deletion is of all content words since 2


class Train(Protocol):
    """Makes a run, and returns the path of its best checkpoint."""

    def __call__(self, recipe: Recipe, *, out: Path, processes: Processes, shared: Path) -> Path:
        """Train, or go on; see captioner_training.train.train."""


class Ablation:
    """The runs of one recipe under one folder.

    Args:
        recipe: of every run, but for its decoder and seed.
        config: what is compared.
        out: holds a folder for each run, and what they share.
        train: makes one run; see captioner_training.train.
        processes: that train together; the main one measures.

    Raises:
        ConfigError: the recipe goes on from a whole model, which has one decoder, or its sizes do
            not allow a variant. Or a run that is there is another recipe's, or of fewer epochs.

    """

    def __init__(
        self,
        recipe: Recipe,
        config: AblationConfig,
        *,
        out: Path,
        train: Train,
        processes: Processes,
    ) -> None:
        if recipe.weights is not None:
            raise ConfigError(
                f"recipe {recipe.name} goes on from {recipe.weights}, whose decoder is one of the "
                "variants: an ablation trains each afresh; set --weights null"
            )
        self.recipe, self.config, self.out, self.processes = recipe, config, out, processes
        self._train = train
        self.people = None if config.people is None else People(config.people)
        self.corpus: Corpus = processes.main_first(lambda: self._corpus(recipe.seed))
        with torch.device("meta"):
            self._grid_dim = Encoder(recipe.encoder).channels()
        self.decoders: dict[str, DecoderConfig] = decoder_variants(
            recipe.decoder, grid_dim=self._grid_dim, vocabulary_size=len(self.corpus.vocabulary)
        )
        self._plan = [(name, seed) for seed in config.seeds for name in config.variants]
        self.recipe = settled(recipe, processes, before=processes.main_first(self._before))
        processes.main_first(self._refuse_shorter)

    def run(self) -> str:
        """Train and measure what is not done yet; returns the table, which lies in `out` too.

        Raises:
            CaptionerError: as of training and evaluation.
            KeyboardInterrupt: the same call goes on.

        """
        found: dict[str, list[Measures]] = {name: [] for name in self.config.variants}
        for number, (name, seed) in enumerate(self._plan, 1):
            if self.processes.main:
                print(f"{number} of {len(self._plan)}: {name}, seed {seed}", file=sys.stderr)
            found[name].append(self._one(name, seed))
        return self.processes.main_alone(lambda: self._side_by_side(found)) or ""

    def _side_by_side(self, found: dict[str, list[Measures]]) -> str:
        times = self._times()
        rows = [Row(name, found[name], times[name]) for name in self.config.variants]
        text = table_text(rows)
        _write(self.out / "table.md", text)
        draw_chart(rows, self.out / "figure.png")
        return text

    def _planned(self, name: str, seed: int) -> tuple[Recipe, Path]:
        """Give the recipe of a variant with a seed, and the folder of its run."""
        recipe = replace(
            self.recipe, name=f"{self.recipe.name}-{name}", decoder=self.decoders[name], seed=seed
        )
        return recipe, self.out / f"{name}-{seed}"

    def _before(self) -> dict[str, Any] | None:
        """Give the recipe of a run that is there: the others compute as it does."""
        dry = self.recipe.max_steps is not None
        folders = sorted(path for path in self.out.glob("*-*") if path.is_dir())
        there = (recipe_there(folder, dry=dry) for folder in folders)
        return next((recipe for recipe in there if recipe), None)

    def _refuse_shorter(self) -> None:
        """Refuse to lengthen a run, which would not be trained as the others are.

        Raises:
            ConfigError: there is one of fewer epochs, or of another recipe.

        """
        for name, seed in self._plan:
            recipe, folder = self._planned(name, seed)
            note = read_note(folder)
            if note and goes_on(note.recipe, recipe, folder, finished=True) == "longer":
                raise ConfigError(
                    f"{folder} has a run of fewer epochs, and an ablation trains every variant "
                    "alike, from its beginning: start with another --out"
                )

    def _one(self, name: str, seed: int) -> Measures:
        """Train one variant with one seed, and measure it."""
        recipe, folder = self._planned(name, seed)
        path, asked = folder / "measures.json", self._asked(recipe)
        if _with_defaults((known := _read(path)).get("asked")) != asked:
            shared = self._shared(seed)
            best = self._train(recipe, out=folder, processes=self.processes, shared=shared)

            def work() -> dict[str, Any]:
                made = {"asked": asked, "found": self._measure(load_checkpoint(best), seed)}
                _write(path, json.dumps(made, indent=2) + "\n")
                return made

            known = self.processes.broadcast(self.processes.main_alone(work))
        measures: Measures = known["found"]
        return measures

    def _shared(self, seed: int) -> Path:
        """Scenes are drawn by the seed of a run; photos are the same for all."""
        return self.out / ("shared" if self.recipe.data.scenes is None else f"shared-{seed}")

    def _corpus(self, seed: int) -> Corpus:
        return read_corpus(replace(self.recipe, seed=seed), out=self._shared(seed))

    def _asked(self, recipe: Recipe) -> dict[str, Any]:
        return {
            "recipe": plain(recipe),
            "people": str(self.config.people),
            "deletion": self.config.deletion,
            "measures": _MEASURES,
        }

    def _measure(self, checkpoint: Checkpoint, seed: int) -> Measures:
        shared, drawn = self._shared(seed), self.recipe.data.scenes is not None
        examination = Examination(
            images=(self._corpus(seed) if drawn else self.corpus).validation,
            scenes=shared / "scenes" / "boxes_val.json" if drawn else None,
            people=self.people,
            deletion=self.config.deletion,
            cache=shared / "cache",
            workers=self.recipe.data.workers,
        )
        return examination.measure(checkpoint, Processes(device=self.processes.device))

    def _times(self) -> dict[str, float]:
        """Time all variants side by side, unless that is done; the weights make no difference."""
        path, device = self.out / "times.json", self.processes.device
        about = {"device": device.type, "threads": torch.get_num_threads()}
        there = _read(path)
        if there.get("about") != about or not {*self.config.variants} <= there["times"].keys():
            size = {"grid_dim": self._grid_dim, "vocabulary_size": len(self.corpus.vocabulary)}
            made = {name: build_decoder(self.decoders[name], **size) for name in self.decoders}
            times = decoding_times(made, grid_dim=self._grid_dim, device=device)
            there = {"about": about, "times": times}
            _write(path, json.dumps(there, indent=2) + "\n")
        return dict(there["times"])


def _with_defaults(asked: Any) -> Any:
    """Give what was asked of an older version the fields that its recipe lacks."""
    if not isinstance(asked, dict) or not isinstance(asked.get("recipe"), dict):
        return asked
    return {**asked, "recipe": with_defaults(asked["recipe"])}


def _read(path: Path) -> dict[str, Any]:
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # there is none yet, or half of one
        return {}
    return values


def _write(path: Path, text: str) -> None:
    with replace_file(path) as file:
        file.write(text.encode())
