"""A run against the same steps in plain torch, written out here: losses and weights to 1e-6.

What a decoder computes is taken from the product; tests/captioner/test_papers.py has that.
"""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from captioner import GenerationConfig
from captioner.checkpoint import Checkpoint, load_checkpoint
from captioner.model.config import DecoderConfig
from captioner.model.encoder import EncoderConfig
from captioner.model.model import CaptionModel, ModelConfig
from captioner.photos.transform import TransformConfig
from captioner.vocabulary import Vocabulary
from captioner_training.distributed import Processes
from captioner_training.losses import objective
from captioner_training.recipe import DataConfig, Recipe, Stage
from captioner_training.train import train
from tests.training.runs import link_states, records, write_photos

PAD, START, END = 0, 1, 2
WORDS = ("a", "dog", "cat", "runs", "sits", "red")  # number 4 and on
CAPTIONS = {
    "train": [
        ["a dog runs", "dog sits"], ["a red cat"], ["cat", "a red dog sits"], ["red", "a cat"],
    ],
    "val": [["a cat runs", "red dog"], ["cat sits"]],
}  # fmt: skip
STEPS, WARMUP, FLOOR, PEAK, ENCODER_PEAK = 5, 2, 0.01, 5e-3, 1e-3
DECAY, CLIP, SMOOTHING, EMA = 0.3, 0.5, 0.1, 0.2
STAGE = Stage(
    epochs=STEPS, batch_size=4, learning_rate=PEAK, encoder_learning_rate=ENCODER_PEAK,
    fine_tune_from=12, warmup=WARMUP + 1,  # at most half of the steps
    doubly_stochastic=0.7, attention_entropy=0.4,
)  # fmt: skip
MODEL = ModelConfig(
    encoder=EncoderConfig(name="mobilenet_v3_small", stride=32),
    decoder=DecoderConfig(embedding_dim=6, hidden_dim=8, attention_dim=4, dropout=0.0),
)
CPU = Processes(device=torch.device("cpu"))


class Split(NamedTuple):
    """pixels (B, 3, 64, 64), normalised; tokens (B, K, T)."""

    pixels: Tensor
    tokens: Tensor


