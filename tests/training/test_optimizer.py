"""The average of the weights and the learning rates, by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from captioner_training.optimizer import AveragedWeights, warmup_cosine


@pytest.fixture
def module() -> nn.Linear:
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, 1.0)
    return module


def test_the_average_by_hand(module: nn.Linear) -> None:
    average = AveragedWeights(module, decay=0.5)
    for value in (2.0, 3.0):
        nn.init.constant_(module.weight, value)
        average.update()
    # The first decays are 1/10 and 2/11: 0.1 x 1 + 0.9 x 2 = 1.9, and 2/11 x 1.9 + 9/11 x 3 = 2.8.
    with average.applied():
        assert module.weight.item() == pytest.approx(2.8)
    assert module.weight.item() == 3.0  # the training goes on from its own


def test_the_decay_is_bounded_and_can_be_none(module: nn.Linear) -> None:
    average = AveragedWeights(module, decay=0.5)
    average.updates = 1000  # (1 + n) / (10 + n) is above 0.5 then
    nn.init.constant_(module.weight, 2.0)
    average.update()
    with average.applied():
        assert module.weight.item() == pytest.approx(1.5)
    none = AveragedWeights(module, decay=0.0)
    none.update()
    with none.applied():
        assert module.weight.item() == 2.0


def test_frozen_weights_are_left_alone_and_the_state_comes_back(module: nn.Linear) -> None:
    two = nn.ModuleList([module, nn.Linear(1, 1, bias=False)])
    two[1].requires_grad_(False)
    average = AveragedWeights(two, decay=0.9)
    nn.init.constant_(module.weight, 2.0)
    average.update()
    assert list(average.state_dict()["average"]) == ["0.weight"]
    again = AveragedWeights(two, decay=0.9)
    again.load_state_dict(average.state_dict())
    assert again.updates == 1
    with again.applied():
        assert torch.equal(module.weight, torch.tensor([[1.9]]))


def test_schedule() -> None:
    rates = [warmup_cosine(step, steps=110, warmup=10, floor=0.0) for step in range(111)]
    assert rates[:10] == pytest.approx([0.1 * step for step in range(1, 11)])
    assert rates[60] == pytest.approx(0.5)  # half of the cosine
    assert rates[110] == pytest.approx(0.0)
