"""Speed of Captioner on one GPU: captions, training steps, and epochs of COCO's size.

    python -m tests.benchmarks.gpu [--device cuda] [--encoder NAME] [--small]
    python -m tests.benchmarks.gpu --compile [--encoder NAME]
    python -m tests.benchmarks.gpu --simulate-coco [--recipe coco-fast|coco]

By estimate, the first command takes one minute on an H100. It measures

- captions of photos in memory by the bundled model, with trust and consensus: whole calls, their
  parts, and calls without CUDA graphs;
- `Captioner.caption` of a list of JPEG files, and `captioner batch`, with the same model;
- training steps: frozen on grids, fine-tuning, self-critical, with the highest memory. Data are on
  the device. The model has random weights and 9,490 words.

`--compile` measures only the steps, with a compiled loss and with the tuning of cuDNN. Both are
left out otherwise, because they take minutes. `--simulate-coco` runs one epoch of each stage of a
recipe, as training runs it; see simulated_coco.py. `--small` runs everything with tiny sizes on any
device; its numbers mean nothing. Nothing else may run on the GPU meanwhile.
"""

from __future__ import annotations

import argparse
import gc
import io
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from captioner import Captioner
from captioner.errors import DeviceError
from captioner.generation.generate import generate
from captioner.inference.cuda_graphs import CudaGraphs
from captioner.inference.device import find_device
from captioner.model.config import DecoderConfig
from captioner.model.encoder import EncoderConfig
from captioner.model.model import CaptionModel, ModelConfig
from captioner.photos.transform import TransformConfig
from captioner.shared.paths import sample_photos
from captioner.vocabulary import START, Vocabulary
from captioner_serving.batch import caption_batch
from captioner_training.data.batches import Batch
from captioner_training.distributed import Processes
from captioner_training.losses.objective import CrossEntropy, Objective
from captioner_training.losses.self_critical import SelfCriticalCaptions
from captioner_training.recipe import DataConfig, Recipe, ScenesConfig, SelfCritical, Stage
from captioner_training.state import TrainState
from captioner_training.step import TrainStep
from tests.training.runs import make_batch

RECIPES = ("coco-fast", "coco")
ENCODERS = {"efficientnet_v2_b0": 224, "resnet101": 256}
WORDS = Vocabulary([f"word{number}" for number in range(9486)])
STEPS = (
    ("frozen", 128),
    ("frozen", 1024),
    ("self-critical", 64),
    ("fine-tuning", 64),  # these two take the longest to compile
    ("fine-tuning", 256),
)
AT_ONCE = (1, 16, 256)  # photos of a call
FILES = 1600  # photos of a list and of a batch run
SIZES = ((341, 256), (640, 427))  # of the files


