"""What attention is worth: every variant of the decoder trained alike, and put side by side.

What is finished is not done again: a run goes on as `captioner train` does, and what was measured
lies beside its checkpoint.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch

from captioner.checkpoint import Checkpoint, load_checkpoint
from captioner.decoders.decoder import build_decoder
from captioner.errors import ConfigError
from captioner.files import replace_file
from captioner.generation.config import GenerationConfig
from captioner.generation.generate import generate
from captioner.vision.encoder import Encoder, Grid
from captioner.vision.transform import Transform, TransformConfig
from captioner_training.ablation_table import Measures, Row, draw_chart, table_text
from captioner_training.ablation_variants import VARIANTS, decoder_variants
from captioner_training.data.grids import CachedGrids
from captioner_training.data.images import CaptionedImage
from captioner_training.data.reading import read_dataset
from captioner_training.data.recipe_data import read_corpus
from captioner_training.distributed import Processes
from captioner_training.evaluation.bootstrap import summary
from captioner_training.evaluation.boxes import check_boxes, read_boxes
from captioner_training.evaluation.captioned import Captioned
from captioner_training.evaluation.deletion import DeletionTest
from captioner_training.evaluation.grounding import category_grounding
from captioner_training.evaluation.scores import score_tables
from captioner_training.evaluation.split import caption_split, scene_pointing
from captioner_training.precision import settled
from captioner_training.recipe import Recipe
from captioner_training.run_recipe import goes_on, plain, read_note, recipe_there, with_defaults

__all__ = ["Ablation"]

_MEASURES = 2  # how they are taken; the effect of deletion is of all content words since 2


class Train(Protocol):
    """Makes a run, or goes on with it; returns the path of its best checkpoint."""

    def __call__(self, recipe: Recipe, *, out: Path, processes: Processes, shared: Path) -> Path:
        """See captioner_training.train.train."""


class Ablation:
    """The runs of one recipe under one folder.

    Args:
        recipe: of every run, but for its decoder and seed.
        out: holds a folder for each run, and what they share.
        train: makes one run.
        processes: that train together; the main one measures.
        variants: the names of those that are compared.
        seeds: each is a training of every variant; their spread is in the table.
        people: a data set with captions_val.json, its images, and person_boxes_val.json, to see
            whether attention for people is on them.
        deletion: on the captions of how many images the deletion test is made: it takes longest.

    Raises:
        ConfigError: there is no such variant, no seed, or nothing to delete on. The recipe goes on
            from a whole model, which has one decoder, or its sizes do not allow a variant. Or a
            run that is there is another recipe's, or of fewer epochs.
        DataError: the data or the boxes cannot be read, or are not of the same images.

    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        out: Path,
        train: Train,
        processes: Processes,
        variants: Sequence[str] = VARIANTS,
        seeds: Sequence[int] = (1,),
        people: Path | None = None,
        deletion: int = 500,
    ) -> None:
        if unknown := [name for name in variants if name not in VARIANTS]:
            raise ConfigError(f"--variants {', '.join(unknown)}: there are {', '.join(VARIANTS)}")
        if len(set(seeds)) != len(seeds) or not seeds:
            raise ConfigError(f"--seeds {' '.join(map(str, seeds))}: name each seed once")
        if deletion < 1:
            raise ConfigError(f"--deletion {deletion} is below 1")
        if recipe.weights is not None:
            raise ConfigError(
                f"recipe {recipe.name} goes on from {recipe.weights}, whose decoder is one of the "
                "variants: an ablation trains each afresh; set --weights null"
            )
        self.recipe, self._train = recipe, train
        self.out, self.processes, self.variants = out, processes, tuple(variants)
        self._people, self._deletion, self._drawn = people, deletion, recipe.data.scenes is not None
        self._people_images = [] if people is None else _people_images(people)
        corpus = processes.main_first(lambda: read_corpus(recipe, out=self._shared(recipe.seed)))
        with torch.device("meta"):
            grid_dim = Encoder(recipe.encoder).channels()
        self._size = {"grid_dim": grid_dim, "vocabulary_size": len(corpus.vocabulary)}
        self.decoders = decoder_variants(recipe.decoder, **self._size)
        self.recipe = settled(recipe, processes, before=processes.main_first(self._recipe_there))
        self._plan = [(name, *self._run(name, seed)) for seed in seeds for name in self.variants]
        processes.main_first(self._refuse_shorter)

    def run(self) -> str:
        """Train and measure what is not done yet; returns the table, which lies in `out` too.

        Raises:
            CaptionerError: as of training and evaluation.
            KeyboardInterrupt: the same call goes on.

        """
        found: dict[str, list[Measures]] = {name: [] for name in self.variants}
        for number, (name, recipe, folder) in enumerate(self._plan, 1):
            if self.processes.main:
                line = f"{number} of {len(self._plan)}: {name}, seed {recipe.seed}"
                print(line, file=sys.stderr)
            found[name].append(self._train_and_measure(recipe, folder))
        return self.processes.main_alone(lambda: self._side_by_side(found)) or ""

    def _side_by_side(self, found: dict[str, list[Measures]]) -> str:
        times = self._times()
        rows = [Row(name, found[name], times[name]) for name in self.variants]
        text = table_text(rows)
        with replace_file(self.out / "table.md") as file:
            file.write(text.encode())
        draw_chart(rows, self.out / "figure.png")
        return text

    def _run(self, name: str, seed: int) -> tuple[Recipe, Path]:
        recipe = replace(
            self.recipe, name=f"{self.recipe.name}-{name}", decoder=self.decoders[name], seed=seed
        )
        return recipe, self.out / f"{name}-{seed}"

    def _recipe_there(self) -> dict[str, Any] | None:
        """Give the recipe of a run that is there: the others compute as it does."""
        dry = self.recipe.max_steps is not None
        folders = sorted(path for path in self.out.glob("*-*") if path.is_dir())
        return next(filter(None, (recipe_there(folder, dry=dry) for folder in folders)), None)

    def _refuse_shorter(self) -> None:
        """Refuse to lengthen a run, which would not be trained as the others are."""
        for _, recipe, folder in self._plan:
            note = read_note(folder)
            if note and goes_on(note.recipe, recipe, folder, finished=True) == "longer":
                raise ConfigError(
                    f"{folder} has a run of fewer epochs, and an ablation trains every variant "
                    "alike, from its beginning: start with another --out"
                )

    def _shared(self, seed: int) -> Path:
        """Scenes are drawn by the seed of a run; photos are the same for all."""
        return self.out / (f"shared-{seed}" if self._drawn else "shared")

    def _train_and_measure(self, recipe: Recipe, folder: Path) -> Measures:
        path = folder / "measures.json"
        settings = {
            "recipe": plain(recipe),
            "people": str(self._people),
            "deletion": self._deletion,
            "measures": _MEASURES,
        }
        known = _read_json(path)
        there = known.get("asked")
        if isinstance(there, dict) and isinstance(there.get("recipe"), dict):
            there = {**there, "recipe": with_defaults(there["recipe"])}  # of an older version
        if there != settings:
            shared = self._shared(recipe.seed)
            best = self._train(recipe, out=folder, processes=self.processes, shared=shared)

            def measure() -> dict[str, Any]:
                made = {"asked": settings, "found": self._measure(load_checkpoint(best), recipe)}
                _write_json(path, made)
                return made

            known = self.processes.broadcast(self.processes.main_alone(measure))
        measures: Measures = known["found"]
        return measures

    def _measure(self, checkpoint: Checkpoint, recipe: Recipe) -> Measures:
        """Caption in float32, score, and test where the words come from."""
        shared, alone = self._shared(recipe.seed), Processes(device=self.processes.device)
        validation = read_corpus(recipe, out=shared).validation
        exact = torch.autocast(alone.device.type, enabled=False)
        model = checkpoint.model.to(alone.device).eval()
        transform = Transform(checkpoint.transform)

        def captions(
            images: Sequence[CaptionedImage],
            after_batch: Callable[[Grid, Sequence[Captioned]], None] | None = None,
        ) -> list[Captioned]:
            grids = CachedGrids.compute(
                model.encoder,
                images,
                transform,
                folder=shared / "cache",
                processes=alone,
                dtype=torch.float32,
                workers=recipe.data.workers,
            )
            return caption_split(
                model,
                images,
                transform=transform,
                vocabulary=checkpoint.vocabulary,
                config=checkpoint.generation,
                autocast=exact,
                grids=(grids, range(len(images))),
                after_batch=after_batch,
            )

        test = DeletionTest(
            model.decoder,
            vocabulary=checkpoint.vocabulary,
            autocast=exact,
            insertion=False,
            images=self._deletion,
        )
        captioned = captions(validation, test.add)
        references, words = [one.words for one in validation], [one.words for one in captioned]
        scores = summary(score_tables(references, words))
        found = _picked(scores, {"BLEU-4": "BLEU-4", "CIDEr": "CIDEr"})
        if (content := test.content()) is not None:
            found |= _picked(content, {"deletion effect": "effect"})
        if self._drawn:
            boxes = shared / "scenes" / "boxes_val.json"
            right = scene_pointing(captioned, boxes=boxes, transform=transform)
            found["pointing"] = {"value": right}
        if self._people is not None:
            style = checkpoint.generation.style
            shown = captions([replace(one, style=style) for one in self._people_images])
            boxes_of = read_boxes(_people_boxes(self._people), transform)
            grounding = category_grounding(shown, boxes_of, "person")
            if grounding is not None:  # a model that has learned little may speak of nobody
                found |= _picked(grounding, {"on people": "attention", "by chance": "uniform"})
        parameters = sum(parameter.numel() for parameter in model.decoder.parameters())
        found["parameters"] = {"value": float(parameters)}
        return found

    def _times(self, rounds: int = 9) -> dict[str, float]:
        """Time beam search over grids, unless that is done: milliseconds a photo, float32.

        16 grids of 49 cells, beam 5, captions of 12 words, so that every variant says as much; the
        weights make no difference. They are timed in turn, round by round, so that a disturbance
        meets all of them; the median counts.
        """
        path, device, images = self.out / "times.json", self.processes.device, 16
        about = {"device": device.type, "threads": torch.get_num_threads()}
        there = _read_json(path)
        if there.get("about") != about or not {*self.variants} <= there["times"].keys():
            features = torch.randn(images, 49, self._size["grid_dim"], device=device)
            config = GenerationConfig(beam_size=5, minimum_length=12, maximum_length=12)
            times: dict[str, list[float]] = {name: [] for name in self.decoders}
            made = {name: build_decoder(one, **self._size) for name, one in self.decoders.items()}
            for decoder in made.values():
                decoder.to(device).eval().tabulate()
                generate(decoder, features, config)
            for _ in range(rounds):
                for name, decoder in made.items():
                    begin = time.perf_counter()
                    generate(decoder, features, config)  # ends on the CPU: nothing is under way
                    times[name].append(time.perf_counter() - begin)
            medians = {name: 1e3 * statistics.median(one) / images for name, one in times.items()}
            there = {"about": about, "times": medians}
            _write_json(path, there)
        return dict(there["times"])


def _people_boxes(folder: Path) -> Path:
    return folder / "person_boxes_val.json"


def _people_images(folder: Path) -> list[CaptionedImage]:
    """Read photos with boxes of the people in them."""
    boxes = _people_boxes(folder)
    if not boxes.is_file():
        raise ConfigError(f"--people {folder}: there is no {boxes}")
    images = read_dataset(folder, split="val")
    check_boxes(boxes, Transform(TransformConfig()), ids={one.id for one in images})
    return list(images)


def _picked(report: dict[str, Any], names: dict[str, str]) -> Measures:
    """Take some scores of a report by the names that the table gives them."""
    picked: Measures = {}
    for name, theirs in names.items():
        low, high = report["intervals"][theirs]
        picked[name] = {"value": report[theirs], "low": low, "high": high}
    return picked


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # there is none yet, or half of one
        return {}
    return values


def _write_json(path: Path, values: object) -> None:
    with replace_file(path) as file:
        file.write((json.dumps(values, indent=2) + "\n").encode())
