"""A training step: its changes and gradients."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
from torch._dynamo.utils import counters

from captioner.checkpoint import Checkpoint
from captioner.errors import ConfigError
from captioner.vocabulary import END, PAD, START, UNK, Vocabulary
from captioner_training.data.batches import Batch
from captioner_training.distributed import Processes
from captioner_training.losses.attention import AttentionEntropy, DoublyStochastic
from captioner_training.losses.objective import CrossEntropy, Objective
from captioner_training.losses.self_critical import SelfCriticalCaptions
from captioner_training.losses.table import stage_objectives
from captioner_training.recipe import DataConfig, Recipe, ScenesConfig, SelfCritical, Stage
from captioner_training.state import Progress, Score, StageState, TrainState
from captioner_training.step import TrainStep
from tests.training.runs import begin_step, make_batch

CPU = Processes(device=torch.device("cpu"))


def recipe(**fields: object) -> Recipe:
    stage = Stage(epochs=2, batch_size=4, learning_rate=1e-2, warmup=0)
    return Recipe(name="t", data=DataConfig(scenes=ScenesConfig()), stages=(stage,), **fields)  # type: ignore[arg-type]


@pytest.fixture
def batch() -> Batch:
    generator = torch.Generator().manual_seed(0)
    grids = torch.randn(4, 9, 576, generator=generator)
    return make_batch(grids, [[[5, 6, 7], [4, 8]]] * 4, starts=[START] * 4, maximum_length=5)


@pytest.mark.parametrize(("carry_over", "epoch"), [("best", 0), ("last", 2)])
def test_a_stage_carries_over_the_averaged_weights_of_an_epoch(
    tiny_checkpoint: Checkpoint, batch: Batch, carry_over: Literal["best", "last"], epoch: int
) -> None:
    model = tiny_checkpoint.model.requires_grad_(True)
    model.encoder.fine_tune(from_stage=None)
    stage = Stage(epochs=2, batch_size=4, learning_rate=1e-2, warmup=0, carry_over=carry_over)
    whole = replace(recipe(ema=0.5), stages=(stage, Stage(epochs=1)))
    state = TrainState(model, processes=CPU)
    begun = state.begin_stage(whole, steps=20)
    step = TrainStep(begun, whole, objectives={"it": CrossEntropy()}, processes=CPU)
    averages = []
    for cider, surprise in ((10.0, 3.0), (5.0, 2.0), (10.0, 3.0)):
        begun.count_step(step([batch]))
        with begun.average.applied():
            averages.append(model.decoder.embedding.weight.detach().clone())
            assert begun.count_epoch(Score(cider, surprise)) == (len(averages) == 1)
    assert state.progress.epochs_without_improvement == 2 and state.progress.stage_step == 3
    assert not torch.equal(averages[0], averages[2])
    saved = copy.deepcopy(state.state_dict())  # as in a file
    begun.end()
    assert torch.equal(model.decoder.embedding.weight, averages[epoch])
    assert (state.progress.stage, state.progress.epoch, state.progress.best[0]) == (1, 0, 10.0)
    # The score is lower than the best of the first stage, and the best of the second stage.
    assert not state.begin_stage(whole, steps=20).count_epoch(Score(4.0, 9.0))
    assert (state.progress.epochs_without_improvement, state.progress.best_at) == (0, (1, 1))
    # A run that is taken up again hands on the same.
    again = TrainState(model, processes=CPU)
    again.load_state_dict(saved)
    again.begin_stage(whole, steps=20).end()
    assert torch.equal(model.decoder.embedding.weight, averages[epoch])


def test_sums_are_complete_after_resuming_with_another_number_of_processes(
    tiny_checkpoint: Checkpoint,
) -> None:
    """Random states are restored only for the same number."""
    model = tiny_checkpoint.model.requires_grad_(True)
    state = TrainState(model, processes=CPU)
    state.begin_stage(recipe(), steps=20).count_step({"loss": torch.tensor(3.0)})
    saved = state.state_dict()
    (process,) = saved["processes"]
    saved["processes"] = [process, {**process, "sums": {"loss": torch.tensor(4.0)}}]
    for rank, world, total in ((1, 2, 4), (0, 1, 7), (0, 3, 7), (2, 3, 0)):
        torch.manual_seed(5)
        before = torch.get_rng_state()
        resumed = TrainState(model, processes=replace(CPU, rank=rank, world=world))
        resumed.load_state_dict(saved)
        assert resumed.begin_stage(recipe(), steps=20).sums == {"loss": total}
        assert torch.equal(torch.get_rng_state(), before) == (world != 2)


class Drawn(SelfCriticalCaptions):
    """Draws the same captions every time."""

    def sample(self, decoder: object, features: object, batch: Batch) -> tuple[torch.Tensor, ...]:
        assert batch.tokens[:, 0, 0].tolist() == [START] * len(batch.positions)
        tokens, weights = TOKENS[list(batch.positions)], WEIGHTS[list(batch.positions)]
        return tokens, weights, weights.sum()


TOKENS = torch.tensor([[[START, 8, 4, END, PAD, PAD], [START, 9, END, PAD, PAD, PAD]]] * 4)
WEIGHTS = torch.tensor([[0.5, -0.5]] * 4)


def drawing(checkpoint: Checkpoint, **config: Any) -> Drawn:
    return Drawn(
        SelfCritical(**config), vocabulary=checkpoint.vocabulary, references=[[["a"]]],
        maximum_length=5,
    )  # fmt: skip


def slope(checkpoint: Checkpoint, batch: Batch, *objectives: Objective, parts: int) -> torch.Tensor:
    """Take one step without dropout or clipping, and read the slope of the words' vectors."""
    checkpoint = replace(checkpoint, model=copy.deepcopy(checkpoint.model))
    stage = Stage(epochs=1, batch_size=4, learning_rate=1.0, warmup=0, accumulate=parts)
    fields = {"gradient_clip": 1e9, "precision": "float32"}
    step = begin_step(checkpoint, stage, *objectives, steps=2, **fields)
    for module in checkpoint.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    slopes: list[torch.Tensor] = []
    words = checkpoint.model.decoder.embedding.weight
    words.register_hook(lambda found: slopes.append(found.clone()))
    size = len(batch.images) // parts
    places = [slice(first, first + size) for first in range(0, 4, size)]
    step([Batch(batch.images[at], batch.tokens[at], batch.positions[at]) for at in places])
    return torch.stack(slopes).sum(dim=0)