def seconds(function: Callable[[], object]) -> float:
    """How long a call takes."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


class Table:
    """A table of numbers. Each row is printed as soon as it is measured."""

    def __init__(self, title: str, name: str, *columns: str) -> None:
        self._widths = [max(9, len(column)) + 2 for column in columns]
        print(f"\n{title}")
        self._print(name, columns)

    def row(self, name: str, *values: float | None) -> None:
        """Print the numbers of a row with three digits or more; None is left blank."""
        self._print(name, map(_format, values))

    def _print(self, name: str, cells: Iterable[str]) -> None:
        pairs = zip(cells, self._widths, strict=True)
        print(f"{name:<36}" + "".join(f"{cell:>{width}}" for cell, width in pairs), flush=True)


def _format(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.{2 if abs(value) < 10 else 1 if abs(value) < 100 else 0}f}"


def write_photos(folder: Path, count: int, *sizes: tuple[int, int]) -> list[Path]:
    """Write JPEG files of the sample photos, cropped in many ways. No two files are equal."""
    chance = random.Random(0)
    samples = [Image.open(file).convert("RGB") for file in sample_photos().values()]
    photos = [
        crop(chance.choice(samples), chance, sizes[turn % len(sizes)])
        for turn in range(min(64, count))
    ]
    paths = [folder / f"{number:05}.jpg" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_bytes(photos[number % len(photos)] + b"%08d" % number)
    return paths


def crop(photo: Image.Image, chance: random.Random, size: tuple[int, int]) -> bytes:
    """Return a random part of a photo as a JPEG of this size."""
    width, height = (side * chance.uniform(0.6, 1) for side in photo.size)
    left, top = chance.uniform(0, photo.width - width), chance.uniform(0, photo.height - height)
    box = (left, top, left + width, top + height)
    file = io.BytesIO()
    photo.resize(size, Image.Resampling.BICUBIC, box=box).save(file, "JPEG", quality=90)
    return file.getvalue()


class Bench:
    """The device, and how its work is timed."""

    def __init__(self, device: torch.device, *, small: bool) -> None:
        self.device, self.small = device, small
        self.rounds = 1 if small else 10

    def time(self, work: Callable[[], object]) -> float:
        """Median seconds of a call with all that it asks of the device, after two more."""

        def whole() -> None:
            work()
            if self.device.type == "cuda":
                torch.cuda.synchronize()

        times = [seconds(whole) for _ in range(self.rounds + 2)]
        return median(times[2:])


class NoGraphs(CudaGraphs):
    """Runs every call without a CUDA graph."""

    def __call__(self, _: object, function: Callable[..., Any], *inputs: Tensor) -> Any:
        """Return the result of the function."""
        return function(*inputs)


def captions(bench: Bench) -> None:
    """Time captions by the bundled model: of photos in memory, of a list of files, of a folder."""
    captioner = Captioner.from_pretrained(device=bench.device)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "photos")
        folder.mkdir()
        paths = write_photos(folder, 8 if bench.small else FILES, *SIZES)
        in_memory(bench, captioner, paths)
        table = Table(f"Captions of {len(paths):,} JPEG files", "", "photos/s", "GB at most")
        captioner.caption(paths[: captioner.batch_size])  # a first batch, which does not count
        peak(bench.device)
        took = seconds(lambda: captioner.caption(paths))
        table.row("Captioner.caption(list)", len(paths) / took, peak(bench.device))
        run = caption_batch(folder, output=Path(name, "captions.jsonl"), captioner=captioner)
        took = seconds(lambda: list(run))
        table.row("captioner batch", len(paths) / took, peak(bench.device))


def in_memory(bench: Bench, captioner: Captioner, paths: Sequence[Path]) -> None:
    """Time calls with decoded photos, and the parts of these calls."""
    config, graphs = captioner.generation, captioner.graphs
    table = Table(
        f"Captions of photos in memory, with trust and consensus: {captioner!r}, "
        f"beam {config.beam_size}.\nThe whole call is also timed without CUDA graphs.",
        "", "whole, ms", "a photo, ms", "encoder, ms", "encoder, %", "search, ms", "rest, ms",
        "no graphs, ms", "GB at most",
    )  # fmt: skip
    for count in (1, 2) if bench.small else AT_ONCE:
        photos = [captioner.prepare(path) for path in paths[:count]]
        pixels = np.stack([photo.pixels for photo in photos])
        features = captioner.encode(pixels).features
        search = partial(
            generate, captioner.model.decoder, features, config, vocabulary=captioner.vocabulary,
            consensus=captioner.consensus, graphs=graphs,
        )  # fmt: skip
        work = {
            "whole": partial(captioner.caption_prepared, photos),
            "encoder": partial(captioner.encode, pixels),
            "search": search,
        }
        peak(bench.device)
        times = {name: 1000 * bench.time(part) for name, part in work.items()}
        captioner.graphs = NoGraphs()
        without = 1000 * bench.time(work["whole"])
        captioner.graphs = graphs
        whole, encoder, search_took = times.values()
        table.row(
            f"{count} at once" if count > 1 else "one photo", whole, whole / count, encoder,
            100 * encoder / whole, search_took, whole - encoder - search_took, without,
            peak(bench.device),
        )  # fmt: skip


def build_model(name: str) -> CaptionModel:
    """Build an encoder with random weights and the bundled decoder's sizes."""
    sizes = DecoderConfig(embedding_dim=512, hidden_dim=512, attention_dim=256, value_dim=512)
    return CaptionModel(
        ModelConfig(encoder=EncoderConfig(name=name), decoder=sizes), vocabulary_size=len(WORDS)
    )


def steps(
    bench: Bench, name: str, size: int, *, kinds: Sequence[tuple[str, int]], compiled: bool
) -> None:
    """Time steps of each kind."""
    table = Table(
        f"Training steps: {name}, {size} px, five captions a photo, "
        f"{'compiled, tuned' if compiled else 'eager'}",
        "", "ms a step", "photos/s", "first step, s", "GB at most",
    )  # fmt: skip
    for kind, images in kinds:
        images = 4 if bench.small else images
        batch, references = make_up(bench, name, size, images, squares=kind == "fine-tuning")
        objectives: dict[str, Objective] = {"cross_entropy": CrossEntropy()}
        if kind == "self-critical":
            objectives = {
                "self_critical": SelfCriticalCaptions(
                    SelfCritical(), vocabulary=WORDS, maximum_length=16, references=references
                )
            }
        step = build_step(
            bench, name, size, objectives=objectives, compiled=compiled,
            thawed=0 if kind == "fine-tuning" else None,
        )  # fmt: skip
        peak(bench.device)
        work = partial(step, [batch])
        first = seconds(work)
        took = bench.time(work)
        table.row(
            f"{kind}, {images:,} photos", 1000 * took, images / took, first, peak(bench.device)
        )
        del step, work
        release(compiled=compiled)


