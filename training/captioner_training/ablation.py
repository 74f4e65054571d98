"""What attention is worth: every variant of the decoder trained alike, and put side by side.

What is finished is not done again: a run goes on as `captioner train` does, and what was measured
lies beside its checkpoint.
"""

from __future__ import annotations

import statistics
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from captioner.attention.positions import POSITIONS
from captioner.checkpoint import Checkpoint, load_checkpoint
from captioner.decoders.config import DecoderConfig
from captioner.decoders.decoder import build_decoder
from captioner.device import best_dtype
from captioner.errors import ConfigError
from captioner.files import replace_file
from captioner.generation.config import GenerationConfig
from captioner.generation.generate import generate
from captioner.vision.encoder import Encoder, Grid
from captioner.vision.transform import Transform, TransformConfig
from captioner_training.ablation_table import Measures, Row, draw_chart, table_text
from captioner_training.data.grids import CachedGrids
from captioner_training.data.images import CaptionedImage
from captioner_training.data.reading import read_corpus, read_dataset
from captioner_training.distributed import Processes
from captioner_training.evaluation.bootstrap import summary
from captioner_training.evaluation.boxes import check_boxes, read_boxes
from captioner_training.evaluation.captioned import Captioned
from captioner_training.evaluation.deletion import DeletionTest
from captioner_training.evaluation.grounding import category_grounding
from captioner_training.evaluation.scores import score_tables
from captioner_training.evaluation.split import caption_split, scene_pointing
from captioner_training.recipe import Recipe
from captioner_training.state import plain, read_json, write_json

__all__ = ["VARIANTS", "Ablation", "count_parameters", "decoder_variants", "equal_transformer"]

_SCORES = ("none", "additive", "multiplicative", "dot", "scaled_dot")
_QUERIES: tuple[Literal["previous", "current"], ...] = ("previous", "current")
VARIANTS = (
    *(f"{score}-{query}" for query in _QUERIES for score in (*_SCORES, "heads")),
    *(f"{positions}-previous" for positions in POSITIONS[1:]),
    "top_down",
    "transformer",
)
"""By score and query of the lstm (`heads`: scaled_dot with four of them), then `additive` with the
positions of cells, and the other kinds."""

_HEADS = 4  # of the variants with several
_STEP = 4  # a transformer's width is a multiple: sine positions over two axes come in fours


def decoder_variants(
    base: DecoderConfig, *, grid_dim: int, vocabulary_size: int
) -> dict[str, DecoderConfig]:
    """Make every variant of a decoder, by its name in VARIANTS.

    What is not varied is as in `base`; values have the length of the hidden state in all of them,
    which `dot` and several heads need. The transformer is made as wide as gives it the parameters
    of `additive-previous`.

    Args:
        base: gives sizes and dropout.
        grid_dim: D, the features of a grid cell.
        vocabulary_size: words and special tokens.

    Raises ConfigError: the sizes do not allow one of the variants.
    """
    base = replace(
        base, kind="lstm", score="additive", heads=1, query="previous", positions="none",
        value_dim=base.hidden_dim,
    )  # fmt: skip
    found: dict[str, DecoderConfig] = {}
    for query in _QUERIES:
        for score in _SCORES:
            found[f"{score}-{query}"] = replace(base, score=score, query=query)
        found[f"heads-{query}"] = replace(base, score="scaled_dot", heads=_HEADS, query=query)
    for positions in POSITIONS[1:]:
        found[f"{positions}-previous"] = replace(base, positions=positions)
    found["top_down"] = replace(base, kind="top_down")
    size = {"grid_dim": grid_dim, "vocabulary_size": vocabulary_size}
    wanted = count_parameters(found["additive-previous"], **size)
    found["transformer"] = equal_transformer(base, parameters=wanted, **size)
    return found


def count_parameters(config: DecoderConfig, *, grid_dim: int, vocabulary_size: int) -> int:
    """Count the parameters of a decoder without making them."""
    with torch.device("meta"):
        decoder = build_decoder(config, grid_dim=grid_dim, vocabulary_size=vocabulary_size)
    return sum(parameter.numel() for parameter in decoder.parameters())


def equal_transformer(
    base: DecoderConfig, *, parameters: int, grid_dim: int, vocabulary_size: int
) -> DecoderConfig:
    """Make the transformer whose width brings it nearest to so many parameters.

    It has four heads, sine positions, and the layers, attention and embedding of `base`.

    Raises ConfigError: even the narrowest has more.
    """
    base = replace(
        base, kind="transformer", score="scaled_dot", heads=_HEADS, query="previous",
        positions="sine", value_dim=None,
    )  # fmt: skip

    def sized(width: int) -> int:
        config = replace(base, hidden_dim=width)
        return count_parameters(config, grid_dim=grid_dim, vocabulary_size=vocabulary_size)

    widths = range(_STEP, 2**16, _STEP)  # the number of parameters grows with the width
    if sized(_STEP) > parameters:
        raise ConfigError(
            f"no transformer has as few as {parameters:,} parameters with {base.layers} layers: "
            "lower decoder.layers, or raise decoder.hidden_dim"
        )
    place = bisect_left(widths, parameters, key=sized)
    near = widths[max(place - 1, 0) : place + 1]
    return replace(base, hidden_dim=min(near, key=lambda width: abs(sized(width) - parameters)))


