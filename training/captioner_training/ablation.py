"""Ablation of attention: train every decoder variant in the same way and compare them in a table.

Finished runs and measurements are reused, so the same command resumes an interrupted ablation.
"""

from __future__ import annotations

import statistics
import sys
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from captioner.checkpoint import Checkpoint, load_checkpoint
from captioner.errors import ConfigError
from captioner.files import replace_file
from captioner.inference.device import best_dtype
from captioner.model.config import DecoderConfig
from captioner.model.decoder import build_decoder
from captioner.model.encoder import Encoder
from captioner.model.positions import POSITIONS
from captioner.vision.transform import Transform
from captioner_training.data.grids import CachedGrids
from captioner_training.data.reading import read_corpus
from captioner_training.distributed import Processes
from captioner_training.evaluation.bootstrap import summary
from captioner_training.evaluation.deletion import DeletionTest
from captioner_training.evaluation.scores import score_tables
from captioner_training.evaluation.split import caption_split, scene_pointing
from captioner_training.recipe import Recipe
from captioner_training.run_folder import plain, read_json, write_json

_SCORES = ("none", "additive", "multiplicative", "dot", "scaled_dot")
_QUERIES: tuple[Literal["previous", "current"], ...] = ("previous", "current")
VARIANTS = (
    *(f"{score}-{query}" for query in _QUERIES for score in (*_SCORES, "heads")),
    *(f"{positions}-previous" for positions in POSITIONS[1:]),
    "top_down",
    "transformer",
)
"""Names of the variants: SCORE-QUERY for the LSTM decoder (`heads` is scaled_dot with four heads),
POSITIONS-previous for its additive attention with positions of the cells, and the other decoders.
"""

_HEADS = 4
_STEP = 4  # sine positions over two axes need a transformer width in multiples of four

COLUMNS = {"BLEU-4": 1, "CIDEr": 1, "pointing": 1, "deletion effect": 3}
"""The measures in the table, with the number of digits of each."""

Measures = dict[str, dict[str, float]]
"""The measures of a run by name: a `value`, and `low` and `high` if it has a 95 % interval."""


def decoder_variants(
    base: DecoderConfig, *, grid_dim: int, vocabulary_size: int
) -> dict[str, DecoderConfig]:
    """Return the configuration of every variant, by its name in VARIANTS.

    Attention values have the size of the hidden state, which `dot` and several heads need. The
    transformer has about as many parameters as `additive-previous`.

    Args:
        base: the configuration whose sizes and dropout all variants have.
        grid_dim: D, the number of features of a grid cell.
        vocabulary_size: number of words and special tokens.

    Raises ConfigError: the sizes do not allow one of the variants.
    """
    base = replace(
        base, kind="lstm", score="additive", heads=1, query="previous", positions="none",
        value_dim=base.hidden_dim,
    )  # fmt: skip
    variants: dict[str, DecoderConfig] = {}
    for query in _QUERIES:
        for score in _SCORES:
            variants[f"{score}-{query}"] = replace(base, score=score, query=query)
        variants[f"heads-{query}"] = replace(base, score="scaled_dot", heads=_HEADS, query=query)
    for positions in POSITIONS[1:]:
        variants[f"{positions}-previous"] = replace(base, positions=positions)
    variants["top_down"] = replace(base, kind="top_down")
    size = {"grid_dim": grid_dim, "vocabulary_size": vocabulary_size}
    parameters = count_parameters(variants["additive-previous"], **size)
    variants["transformer"] = equal_transformer(base, parameters=parameters, **size)
    return variants


def count_parameters(config: DecoderConfig, *, grid_dim: int, vocabulary_size: int) -> int:
    """Count the parameters of a decoder without allocating them."""
    with torch.device("meta"):
        decoder = build_decoder(config, grid_dim=grid_dim, vocabulary_size=vocabulary_size)
    return sum(parameter.numel() for parameter in decoder.parameters())


