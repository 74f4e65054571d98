"""What one GPU does with Captioner, in ten minutes: captions and training steps at COCO's sizes.

    python -m tests.benchmarks.gpu [--device cuda] [--small]

Two models with random weights and 9,490 words: the bundled checkpoint's sizes with squares of 224,
and ResNet-101 with squares of 256. First what the machine can do at best: products of matrices, and
bytes copied. Then captions: encoder, search (beam 5, 15 words) and both, for 1, 16 and 256 photos
at once. Then training steps: frozen on cached grids, fine-tuning beside the encoder's own forward
and backward pass, self-critical; each with the memory that it took at most, and what an epoch of
COCO's 113,287 photos would take at that rate, extrapolated. Data are on the device already: what
loading them costs, log.jsonl of a run tells (`waiting`).

`--small` runs all of it with tiny sizes on whatever is there, to see that it runs: its numbers mean
nothing. Nothing else may run on the GPU meanwhile.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from torch import Tensor

from captioner import Captioner
from captioner.checkpoint import Checkpoint
from captioner.decoders.config import DecoderConfig
from captioner.device import find_device
from captioner.generation.config import GenerationConfig
from captioner.generation.generate import generate
from captioner.model import CaptionModel, ModelConfig
from captioner.vision.encoder import EncoderConfig
from captioner.vision.transform import TransformConfig
from captioner.vocabulary import START, Vocabulary
from captioner_training.data.dataset import Batch
from captioner_training.distributed import Processes
from captioner_training.losses.cross_entropy import CrossEntropy
from captioner_training.losses.objective import Objective
from captioner_training.losses.self_critical import SelfCriticalCaptions
from captioner_training.recipe import DataConfig, Recipe, ScenesConfig, SelfCritical, Stage
from captioner_training.state import TrainState
from captioner_training.step import TrainStep, autocast_of
from tests.benchmarks.measuring import seconds
from tests.training.runs import make_batch

COCO = 113_287  # photos of Karpathy's train
ENCODERS = {"efficientnet_v2_b0": 224, "resnet101": 256}
WORDS = Vocabulary([f"word{number}" for number in range(9486)])
FIXED = GenerationConfig(beam_size=5, minimum_length=15, maximum_length=15)


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

    def random(self, *shape: int) -> Tensor:
        """Draw numbers on the device."""
        return torch.rand(*shape, device=self.device)

    def peak(self) -> str:
        """Say how much memory was taken at most since the last call."""
        if self.device.type != "cuda":
            return ""
        gigabytes = torch.cuda.max_memory_allocated() / 1e9
        torch.cuda.reset_peak_memory_stats()
        return f", {gigabytes:.1f} GB"


def limits(bench: Bench) -> None:
    """Measure what the machine does at best."""
    side = 64 if bench.small else 8192
    for dtype in (torch.bfloat16, torch.float32):
        matrix = bench.random(side, side).to(dtype)
        rate = 2 * side**3 / bench.time(partial(torch.matmul, matrix, matrix))
        print(f"products of {side} x {side}, {dtype}: {rate / 1e12:.1f} TFLOP/s")
    source = torch.empty(side * side, dtype=torch.uint8, pin_memory=bench.device.type == "cuda")
    there = torch.empty_like(source, device=bench.device)
    for name, origin in (("on the device", there.clone()), ("to the device", source)):
        rate = len(source) / bench.time(partial(there.copy_, origin))
        print(f"bytes copied {name}: {rate / 1e9:.1f} GB/s")


def build_model(name: str) -> CaptionModel:
    """Build an encoder with random weights and the bundled decoder's sizes."""
    sizes = DecoderConfig(embedding_dim=512, hidden_dim=512, attention_dim=256, value_dim=512)
    return CaptionModel(
        ModelConfig(encoder=EncoderConfig(name=name), decoder=sizes), vocabulary_size=len(WORDS)
    )


def captions(bench: Bench, name: str, size: int) -> None:
    """Time encoder, search and both."""
    checkpoint = Checkpoint(
        model=build_model(name), vocabulary=WORDS, name=name, metrics={}, generation=FIXED,
        transform=TransformConfig(mode="squash", size=size),
    )  # fmt: skip
    captioner = Captioner(checkpoint, device=bench.device)
    print(f"\n{captioner!r}, {size} px, beam 5, 15 words: ms a photo")
    for photos in (1, 2) if bench.small else (1, 16, 256):
        pixels = torch.randint(0, 256, (photos, 3, size, size), dtype=torch.uint8)
        pixels = pixels.to(bench.device)

        with torch.inference_mode():
            features = captioner.encode(pixels).features
            encoder = bench.time(partial(captioner.encode, pixels))
            decoder = bench.time(partial(search, captioner, features))
            whole = bench.time(partial(caption, captioner, pixels))
        times = (1000 * one / photos for one in (encoder, decoder, whole))
        print(
            "{} at once: encoder {:.2f}, search {:.2f}, whole caption {:.2f}".format(photos, *times)
            + f": {whole / encoder:.2f} times the encoder{bench.peak()}"
        )