class Ablation:
    """The runs of one recipe under one folder, all processes together; the main one measures.

    Args:
        recipe: of every run, but for its decoder and seed.
        out: holds a folder for each run, and what they share.
        processes: that train together.
        train: makes one run, as captioner_training.train does.
        variants: the names of those that are compared.
        seeds: each is a training of every variant; their spread is in the table.
        people: a data set with captions_val.json, its images, and person_boxes_val.json, to see
            whether attention for people is on them.
        deletion: on the captions of how many images the deletion test is made: it takes longest.

    Raises:
        ConfigError: there is no such variant, no seed, or nothing to delete on. The recipe goes on
            from a whole model, which has one decoder, or its sizes do not allow a variant.
        DataError: the data or the boxes cannot be read, or are not of the same images.
    """

    def __init__(
        self, recipe: Recipe, *, out: Path, processes: Processes, train: Callable[..., Path],
        variants: Sequence[str] = VARIANTS, seeds: Sequence[int] = (1,),
        people: Path | None = None, deletion: int = 500,
    ) -> None:  # fmt: skip
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
        self.out, self.processes, self.variants, self.seeds = out, processes, variants, seeds
        self._train = train
        self._people, self._deletion, self._drawn = people, deletion, recipe.data.scenes is not None
        self._people_images = [] if people is None else _people_images(people)
        corpus = read_corpus(recipe, out=self._shared(recipe.seed))
        with torch.device("meta"):
            grid_dim = Encoder(recipe.encoder).channels()
        self._size = {"grid_dim": grid_dim, "vocabulary_size": len(corpus.vocabulary)}
        self.decoders = decoder_variants(recipe.decoder, **self._size)
        # The runs that are there have settled in which precision all of them compute. Where there
        # are none it is settled here: what was measured is known by its recipe.
        noted = [read_json(path) or {} for path in sorted(out.glob("*/recipe.json"))]
        if recipe.precision == "auto":
            fast = best_dtype(processes.device)[0] is torch.bfloat16
            settled = noted[0].get("precision") if noted else None
            recipe = replace(recipe, precision=settled or ("bfloat16" if fast else "float32"))
        self.recipe = recipe

    def run(self) -> str:
        """Train and measure what is not done yet; returns the table, which lies in `out` too.

        Raises:
            CaptionerError: as of training and evaluation.
            KeyboardInterrupt: the same call goes on.
        """
        found: dict[str, list[Measures]] = {name: [] for name in self.variants}
        for seed in self.seeds:
            for name in self.variants:
                if self.processes.main:
                    print(f"{name}, seed {seed}", file=sys.stderr)
                found[name].append(self._train_and_measure(name, seed))
        return self.processes.main_alone(lambda: self._side_by_side(found)) or ""

    def _side_by_side(self, found: dict[str, list[Measures]]) -> str:
        times = self._times()
        rows = [Row(name, found[name], times[name]) for name in self.variants]
        text = table_text(rows)
        with replace_file(self.out / "table.md") as file:
            file.write(text.encode())
        draw_chart(rows, self.out / "figure.png")
        return text

    def _shared(self, seed: int) -> Path:
        """Scenes are drawn by the seed of a run; photos are the same for all."""
        return self.out / (f"shared-{seed}" if self._drawn else "shared")

    def _train_and_measure(self, name: str, seed: int) -> Measures:
        folder, shared = self.out / f"{name}-{seed}", self._shared(seed)
        recipe = replace(
            self.recipe, name=f"{self.recipe.name}-{name}", decoder=self.decoders[name], seed=seed
        )
        asked = {
            "recipe": plain(recipe), "people": str(self._people), "deletion": self._deletion,
        }  # fmt: skip
        known = read_json(folder / "measures.json") or {}
        if known.get("asked") == asked:
            measures: Measures = known["found"]
            return measures
        best = self._train(recipe, out=folder, processes=self.processes, shared=shared)

        def measure() -> Measures:
            measures = self._measure(load_checkpoint(best), recipe)
            write_json(folder / "measures.json", {"asked": asked, "found": measures})
            return measures

        return self.processes.broadcast(self.processes.main_alone(measure))

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
                checkpoint,
                images,
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
        there = read_json(path) or {}
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
            write_json(path, there)
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