def equal_transformer(
    base: DecoderConfig, *, parameters: int, grid_dim: int, vocabulary_size: int
) -> DecoderConfig:
    """Return the transformer whose number of parameters is nearest to the given one.

    It has four heads, sine positions, and the layers, attention and embedding of `base`.

    Raises ConfigError: even the narrowest transformer has more parameters.
    """
    base = replace(
        base, kind="transformer", score="scaled_dot", heads=_HEADS, query="previous",
        positions="sine", value_dim=None,
    )  # fmt: skip

    def size(width: int) -> int:
        config = replace(base, hidden_dim=width)
        return count_parameters(config, grid_dim=grid_dim, vocabulary_size=vocabulary_size)

    widths = range(_STEP, 2**16, _STEP)
    if size(_STEP) > parameters:
        raise ConfigError(
            f"no transformer with {base.layers} layers has as few as {parameters:,} parameters: "
            "lower decoder.layers or raise decoder.hidden_dim"
        )
    place = bisect_left(widths, parameters, key=size)
    near = widths[max(place - 1, 0) : place + 1]
    return replace(base, hidden_dim=min(near, key=lambda width: abs(size(width) - parameters)))


class Train(Protocol):
    """A function that trains a recipe in the folder `out`."""

    def __call__(self, recipe: Recipe, *, out: Path, processes: Processes, shared: Path) -> Path:
        """Train and return the path of the best checkpoint."""