@pytest.mark.parametrize(("parts", "label_smoothing"), [(1, 0.0), (2, 0.0), (1, 0.1)])
def test_the_loss_combines_data_and_sampled_captions(
    tiny_checkpoint: Checkpoint, batch: Batch, parts: int, label_smoothing: float
) -> None:
    """Wu et al. 2016, equation 9: the slope is that of the reward and so much of the other."""

    drawn = drawing(tiny_checkpoint)
    people, share = (CrossEntropy(w, label_smoothing=label_smoothing) for w in (1.0, 0.3))
    plain, reward, both = (
        slope(tiny_checkpoint, batch, *objectives, parts=parts)
        for objectives in ((people,), (drawn,), (drawn, share))
    )
    assert plain.abs().max() > 1e-4 and reward.abs().max() > 1e-4
    torch.testing.assert_close(both, reward + 0.3 * plain)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_a_self_critical_loss_by_hand(
    tiny_checkpoint: Checkpoint, batch: Batch, temperature: float
) -> None:
    """Of the probabilities that captions are drawn from: at a temperature, without dropout."""
    model, tokens = tiny_checkpoint.model, TOKENS
    logits = model.decoder.logits(model.decoder(batch.images, tokens[..., :-1]).deep)
    logits[..., [PAD, START, UNK]] = -torch.inf
    logs = (logits / temperature).log_softmax(-1)
    targets = tokens[..., 1:]
    said = logs.gather(-1, targets.unsqueeze(-1)).squeeze(-1).where(targets != PAD, 0)
    wanted = -(WEIGHTS.unsqueeze(-1) * said).sum() / (targets != PAD).sum()
    model.train()
    critic = drawing(tiny_checkpoint, temperature=temperature)
    step = begin_step(tiny_checkpoint, Stage(epochs=1), critic, steps=2, precision="float32")
    loss = step([batch])["loss"].item()
    assert loss == pytest.approx(wanted.item(), abs=1e-6) and abs(loss) > 0.01


def test_for_equal_cider_the_lower_cross_entropy_is_better(tiny_checkpoint: Checkpoint) -> None:
    model = tiny_checkpoint.model.requires_grad_(True)
    progress = Progress(best=Score(0.0, 4.0))  # of the model that it went on from
    stage = StageState(model, progress, recipe(), steps=20)
    rounded = 3.0 - 1e-6
    counted = [stage.count_epoch(Score(0.0, nats)) for nats in (5.0, 3.0, rounded, 2.0)]
    assert counted == [False, True, False, True]
    assert (progress.best_at, progress.epochs_without_improvement) == ((1, 4), 0)
    assert not stage.count_epoch(Score(50.0, 2.5), has_cider=False)  # too few photos for CIDEr
    assert stage.count_epoch(Score(0.0, 1.5), has_cider=False)
    assert stage.count_epoch(Score(0.1, 9.0))


def test_a_stage_has_the_objectives_of_its_fields_and_names() -> None:
    corpus: Any = SimpleNamespace(vocabulary=Vocabulary(["a"]), train=[])
    stage = Stage(
        epochs=1, self_critical=SelfCritical(cross_entropy=0.25), doubly_stochastic=0.5,
        attention_entropy=0.0,
    )  # fmt: skip
    objectives = stage_objectives(recipe(label_smoothing=0.2), stage, corpus)
    assert objectives.keys() == {"self_critical", "cross_entropy", "doubly_stochastic"}
    people, spread = objectives["cross_entropy"], objectives["doubly_stochastic"]
    assert isinstance(people, CrossEntropy) and isinstance(spread, DoublyStochastic)
    assert (people.weight, people.label_smoothing, spread.weight) == (0.25, 0.2, 0.5)


