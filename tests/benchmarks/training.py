"""Measure training steps against the straightforward way.

    python -m tests.benchmarks.training --threads 2
    python -m tests.benchmarks.training --threads 2 --neighbour

The straightforward way is the usual tutorials': every caption is an example of its own, so that a
photo with five captions is encoded five times, a frozen encoder runs in every step all the same,
in torch's usual memory format, and the attention projects the grid again for every word. Both ways
take turns in this process, with the same weights, photos, captions, optimizer and dtype (bfloat16
autocast), and the median of their times counts. Neither time has the decoding of JPEG files in it;
ours, when frozen, has the reading of the cached grids.

With `--neighbour` this alone: what training loses beside a process that is always busy at nice 19.
Exit status 1: a target was missed. Run it on a machine that is idle.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from captioner.checkpoint import load_checkpoint
from captioner.model.config import DecoderConfig
from captioner.model.encoder import Encoder, EncoderConfig
from captioner.model.model import CaptionModel, ModelConfig
from captioner.photos.transform import Transform, TransformConfig
from captioner.shared.paths import bundled_checkpoint
from captioner.vocabulary import PAD, START, Vocabulary
from captioner_training.data.batches import Batch
from captioner_training.data.grids import CachedGrids
from captioner_training.data.scenes import write_scenes
from captioner_training.distributed import Processes
from captioner_training.losses.cross_entropy import CrossEntropy
from captioner_training.recipe import DataConfig, Recipe, ScenesConfig, Stage, load_recipe
from captioner_training.state import TrainState, build_optimizer
from captioner_training.step import TrainStep
from captioner_training.train import train
from tests.benchmarks.measuring import in_turns, reached
from tests.benchmarks.straightforward import advance
from tests.training.runs import make_batch

VOCABULARY = 9490  # words and special tokens, as many as the usual COCO vocabulary has
CAPTIONS = 5  # of each photo
NEIGHBOUR = 2.5  # times slower beside a process that is always busy at nice 19, at most
PROCESS = Processes(device=torch.device("cpu"))
KINDS = {"fine-tuning": "fine_tune_from: 0, flip: true, crop: 0.15", "frozen and cached": ""}


class Case(NamedTuple):
    """A comparison, and what it has to reach."""

    name: str
    encoder: str
    side: int
    fine_tune: bool
    images: int  # a step, in both ways: fine-tuning all their captions takes 4 GB of memory
    ratio: float


CASES = (
    Case("fine-tuning, bundled encoder", "efficientnet_v2_b0", 224, True, 16, 4.0),
    Case("frozen and cached, bundled encoder", "efficientnet_v2_b0", 224, False, 32, 5.0),
    Case("frozen and cached, ResNet-101", "resnet101", 256, False, 32, 15.0),
)


def build_model(case: Case) -> CaptionModel:
    """Build the architecture of coco-fast or coco; the ResNet's weights are random."""
    recipe = load_recipe("coco" if case.encoder == "resnet101" else "coco-fast")
    encoder = Encoder(EncoderConfig(name=case.encoder))
    if case.encoder != "resnet101":
        encoder = load_checkpoint(bundled_checkpoint()).model.encoder
    sizes = recipe.decoder
    config = DecoderConfig(
        embedding_dim=sizes.embedding_dim,
        hidden_dim=sizes.hidden_dim,
        attention_dim=sizes.attention_dim,
        value_dim=sizes.value_dim,
        dropout=0.0,  # the other way has none
    )
    model = CaptionModel(
        ModelConfig(encoder=encoder.config, decoder=config),
        vocabulary_size=VOCABULARY,
        encoder=encoder,
    )
    model.requires_grad_(True)
    model.encoder.fine_tune(from_stage=0 if case.fine_tune else None)
    return model


def build_batch(case: Case) -> Batch:
    """Draw photos of noise, each with captions of 8 to 14 words, as COCO's are long."""
    chance = torch.Generator().manual_seed(0)
    size = (case.images, 3, case.side, case.side)
    pixels = torch.randint(0, 256, size, dtype=torch.uint8, generator=chance)
    lengths = torch.randint(8, 15, (case.images, CAPTIONS), generator=chance).tolist()
    captions = [
        [torch.randint(4, VOCABULARY, (n,), generator=chance).tolist() for n in row]
        for row in lengths
    ]
    return make_batch(
        pixels,
        captions,
        starts=[START] * case.images,
        maximum_length=22,
    )