def read_split(folder: Path, split: str) -> Split:
    """Give a whole split as one batch."""
    pixels, rows = [], []
    for number, captions in enumerate(CAPTIONS[split]):
        photo = np.asarray(Image.open(folder / split / f"{number}.png")) / 255
        pixels.append((photo - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225])
        numbers = [[4 + WORDS.index(word) for word in words.split()] for words in captions]
        each = [[START, *one, END, *[PAD] * (4 - len(one))] for one in numbers]
        rows.append([*each, *[[PAD] * 6] * (2 - len(each))])
    return Split(torch.tensor(np.stack(pixels)).permute(0, 3, 1, 2), torch.tensor(rows))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, and weights to begin with."""
    place = tmp_path_factory.mktemp("place")
    for split, captions in CAPTIONS.items():
        write_photos(place / "data", split, captions)
    torch.manual_seed(0)
    vocabulary = Vocabulary(WORDS)
    model = CaptionModel(MODEL, vocabulary_size=len(vocabulary))
    for parameter in model.decoder.parameters():  # no bias is 0, and no tanh at its end
        torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    for module in model.encoder.modules():  # as if trained: no layer's numbers vanish
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 1.0
            module.train()
    model.encoder.stages(read_split(place / "data", "train").pixels.float())
    transform = TransformConfig(mode="squash", size=64)
    checkpoint = Checkpoint(
        model=model.eval(), vocabulary=vocabulary, transform=transform, name="t"
    )
    checkpoint.save(place / "begin.safetensors", dtype=torch.float32)
    return place


def recipe(place: Path) -> Recipe:
    return Recipe(
        name="plain",
        data=DataConfig(
            root=str(place), train=("data",), validation=("data",), minimum_count=1, workers=0
        ),
        stages=(STAGE,),
        weights=str(place / "begin.safetensors"),
        encoder=MODEL.encoder,
        decoder=MODEL.decoder,
        transform=TransformConfig(mode="squash", size=64),
        generation=GenerationConfig(beam_size=1),
        precision="float32",
        weight_decay=DECAY,
        gradient_clip=CLIP,
        label_smoothing=SMOOTHING,
        ema=EMA,
        log_every=1,
    )


def test_a_run_is_its_steps_in_plain_torch(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objective, "_CHUNK", 5)  # of 22 targets
    out, begin = place / "run", load_checkpoint(place / "begin.safetensors").model.double()
    train(recipe(place), out=link_states(out), processes=CPU)
    wanted = in_plain_torch(begin, *(read_split(place / "data", name) for name in CAPTIONS))
    log = records(out)
    steps = [one for one in log if one["event"] == "step"]
    epochs = [one for one in log if one["event"] == "epoch"]
    for name in ("loss", "cross_entropy", "gradient_norm"):
        assert [one[name] for one in steps] == pytest.approx(wanted[name], abs=1e-6), name
    following = [PEAK * rate(step) for step in range(1, STEPS + 1)]  # the floor at last
    assert [one["learning_rate"] for one in steps] == pytest.approx(following, abs=1e-9)
    surprises = [one["validation"]["cross_entropy"] for one in epochs]
    # Of the average; what AdamW makes of rounding is 1e-6 of it on one machine, 6e-6 on another.
    assert surprises == pytest.approx(wanted["validation"], abs=2e-5)
    state = torch.load(out / "state" / f"step-{STEPS - 1:09}.pt", weights_only=True)
    last = load_checkpoint(out / "last.safetensors").model.state_dict()
    averages = state["stage"]["average"]["average"]
    for name, own in wanted["weights"][STEPS - 2].items():
        assert apart(state["model"][name], own) < 1e-6, name
        assert apart(averages[name], wanted["averages"][STEPS - 2][name]) < 1e-6, name
    for name, mean in wanted["averages"][STEPS - 1].items():  # saved in float16
        torch.testing.assert_close(last[name].double(), mean, rtol=1e-3, atol=1e-5)
    untrained = begin.state_dict().keys() - wanted["averages"][0].keys()
    assert all(torch.equal(state["model"][name], begin.state_dict()[name]) for name in untrained)


def in_plain_torch(model: CaptionModel, training: Split, validation: Split) -> dict[str, list[Any]]:
    """Take the steps: what the log has of each, weights and averages after it."""
    trained = {
        name: parameter.requires_grad_()
        for name, parameter in model.named_parameters()
        if name.startswith(("decoder.", "encoder.stages.12."))
    }
    peaks = {name: PEAK if name.startswith("decoder.") else ENCODER_PEAK for name in trained}
    optimizer = torch.optim.AdamW(
        [
            {"params": [each], "weight_decay": DECAY if each.ndim > 1 else 0.0}
            for each in trained.values()
        ],
        betas=(0.9, 0.98),
        eps=1e-6,
    )
    average = {name: each.detach().clone() for name, each in trained.items()}
    told = defaultdict(list)
    for step in range(STEPS):
        for group, peak in zip(optimizer.param_groups, peaks.values(), strict=True):
            group["lr"] = rate(step) * peak
        loss, cross_entropy = losses(model, training)
        loss.backward()
        norm = torch.stack([each.grad.norm() for each in trained.values()]).norm()
        for each in trained.values():
            each.grad *= min(1.0, CLIP / norm)
        optimizer.step()
        optimizer.zero_grad()
        decay = min(EMA, (1 + step) / (10 + step))
        own = {name: each.detach().clone() for name, each in trained.items()}
        average = {name: decay * average[name] + (1 - decay) * own[name] for name in trained}
        model.load_state_dict(average, strict=False)
        surprise = losses(model, validation)[1]
        model.load_state_dict(own, strict=False)
        told["loss"].append(loss.item())
        told["cross_entropy"].append(cross_entropy.item())
        told["gradient_norm"].append(norm.item())
        told["validation"].append(surprise.item())
        told["weights"].append(own)
        told["averages"].append(average)
    return told


def rate(step: int) -> float:
    """A linear climb, then half a cosine down to the floor."""
    cosine = 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP)))
    return (step + 1) / WARMUP if step < WARMUP else FLOOR + (1 - FLOOR) * cosine


def apart(found: Tensor, wanted: Tensor) -> float:
    """The root mean square: AdamW makes much of the rounding of a gradient that is next to 0."""
    return float((found - wanted).square().mean().sqrt())


def losses(model: CaptionModel, split: Split) -> tuple[Tensor, Tensor]:
    """The whole loss, and the plain cross-entropy of a token."""
    features = model.encoder.stages(split.pixels).flatten(2).transpose(1, 2)
    output = model.decoder(features, split.tokens[..., :-1])
    targets = split.tokens[..., 1:]
    there = targets != PAD
    logits, alpha = model.decoder.logits(output.deep)[there], output.attention
    loss = F.cross_entropy(logits, targets[there], label_smoothing=SMOOTHING)
    missed = (1 - (alpha * there[..., None]).sum(2)).square().mean(-1)[there.any(-1)].mean()
    entropy = -(alpha * alpha.log()).sum(-1)[there].mean()
    return loss + 0.7 * missed + 0.4 * entropy, F.cross_entropy(logits, targets[there])