def make_up(
    bench: Bench, name: str, size: int, images: int, *, squares: bool
) -> tuple[Batch, list[list[list[str]]]]:
    """Make up a batch of squares or grids, and its captions as words."""
    chance = random.Random(0)
    numbers = [
        [[chance.randrange(4, len(WORDS)) for _ in range(chance.randint(8, 14))] for _ in range(5)]
        for _ in range(images)
    ]
    if squares:
        inputs = torch.randint(0, 256, (images, 3, size, size), dtype=torch.uint8).to(bench.device)
    else:
        channels = build_model(name).encoder.channels()
        inputs = torch.rand(images, (size // 32) ** 2, channels, device=bench.device).half()
    batch = make_batch(inputs, numbers, starts=[START] * images, maximum_length=22)
    return batch, [[WORDS.decode(caption) for caption in captions] for captions in numbers]


def build_step(
    bench: Bench,
    name: str,
    size: int,
    *,
    thawed: int | None,
    objectives: dict[str, Objective],
    compiled: bool,
) -> TrainStep:
    """Make a training step with the encoder thawed from a stage on, or frozen."""
    model = build_model(name).to(bench.device).requires_grad_(True)
    model.encoder.to(memory_format=torch.channels_last)
    model.encoder.fine_tune(from_stage=thawed)
    recipe = Recipe(
        name="benchmark", data=DataConfig(scenes=ScenesConfig()), compile=compiled,
        stages=(Stage(epochs=1, fine_tune_from=thawed),), encoder=EncoderConfig(name=name),
        transform=TransformConfig(mode="squash", size=size),
    )  # fmt: skip
    processes = Processes(device=bench.device)
    stage = TrainState(model, processes=processes).begin_stage(recipe, steps=10_000)
    return TrainStep(stage, recipe, objectives=objectives, processes=processes)


def peak(device: torch.device) -> float | None:
    """Return the most GB of GPU memory since the last call; None on a CPU."""
    if device.type != "cuda":
        return None
    gigabytes = torch.cuda.max_memory_allocated(device) / 1e9
    torch.cuda.reset_peak_memory_stats(device)
    return gigabytes


def release(*, compiled: bool) -> None:
    """Free the memory of models that are no longer used, and of their compiled losses."""
    if compiled:
        torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description="Speed of Captioner on one GPU.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--encoder", choices=ENCODERS, default="efficientnet_v2_b0")
    parser.add_argument("--compile", action="store_true", help="run only the steps, compiled")
    parser.add_argument("--simulate-coco", action="store_true", help="run epochs of a recipe")
    parser.add_argument("--recipe", choices=RECIPES, default=RECIPES[0])
    parser.add_argument("--small", action="store_true", help="tiny sizes, for any --device")
    arguments = parser.parse_args()
    started = time.perf_counter()
    try:
        bench = Bench(find_device(arguments.device), small=arguments.small)
    except DeviceError as error:
        parser.error(str(error))
    torch.manual_seed(0)
    name = torch.cuda.get_device_name() if bench.device.type == "cuda" else "the CPU"
    print(f"{name}, torch {torch.__version__}", flush=True)
    if not arguments.compile and not arguments.simulate_coco:
        captions(bench)
        release(compiled=False)
    if bench.device.type == "cuda":  # as training does
        torch.set_float32_matmul_precision("high")
    if arguments.simulate_coco:
        from tests.benchmarks.simulated_coco import simulate  # which imports this module

        simulate(arguments.recipe, bench.device, small=bench.small)
        return 0
    torch.backends.cudnn.benchmark = arguments.compile
    size = 64 if bench.small else ENCODERS[arguments.encoder]
    kinds = STEPS[::2] if bench.small else STEPS
    steps(bench, arguments.encoder, size, kinds=kinds, compiled=arguments.compile)
    print(f"\n{time.perf_counter() - started:.0f} s in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