def straightforward_step(
    model: CaptionModel, optimizer: torch.optim.Optimizer, transform: Transform, batch: Batch
) -> None:
    """Take a step the straightforward way, with every caption an example of its own."""
    tokens = batch.tokens.flatten(0, 1)  # (N, T)
    # Longest first, so that a caption that is over costs nothing more.
    tokens = tokens[(tokens != PAD).sum(dim=1).argsort(descending=True)]
    pixels = batch.images.repeat_interleave(CAPTIONS, dim=0)
    decoder = model.decoder
    with torch.autocast("cpu", torch.bfloat16):
        grid = model.encode(transform.normalize(pixels)).features
        mean = grid.mean(dim=1)
        hidden = torch.tanh(decoder.initial_hidden(mean))
        cell = torch.tanh(decoder.initial_cell(mean))
        total = torch.zeros(())
        for position in range(tokens.shape[1] - 1):
            going = int((tokens[:, position + 1] != PAD).sum())
            read, wanted = tokens[:going, position], tokens[:going, position + 1]
            step = advance(decoder, grid[:going], read, hidden[:going], cell[:going])
            hidden, cell = step.hidden, step.cell
            total = total - step.logs.gather(1, wanted.unsqueeze(1)).sum()
        loss = total / (tokens[:, 1:] != PAD).sum()
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def build_step(model: CaptionModel, recipe: Recipe) -> TrainStep:
    """Build our step; plain cross-entropy, as the other way has it."""
    stage = TrainState(model, processes=PROCESS).begin_stage(recipe, steps=10_000)
    objectives = {"cross_entropy": CrossEntropy()}
    return TrainStep(
        stage, recipe, objectives=objectives, vocabulary=Vocabulary([]), processes=PROCESS
    )


def compare(case: Case, *, repeat: int, folder: Path) -> bool:
    """Time both ways in turn, print a line, and say whether the target was reached."""
    torch.manual_seed(0)
    model, batch = build_model(case), build_batch(case)
    other = copy.deepcopy(model)
    model.encoder.to(memory_format=torch.channels_last)
    transform = Transform(TransformConfig(mode="squash", size=case.side))
    stage = Stage(
        epochs=1,
        doubly_stochastic=0.0,
        attention_entropy=0.0,
        fine_tune_from=0 if case.fine_tune else None,
    )
    recipe = Recipe(
        name="benchmark",
        data=DataConfig(scenes=ScenesConfig()),
        stages=(stage,),
        transform=transform.config,
        label_smoothing=0.0,
    )
    step = build_step(model, recipe)
    optimizer = build_optimizer(other, recipe, stage)
    other.train()

    def ours() -> None:
        images = batch.images if case.fine_tune else grids[list(range(case.images))]
        step([batch._replace(images=images)])

    if not case.fine_tune:
        grids = cache(model, transform, batch.images, folder / f"{case.encoder}.f16")
    ways = {"slow": lambda: straightforward_step(other, optimizer, transform, batch), "fast": ours}
    baseline, product = in_turns(ways, rounds=repeat).values()
    captions = case.images * CAPTIONS
    ratio = baseline / product
    print(
        f"{case.name:36} {case.side} px, {case.images} photos x {CAPTIONS} captions: "
        f"{captions / product:6.1f} captions/s, straightforward {captions / baseline:6.1f}: "
        f"{ratio:5.1f} times (target {case.ratio:g})",
        flush=True,
    )
    return ratio >= case.ratio


@torch.inference_mode()
def cache(model: CaptionModel, transform: Transform, images: Tensor, path: Path) -> CachedGrids:
    """Write the grids as the frozen stage does."""
    model.eval()
    with torch.autocast("cpu", torch.bfloat16):
        grid = model.encode(transform.normalize(images)).features
    path.write_bytes(grid.half().numpy().tobytes())
    return CachedGrids([path], (grid.shape[0], grid.shape[1], grid.shape[2]))


def epoch(folder: Path, kind: str) -> dict[str, float]:
    """Run an epoch of a real run on JPEG files of 256 x 256, with two workers; give its timing."""
    if not (folder / "data").exists():
        write_scenes(folder / "data", splits={"train": 640, "val": 2}, side=256)
    fields = {
        "data.root": str(folder / "data"),
        "data.minimum_count": "1",
        "data.workers": "2",
        "log_every": "1000",
        "stages": f"[{{epochs: 1, batch_size: 32, {KINDS[kind]}}}]",
    }
    out = Path(tempfile.mkdtemp(dir=folder))
    with contextlib.redirect_stderr(io.StringIO()):
        train(load_recipe("coco-fast", fields), out=out, processes=PROCESS)
    records = map(json.loads, (out / "log.jsonl").read_text().splitlines())
    timing: dict[str, float] = next(one["timing"] for one in records if one["event"] == "epoch")
    return timing


def beside_neighbour(folder: Path, kind: str) -> bool:
    """Compare an epoch alone with one beside a process that is always busy, at nice 19."""
    alone = epoch(folder, kind)["images_per_second"]
    busy = ["nice", "-n", "19", sys.executable, "-c", "while True: pass"]
    with subprocess.Popen(busy) as neighbour:
        try:
            beside = epoch(folder, kind)["images_per_second"]
        finally:
            neighbour.kill()
    name = f"times slower beside a busy process: {kind}, {alone:.1f} and {beside:.1f} images/s"
    return reached(name, alone / beside, NEIGHBOUR, at_most=True)


def main() -> int:
    """Run every comparison."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--neighbour", action="store_true", help="training beside one alone")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(
        f"torch {torch.__version__}, {platform.machine()}, {arguments.threads} threads, "
        f"bfloat16 autocast, {VOCABULARY} words, captions of 8 to 14 words"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if arguments.neighbour:
            met = [beside_neighbour(folder, kind) for kind in KINDS]
        else:
            met = [compare(case, repeat=arguments.repeat, folder=folder) for case in CASES]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
