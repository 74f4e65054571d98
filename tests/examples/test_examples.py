"""The examples give the documented results. Expected numbers are from the docs or the rule."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from tests.training.runs import MODEL

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES, FIGURES = ROOT / "examples", ROOT / "assets" / "figures"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_a_learned_kernel_is_closer_and_gets_closer_with_more_points(tmp_path: Path) -> None:
    results = example("attention_kernel").run(tmp_path)
    assert (tmp_path / "attention_kernel.png").stat().st_size > 10_000
    assert 10 * results["learned"] < results["gaussian"] < results["mean"]
    # A fixed width stays biased; with N^(-4/5) sixteen times the points leave a ninth of the error.
    assert results["w = 1, 1600"] > 0.8 * results["w = 1, 100"]
    assert results["learned, 1600"] < results["learned, 100"] / 5
    assert results["sigma, 1600"] < results["sigma, 100"] / 16 ** (1 / 5)


def test_a_kernel_is_learned_until_its_loss_is_lowest() -> None:
    """The width is that of a search over a grid of widths, in numpy."""
    kernel = example("attention_kernel")
    torch.manual_seed(1)
    places, heights = (values.double().numpy() for values in kernel.draw_points(100))

    def loss(w: float) -> float:
        scores = np.exp(-((places[:, None] - places) ** 2) * w / 2)
        np.fill_diagonal(scores, 0)
        return float((((scores @ heights) / scores.sum(1) - heights) ** 2).mean())

    widths = np.exp(np.linspace(-2, 8, 1001))
    best = widths[np.argmin([loss(w) for w in widths])] ** -0.5
    torch.manual_seed(1)
    assert kernel.fit(*kernel.draw_points(100)).sigma == pytest.approx(best, rel=0.01)


def test_the_worked_numbers_are_right() -> None:
    worked = example("worked_numbers")
    given = worked.QUERIES, worked.KEYS, worked.VALUES
    _, weights, contexts = worked.attend(*given)
    torch.testing.assert_close(contexts, F.scaled_dot_product_attention(*given))
    assert weights[0].tolist() == pytest.approx([0.787, 0.107, 0.107], abs=5e-4)  # by hand
    heads = [part.unflatten(-1, (2, 2)).transpose(0, 1) for part in given]
    eyes = torch.eye(3).expand(2, 3, 3)  # with these as values the output is the weights
    expected = F.scaled_dot_product_attention(heads[0], heads[1], eyes)
    torch.testing.assert_close(torch.stack(worked.attend_by_heads(*given, heads=2)), expected)


def test_the_worked_masks_are_fractions() -> None:
    worked = example("worked_numbers")
    masks = worked.masks(4)
    shares = {  # by hand: a share is 2 where the score is ln 2, else 1
        "full": [[1, 2, 1, 1], [2, 1, 2, 1], [1, 1, 2, 2], [2, 1, 1, 2]],
        "local": [[1, 2, 0, 0], [2, 1, 2, 0], [0, 1, 2, 2], [0, 0, 1, 2]],
        "causal": [[1, 0, 0, 0], [2, 1, 0, 0], [1, 1, 2, 0], [2, 1, 1, 2]],
    }
    for name, rows in shares.items():
        expected = torch.tensor(rows) / torch.tensor(rows).sum(1, keepdim=True)
        torch.testing.assert_close(worked.mask_softmax(worked.SCORES, masks[name]), expected)
    nothing = worked.mask_softmax(worked.SCORES, torch.zeros(4, 4, dtype=torch.bool))
    assert nothing.tolist() == torch.zeros(4, 4).tolist()


DRAWING = [path.stem for path in EXAMPLES.glob("*.py") if "matplotlib" in path.read_text()]


@pytest.mark.parametrize("name", sorted(DRAWING))
def test_without_matplotlib_an_example_says_what_to_install(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SystemExit, match="pip install matplotlib"):
        example(name)


def test_the_networks_for_pulses_have_the_sizes_of_the_notes() -> None:
    """ "13.2. Attention Mechanisms" (Geneva): 62,337 parameters without attention, 54,081 with."""
    pulse = example("pulse_equalisation")
    models = pulse.convolutional(), pulse.attentive()
    sizes = [sum(p.numel() for p in model.parameters()) for model in models]
    assert sizes == [62337, 54081]


@pytest.mark.parametrize("by_place", [False, True])
def test_pulses_get_the_mean_height_of_their_pair(by_place: bool) -> None:
    drawn = example("pulse_equalisation").pulses(50, by_place=by_place)
    quarters = drawn.signals.view(50, 4, 25)
    before, after = quarters.amax(-1), drawn.targets.view(50, 4, 25).amax(-1)
    flat = (quarters == before.unsqueeze(-1)).sum(-1) > 1  # a triangle has one highest sample
    pair = (torch.arange(4) < 2).expand(50, 4) if by_place else flat
    for two in (pair, ~pair):
        heights = after[two].view(50, 2)
        # A triangle's highest sample lies a little beside its tip, by the same share in both.
        assert ((heights[:, 0] / heights[:, 1]).log().abs() < 0.25).all()
        torch.testing.assert_close((before / after)[two].view(50, 2).sum(1), torch.full((50,), 2.0))


def test_the_made_up_language_agrees() -> None:
    pairs = dict(example("small_translator").all_pairs())
    assert pairs["the small dogs see a red bird"] == "los canos piccos una ava russa vidan"
    assert pairs["a cow hears some old ants"] == "una vacca unas formicas vecchas senta"


@pytest.mark.slow
def test_strings_are_reversed_with_attention_along_the_anti_diagonal(tmp_path: Path) -> None:
    reversal = example("string_reversal")
    models = {
        "without": reversal.train(attends=False, forward=False, steps=700),
        "with": reversal.train(attends=True, forward=False, steps=1000),
    }
    accuracies = {name: reversal.accuracy(model) for name, model in models.items()}
    assert reversal.share(accuracies["without"]) < 0.9 < 0.99 < reversal.share(accuracies["with"])
    # The bottleneck: what does not fit into one state is lost from long strings alone.
    assert accuracies["without"][:8].mean() > 0.99 > 0.75 > accuracies["without"][-5:].mean()
    assert (accuracies["with"] > 0.97).all()
    weights = reversal.draw(models["with"], "abacadabacc", accuracies, tmp_path / "drawn.png")
    assert (weights.argmax(-1) - torch.arange(10, -1, -1)).abs().max() <= 1


def test_the_figure_of_the_pulses_is_that_of_the_code() -> None:
    pulse = example("pulse_equalisation")
    with Image.open(FIGURES / "pulse_equalisation.png") as figure:
        record = json.loads(figure.info["Description"])
    settings = {"steps": pulse.STEPS, "batch": pulse.BATCH, "rate": pulse.RATE}
    assert settings.items() <= record.items()
    results = record["results"]  # as docs and docstring say
    assert results["shapes: convolutions"] > 4 * results["shapes: attention"]
    assert results["triangles on triangles"] > 0.7
    assert results["sides: attention, bits"] < results["sides: attention"] / 2
    assert results["sides: attention, sines"] < results["sides: attention"] / 2


@pytest.mark.slow
def test_a_fresh_run_makes_blocks_of_attention() -> None:
    """The two models of shapes, with a third of the steps of the figure."""
    pulse = example("pulse_equalisation")
    steps = pulse.STEPS // 3
    torch.manual_seed(1)
    convolutional = pulse.train(pulse.convolutional(), by_place=False, steps=steps)
    torch.manual_seed(2)
    pulse.convolutional()  # draws its weights first, as in a run
    attentive = pulse.train(pulse.attentive(), by_place=False, steps=steps)
    assert convolutional.error > 4 * attentive.error
    assert pulse.share_on_triangles(attentive) > 0.7


@pytest.mark.slow
def test_unseen_sentences_are_translated_exactly(tmp_path: Path) -> None:
    results = example("small_translator").run(tmp_path, steps=800)
    assert results["unseen ones exactly right"] == 1


@pytest.mark.slow
def test_an_ablation_trains_each_variant_once_and_prints_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = "data: {scenes: {train: 24, validation: 10}, minimum_count: 1, workers: 0}"
    rest = "generation: {beam_size: 2, maximum_length: 6}\nstages: [{epochs: 1, batch_size: 12}]"
    (tmp_path / "small.yaml").write_text(f"{MODEL}{data}\n{rest}\n")
    out = tmp_path / "out"
    command = [str(tmp_path / "small.yaml"), "--out", str(out), "--decoder.hidden_dim", "32"]
    main = example("ablation").main
    main([*command, "--variants", "none-previous", "top_down"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| variant | BLEU-4 | CIDEr-D | deletion effect | parameters |"
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| none-previous", "| top_down"]
    assert lines == (out / "table.md").read_text().splitlines()
    runs = (out / f"{name}-1" / "recipe.json" for name in ("none-previous", "top_down"))
    kinds = [json.loads(recipe.read_text())["decoder"] for recipe in runs]
    assert [(kind["kind"], kind["score"], kind["hidden_dim"]) for kind in kinds] == [
        ("lstm", "none", 32),
        ("top_down", "additive", 32),
    ]
    # The grids of train and val are encoded once for both runs.
    assert len(list((out / "cache").iterdir())) == 2
    written = {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")}
    main([*command, "--variants", "none-previous"])
    assert capsys.readouterr().out.splitlines() == lines[:3]
    assert written == {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")}
