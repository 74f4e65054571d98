"""What is mixed with the weights of a run's beginning, by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from captioner_training.machinery.averaged_weights import AveragedWeights
from captioner_training.machinery.mixed_weights import mixed


def test_the_mixture_by_hand() -> None:
    module = nn.ModuleDict({name: nn.Linear(1, 1, bias=False) for name in ("a", "frozen", "new")})
    first = {"a.weight": torch.tensor([[0.0]]), "frozen.weight": torch.tensor([[0.0]])}
    for parameter in module.parameters():
        nn.init.constant_(parameter, 1.0)
    module["frozen"].requires_grad_(False)
    average = AveragedWeights(module, decay=0.5)
    for parameter in module.parameters():
        nn.init.constant_(parameter, 2.0)
    average.update()  # the first decay is 1/10: 0.1 x 1 + 0.9 x 2 = 1.9
    with average.applied(), mixed(module, first, share=0.25):
        # 0.25 x 0 + 0.75 x 1.9; what has no first value, and what is frozen, stay as they are.
        found = [parameter.item() for parameter in module.parameters()]
    assert found == pytest.approx([1.425, 2.0, 1.9])
    assert [parameter.item() for parameter in module.parameters()] == [2.0, 2.0, 2.0]
    with average.applied():
        assert module["a"].weight.item() == pytest.approx(1.9)


def test_without_a_share_nothing_changes() -> None:
    module = nn.Linear(1, 1)
    before = module.weight.data_ptr()
    with mixed(module, {"weight": torch.zeros(1, 1)}, share=0.0):
        assert module.weight.data_ptr() == before
