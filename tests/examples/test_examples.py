"""The examples find what they say they find. Numbers are of their notes, or of the rule itself."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_learned_kernel_is_sharper_and_closer(tmp_path: Path) -> None:
    results = example("attention_kernel").run(tmp_path)
    assert results["learned"] < results["gaussian"] < results["mean"]
    assert results["width"] > 2  # from 1
    assert results["largest weight, mean"] == pytest.approx(1 / 50)
    assert results["largest weight, learned"] > 2 * results["largest weight, gaussian"]
    assert (tmp_path / "attention_kernel.png").stat().st_size > 10_000


def test_the_networks_for_pulses_have_the_sizes_of_the_notes() -> None:
    """ "13.2. Attention Mechanisms" (Geneva): 62,337 parameters without attention, 54,081 with."""
    pulse = example("pulse_equalisation")
    models = pulse.convolutional(), pulse.attentive()
    sizes = [sum(p.numel() for p in model.parameters()) for model in models]
    assert sizes == [62337, 54081]


@pytest.mark.parametrize("by_place", [False, True])
def test_pulses_get_the_mean_height_of_their_pair(by_place: bool) -> None:
    signals, wanted = example("pulse_equalisation").pulses(50, by_place=by_place)
    quarters = signals.view(50, 4, 25)
    before, after = quarters.amax(-1), wanted.view(50, 4, 25).amax(-1)
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
    results, weights = example("string_reversal").run(tmp_path)
    assert results["without"] < 0.9 < 0.99 < results["with"]
    diagonal = torch.arange(10, -1, -1)
    looks = weights.argmax(-1)
    assert (looks - diagonal).abs().max() <= 1


@pytest.mark.slow
def test_pulses_need_attention_and_sides_need_places(tmp_path: Path) -> None:
    results = example("pulse_equalisation").run(tmp_path)
    assert results["shapes: attention"] < results["shapes: convolutions"] / 2
    assert results["sides: attention with places"] < results["sides: attention"] / 2


@pytest.mark.slow
def test_unseen_sentences_are_translated_exactly(tmp_path: Path) -> None:
    results = example("small_translator").run(tmp_path)
    assert results["unseen ones exactly right"] == 1