class Ablation:
    """Trains and measures the variants of a recipe. Only the main process measures.

    Args:
        recipe: the recipe of every run; its decoder and seed are replaced.
        out: the output folder, with a folder for each run, and one for shared data and grids.
        processes: the processes of the runs.
        train: trains one run, such as captioner_training.train.train with `validate` bound.
        variants: names of the variants to compare.
        seeds: every variant is trained once per seed.
        deletion: number of images for the deletion test, the slowest measure.

    Raises:
        ConfigError: a variant is unknown, a seed is repeated or missing, there is no image for the
            deletion test, the recipe starts from a whole model, or its sizes do not allow a
            variant.
        DataError: the data cannot be read.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        out: Path,
        processes: Processes,
        train: Train,
        variants: Sequence[str] = VARIANTS,
        seeds: Sequence[int] = (1,),
        deletion: int = 500,
    ) -> None:
        if unknown := [name for name in variants if name not in VARIANTS]:
            raise ConfigError(f"--variants {', '.join(unknown)}: choose from {', '.join(VARIANTS)}")
        if len(set(seeds)) != len(seeds) or not seeds:
            raise ConfigError(f"--seeds {' '.join(map(str, seeds))}: use each seed once")
        if deletion < 1:
            raise ConfigError(f"--deletion is {deletion}; it must be at least 1")
        if recipe.weights is not None:
            raise ConfigError(
                f"recipe {recipe.name} starts from {recipe.weights}, but an ablation trains every "
                "decoder from scratch: set --weights null"
            )
        self.out, self.processes, self.variants, self.seeds = out, processes, variants, seeds
        self._train, self._deletion = train, deletion
        self._has_scenes = recipe.data.scenes is not None
        corpus = read_corpus(recipe, out=self._shared(recipe.seed))
        with torch.device("meta"):
            grid_dim = Encoder(recipe.encoder).channels()
        self.decoders = decoder_variants(
            recipe.decoder, grid_dim=grid_dim, vocabulary_size=len(corpus.vocabulary)
        )
        self.recipe = replace(recipe, precision=_precision(recipe, out, processes.device))

    def run(self) -> str:
        """Train and measure the missing runs; return the table, which is also written to `out`.

        Raises:
            CaptionerError: from training and evaluation.
            KeyboardInterrupt: the run was interrupted; the same call resumes it.
        """
        runs: dict[str, list[Measures]] = {name: [] for name in self.variants}
        for seed in self.seeds:
            for name in self.variants:
                if self.processes.main:
                    print(f"{name}, seed {seed}", file=sys.stderr)
                runs[name].append(self._train_and_measure(name, seed))

        def write() -> str:
            text = table_text(runs)
            with replace_file(self.out / "table.md") as file:
                file.write(text.encode())
            return text

        return self.processes.main_alone(write) or ""

    def _shared(self, seed: int) -> Path:
        """Return the folder that runs share. Runs on scenes share it only if seeds are equal."""
        return self.out / (f"shared-{seed}" if self._has_scenes else "shared")

    def _train_and_measure(self, name: str, seed: int) -> Measures:
        folder = self.out / f"{name}-{seed}"
        recipe = replace(
            self.recipe, name=f"{self.recipe.name}-{name}", decoder=self.decoders[name], seed=seed
        )
        settings = {"recipe": plain(recipe), "deletion": self._deletion}
        earlier = read_json(folder / "measures.json") or {}
        if earlier.get("settings") == settings:
            measures: Measures = earlier["measures"]
            return measures
        best = self._train(recipe, out=folder, processes=self.processes, shared=self._shared(seed))

        def measure() -> Measures:
            measures = self._measure(load_checkpoint(best), recipe)
            write_json(folder / "measures.json", {"settings": settings, "measures": measures})
            return measures

        return self.processes.broadcast(self.processes.main_alone(measure))

    def _measure(self, checkpoint: Checkpoint, recipe: Recipe) -> Measures:
        """Caption the validation split in float32, score it and run the deletion test."""
        shared, alone = self._shared(recipe.seed), Processes(device=self.processes.device)
        images = read_corpus(recipe, out=shared).validation
        exact = torch.autocast(alone.device.type, enabled=False)
        model, transform = checkpoint.model.to(alone.device).eval(), Transform(checkpoint.transform)
        grids = CachedGrids.compute(
            model.encoder,
            images,
            transform,
            folder=shared / "cache",
            processes=alone,
            dtype=torch.float32,
            workers=recipe.data.workers,
        )
        test = DeletionTest(
            model.decoder,
            vocabulary=checkpoint.vocabulary,
            autocast=exact,
            insertion=False,
            images=self._deletion,
        )
        captioned = caption_split(
            checkpoint,
            images,
            autocast=exact,
            grids=(grids, range(len(images))),
            after_batch=test.add,
        )
        references = [image.words for image in images]
        scores = summary(score_tables(references, [caption.words for caption in captioned]))
        measures = {name: _measure_of(scores, name) for name in ("BLEU-4", "CIDEr")}
        if (content := test.content()) is not None:
            measures["deletion effect"] = _measure_of(content, "effect")
        if self._has_scenes:
            boxes = shared / "scenes" / "boxes_val.json"
            pointing = scene_pointing(captioned, boxes=boxes, transform=transform)
            measures["pointing"] = {"value": pointing}
        parameters = sum(parameter.numel() for parameter in model.decoder.parameters())
        measures["parameters"] = {"value": float(parameters)}
        return measures


def _precision(recipe: Recipe, out: Path, device: torch.device) -> Any:
    """Return the precision of earlier runs; without any, the best one for the device."""
    if recipe.precision != "auto":
        return recipe.precision
    existing = [read_json(path) or {} for path in sorted(out.glob("*/recipe.json"))]
    if existing and (precision := existing[0].get("precision")):
        return precision
    return "bfloat16" if best_dtype(device)[0] is torch.bfloat16 else "float32"


def _measure_of(report: Mapping[str, Any], name: str) -> dict[str, float]:
    low, high = report["intervals"][name]
    return {"value": report[name], "low": low, "high": high}


def table_text(runs: Mapping[str, Sequence[Measures]]) -> str:
    """Return the Markdown table of variants, given the measures of one run per seed."""
    measured = {name for measures in runs.values() for run in measures for name in run}
    shown = [name for name in COLUMNS if name in measured]
    head = ["variant", *shown, "parameters"]
    lines = [_line(head), _line(["---"] * len(head))]
    for variant, measures in runs.items():
        cells = [_cell([run[name] for run in measures if name in run], name) for name in shown]
        parameters = measures[0]["parameters"]["value"] / 1e6
        lines.append(_line([variant, *cells, f"{parameters:.2f} M"]))
    seeds = max(len(measures) for measures in runs.values())
    spread = f"the range of {seeds} seeds" if seeds > 1 else "95 % intervals over images"
    return "\n".join([*lines, "", f"In brackets: {spread}."]) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(measures: Sequence[Mapping[str, float]], name: str) -> str:
    """Return the mean of several seeds with its range, or one value with its interval."""
    if not measures:
        return ""
    values = [measure["value"] for measure in measures]
    low, high = min(values), max(values)
    if len(values) == 1:
        low, high = (measures[0].get(end, values[0]) for end in ("low", "high"))
    mean, least, most = (f"{x:.{COLUMNS[name]}f}" for x in (statistics.fmean(values), low, high))
    return mean if least == most else f"{mean} ({least} to {most})"