def search(captioner: Captioner, features: Tensor) -> None:
    """Search sentences for grids."""
    generate(captioner.model.decoder, features, FIXED, vocabulary=WORDS)


def caption(captioner: Captioner, pixels: Tensor) -> None:
    """Encode squares and search their sentences."""
    search(captioner, captioner.encode(pixels).features)


def steps(bench: Bench, name: str, size: int) -> None:
    """Time steps of each kind."""
    chance = random.Random(0)
    images = 4 if bench.small else 64
    numbers = [
        [[chance.randrange(4, len(WORDS)) for _ in range(chance.randint(8, 14))] for _ in range(5)]
        for _ in range(images)
    ]
    pixels = torch.randint(0, 256, (images, 3, size, size), dtype=torch.uint8)
    batch = make_batch(pixels, numbers, starts=[START] * images, maximum_length=22)
    critic = SelfCriticalCaptions(
        SelfCritical(), vocabulary=WORDS, maximum_length=16,
        references=[[WORDS.decode(caption) for caption in each] for each in numbers],
    )  # fmt: skip
    cells = (size // 32) ** 2
    grids = bench.random(images, cells, build_model(name).encoder.channels()).half()
    on_device = batch._replace(images=pixels.to(bench.device))
    kinds: dict[str, tuple[int | None, Batch, dict[str, Objective]]] = {
        "frozen": (None, batch._replace(images=grids), {"cross_entropy": CrossEntropy()}),
        "fine-tuning": (0, on_device, {"cross_entropy": CrossEntropy()}),
        "self-critical": (None, batch._replace(images=grids), {"self_critical": critic}),
    }
    print(f"\n{name}, {size} px, steps of {images} photos with five captions:")
    for kind, (thawed, some, objectives) in kinds.items():
        step, recipe = build_step(bench, name, size, thawed=thawed, objectives=objectives)
        took = bench.time(partial(step, [some]))
        line = f"{kind}: {1000 * took:.1f} ms, {images / took:.0f} photos/s, an epoch of COCO "
        line += f"{COCO * took / images / 60:.1f} min (extrapolated){bench.peak()}"
        if thawed is not None:
            alone = bench.time(partial(encode_and_back, step, some.images, recipe, bench))
            line += f"; {100 * alone / took:.0f} % of it is the encoder's own passes"
        print(line, flush=True)


def build_step(
    bench: Bench, name: str, size: int, *, thawed: int | None, objectives: dict[str, Objective]
) -> tuple[TrainStep, Recipe]:
    """Make a training step with the encoder thawed from a stage on, or frozen."""
    model = build_model(name).to(bench.device).requires_grad_(True)
    model.encoder.to(memory_format=torch.channels_last)
    model.encoder.fine_tune(from_stage=thawed)
    recipe = Recipe(
        name="benchmark", data=DataConfig(scenes=ScenesConfig()),
        stages=(Stage(epochs=1, fine_tune_from=thawed),), encoder=EncoderConfig(name=name),
        transform=TransformConfig(mode="squash", size=size),
    )  # fmt: skip
    processes = Processes(device=bench.device)
    stage = TrainState(model, processes=processes).begin_stage(recipe, steps=10_000)
    step = TrainStep(stage, recipe, objectives=objectives, vocabulary=WORDS, processes=processes)
    return step, recipe


def encode_and_back(step: TrainStep, pixels: Tensor, recipe: Recipe, bench: Bench) -> None:
    """Take the encoder's forward and backward pass alone."""
    model = step.stage.model
    with autocast_of(recipe, bench.device):
        features = model.encode(pixels.float().contiguous(memory_format=torch.channels_last))
    torch.autograd.backward(features.features.float().sum())
    model.zero_grad(set_to_none=True)


def main() -> int:
    """Run all of it."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--device", default="cuda", help="default: cuda")
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    bench = Bench(find_device(arguments.device), small=arguments.small)
    torch.manual_seed(0)
    name = torch.cuda.get_device_name() if bench.device.type == "cuda" else "the CPU"
    print(f"torch {torch.__version__} on {name}")
    limits(bench)
    for encoder, size in ENCODERS.items():
        side = 64 if arguments.small else size
        captions(bench, encoder, side)
        steps(bench, encoder, side)
    return 0


if __name__ == "__main__":
    sys.exit(main())