class Sampled(SelfCriticalCaptions):
    @classmethod
    def build(cls, *_: object) -> Any:
        return object.__new__(cls)


def test_a_stage_samples_captions_for_one_objective() -> None:
    corpus: Any = SimpleNamespace(vocabulary=Vocabulary(["a"]), train=[])
    stage = Stage(epochs=1, self_critical=SelfCritical(), objectives={f"{__name__}:Sampled": 1})
    with pytest.raises(ConfigError, match=r"self_critical and .*Sampled both sample captions"):
        stage_objectives(recipe(), stage, corpus)


OBJECTIVES = (CrossEntropy(label_smoothing=0.1), DoublyStochastic(1.0), AttentionEntropy(1.0))
STAGE = Stage(epochs=1, batch_size=4, learning_rate=1e-2, warmup=0)


def stepped(
    checkpoint: Checkpoint,
    batches: Sequence[Batch],
    *objectives: Objective,
    stage: Stage = STAGE,
    **fields: Any,
) -> tuple[TrainStep, list[dict[str, float]]]:
    """Take a step for each batch with a copy of the model, without dropout."""
    checkpoint = replace(checkpoint, model=copy.deepcopy(checkpoint.model))
    checkpoint.model.decoder.dropout.p = 0.0
    torch.manual_seed(0)
    step = begin_step(checkpoint, stage, *objectives or OBJECTIVES, steps=8, **fields)
    values = []
    for batch in batches:
        step.stage.count_step(taken := step([batch]))
        values.append(taken)
    return step, [{name: float(value) for name, value in named.items()} for named in values]


def assert_close(ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert one == pytest.approx(other, abs=1e-5, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["grids", "self-critical"])
def test_a_compiled_loss_has_the_values_and_gradients_of_the_eager_one(
    tiny_checkpoint: Checkpoint, batch: Batch, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One graph, traced once for each shape; a later step depends on the gradients before."""
    # Graphs are captured, but not compiled, which takes minutes.
    compile_ = partial(torch.compile, backend="eager", fullgraph=True, dynamic=False)
    monkeypatch.setattr(torch, "compile", lambda module, **_: compile_(module))
    stage, objectives, images = STAGE, OBJECTIVES, batch.images
    if kind == "self-critical":  # with fine-tuning
        stage = replace(stage, fine_tune_from=0)
        images = torch.randint(256, (4, 3, 64, 64), dtype=torch.uint8)
        words = tiny_checkpoint.vocabulary.words[4:10]
        critic = SelfCriticalCaptions(
            SelfCritical(samples=3), vocabulary=tiny_checkpoint.vocabulary,
            references=[[words[:3], words[2:]]] * 4, maximum_length=5,
        )  # fmt: skip
        objectives = (critic, *OBJECTIVES)  # type: ignore[assignment]
    batches = [Batch(images, batch.tokens, batch.positions)] * 3
    counters.clear()
    compiled, eager = (
        stepped(tiny_checkpoint, batches, *objectives, stage=stage, precision="float32", compile=on)
        for on in (True, False)
    )
    assert not counters["graph_break"]
    assert kind != "grids" or counters["stats"]["unique_graphs"] == 1
    assert_close(compiled[1], eager[1])
    first, second = (step.stage.model.state_dict() for step, _ in (compiled, eager))
    assert all(torch.allclose(first[name], second[name], atol=1e-5) for name in first)


def test_without_a_compiler_training_continues(
    tiny_checkpoint: Checkpoint,
    batch: Batch,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no C++ compiler")

    monkeypatch.setattr(torch, "compile", broken)
    _, values = stepped(tiny_checkpoint, [batch] * 2, precision="float32", compile=True)
    _, eager = stepped(tiny_checkpoint, [batch] * 2, precision="float32")
    assert_close(values, eager)
    warning = "torch.compile failed (no C++ compiler): training without it"
    assert capsys.readouterr().err.count(warning) == 1


def test_gradients_of_float16_are_scaled(tiny_checkpoint: Checkpoint, batch: Batch) -> None:
    """The scale, 65,536 at first, reaches neither the norm of the gradients nor the weights.

    The first step overflows: it is skipped and the scale halved, so the second has its loss.
    """
    step, (skipped, half, after) = stepped(tiny_checkpoint, [batch] * 3, precision="float16")
    _, (single, later) = stepped(tiny_checkpoint, [batch] * 2, precision="float32")
    assert step.stage.scaler.get_scale() == 32_768
    again = StageState(step.stage.model, Progress(), recipe(precision="float16"), steps=8)
    again.load_state_dict(step.stage.state_dict())
    assert again.scaler.get_scale() == 32_768
    assert skipped["gradient_norm"] == 0 and skipped["loss"] == half["loss"]
    assert half["loss"] == pytest.approx(single["loss"], rel=0.01)
    assert half["gradient_norm"] == pytest.approx(single["gradient_norm"], rel=0.05)
    assert after["loss"] == pytest.approx(later["loss"], rel=0.01)
