"""Speed of Captioner on one GPU: captions, training steps, and epochs of COCO's size.

    python -m tests.benchmarks.gpu [--device cuda] [--encoder NAME] [--compile] [--small]
    python -m tests.benchmarks.gpu --simulate-coco

Models have random weights and 9,490 words. Without `--compile` the first command took less than two
minutes on an H100:

- the limits of the machine: matrix products, copies;
- captions of squares in memory (beam 5, 15 words), with and without CUDA graphs;
- `Captioner.caption` of a list of JPEG files, and `captioner batch`;
- training steps: frozen on grids, fine-tuning, self-critical, with the highest memory. Data are on
  the device. Without `--compile` the loss is not compiled, which takes minutes.

`--simulate-coco` runs one epoch of each stage of `coco-fast` instead, as training runs it; see
simulated_coco.py. `--encoder` and `--compile` do not change it. `--small` runs everything with tiny
sizes on any device; its numbers mean nothing. Nothing else may run on the GPU meanwhile.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray
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
from captioner_serving.batch import caption_batch
from captioner_training.data.dataset import Batch
from captioner_training.distributed import Processes
from captioner_training.losses.cross_entropy import CrossEntropy
from captioner_training.losses.objective import Objective
from captioner_training.losses.self_critical import SelfCriticalCaptions
from captioner_training.recipe import DataConfig, Recipe, ScenesConfig, SelfCritical, Stage
from captioner_training.state import TrainState
from captioner_training.step import TrainStep
from tests.benchmarks.coco_scale import draw
from tests.benchmarks.measuring import seconds
from tests.benchmarks.simulated_coco import simulate
from tests.training.runs import make_batch

ENCODERS = {"efficientnet_v2_b0": 224, "resnet101": 256}
WORDS = Vocabulary([f"word{number}" for number in range(9486)])
FIXED = GenerationConfig(beam_size=5, minimum_length=15, maximum_length=15)
STEPS = (
    ("frozen", 128),
    ("frozen", 1024),
    ("fine-tuning", 64),
    ("fine-tuning", 256),
    ("self-critical", 64),
)
FILES = 1600  # photos of a list and of a batch run


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


def load(bench: Bench, name: str, size: int) -> Captioner:
    """Make a captioner with random weights."""
    checkpoint = Checkpoint(
        model=build_model(name), vocabulary=WORDS, name=name, metrics={}, generation=FIXED,
        transform=TransformConfig(mode="squash", size=size),
    )  # fmt: skip
    return Captioner(checkpoint, device=bench.device)


def captions(bench: Bench, captioner: Captioner) -> None:
    """Time encoder, whole captions, and the parts of captions launched one by one."""
    size = captioner.transform.config.size
    print(f"\n{captioner!r}, {size} px, beam 5, 15 words: ms a photo")
    for photos in (1, 2) if bench.small else (1, 16, 128):
        pixels = torch.randint(0, 256, (photos, 3, size, size), dtype=torch.uint8).numpy()
        features = captioner.encode(pixels).features
        times = {
            "encoder": bench.time(partial(captioner.encode, pixels)),
            "encoder and search": bench.time(partial(captioner.decode_batch, pixels, FIXED)),
            "without graphs: encoder": bench.time(partial(encode, captioner, pixels)),
            "search": bench.time(partial(search, captioner, features)),
        }
        parts = ", ".join(f"{name} {1000 * took / photos:.2f}" for name, took in times.items())
        print(f"{photos} at once: {parts}{bench.peak()}", flush=True)


def files(bench: Bench, captioner: Captioner) -> None:
    """Time `Captioner.caption` of a list of JPEG files, and a batch run."""
    chance, count = random.Random(0), 8 if bench.small else FILES
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "photos")
        folder.mkdir()
        drawn = [draw(chance, size) for size in ((341, 256), (640, 427)) for _ in range(8)]
        paths = [folder / f"{number:05}.jpg" for number in range(count)]
        for number, path in enumerate(paths):
            path.write_bytes(drawn[number % len(drawn)])
        captioner.caption(paths[: captioner.batch_size])  # a first batch, which does not count
        rate = count / seconds(lambda: captioner.caption(paths))
        print(f"Captioner.caption of {count:,} files: {rate:.0f} photos/s{bench.peak()}")
        output = Path(name, "captions.jsonl")
        run = caption_batch(folder, output=output, captioner=captioner)
        rate = count / seconds(lambda: list(run))
        print(f"captioner batch of {count:,} files: {rate:.0f} photos/s{bench.peak()}", flush=True)


@torch.inference_mode()
def encode(captioner: Captioner, pixels: NDArray[np.uint8]) -> None:
    """Encode squares without a CUDA graph."""
    normal = captioner.transform.normalize(torch.as_tensor(pixels, device=captioner.device))
    captioner.model.encode(normal.contiguous(memory_format=torch.channels_last))


def search(captioner: Captioner, features: Tensor) -> None:
    """Search sentences for grids without a CUDA graph."""
    generate(captioner.model.decoder, features, FIXED, vocabulary=WORDS)


def steps(bench: Bench, name: str, size: int, *, compiled: bool) -> None:
    """Time steps of each kind."""
    print(f"\n{name}, {size} px, five captions a photo, {'compiled' if compiled else 'eager'}:")
    for kind, images in STEPS[::2] if bench.small else STEPS:
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
        first = seconds(lambda step=step, batch=batch: step([batch]))
        took = bench.time(partial(step, [batch]))
        print(
            f"{kind}, {images} photos: {1000 * took:.1f} ms, {images / took:.0f} photos/s, first "
            f"step {first:.1f} s{bench.peak()}",
            flush=True,
        )


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
        inputs = bench.random(images, (size // 32) ** 2, channels).half()
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
    return TrainStep(stage, recipe, objectives=objectives, vocabulary=WORDS, processes=processes)


def use_tf32(bench: Bench) -> None:
    """Set the precision of float32 products as training does on a GPU."""
    if bench.device.type == "cuda":
        torch.set_float32_matmul_precision("high")


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", default="cuda", help="default: cuda")
    parser.add_argument(
        "--encoder", choices=ENCODERS, default="efficientnet_v2_b0", help="default: %(default)s"
    )
    parser.add_argument("--compile", action="store_true", help="compile the loss of the steps")
    parser.add_argument(
        "--simulate-coco",
        action="store_true",
        help="run an epoch of each stage of coco-fast instead",
    )
    parser.add_argument("--small", action="store_true", help="tiny sizes, for any --device")
    arguments = parser.parse_args()
    bench = Bench(find_device(arguments.device), small=arguments.small)
    torch.manual_seed(0)
    name = torch.cuda.get_device_name() if bench.device.type == "cuda" else "the CPU"
    print(f"torch {torch.__version__} on {name}", flush=True)
    if arguments.simulate_coco:
        use_tf32(bench)
        simulate(bench.device, small=bench.small)
        return 0
    limits(bench)
    size = 64 if bench.small else ENCODERS[arguments.encoder]
    captioner = load(bench, arguments.encoder, size)
    captions(bench, captioner)
    files(bench, captioner)
    use_tf32(bench)
    torch.backends.cudnn.benchmark = True  # as in its long stages
    steps(bench, arguments.encoder, size, compiled=arguments.compile)
    return 0


if __name__ == "__main__":
    sys.exit(main())
