"""What is told of the deletion test over a split."""

from __future__ import annotations

import pytest

from captioner.deletion import WordEffect
from captioner_training.evaluation.deletion import summarize_content, summarize_effects


def test_the_summary_keeps_words_with_a_shut_gate_apart() -> None:
    def word(image: int, place: int, deletion: float, gate: float) -> WordEffect:
        return WordEffect(image, place, 1, deletion, 0.5, 0.0, 0.0, 1.0, gate)

    effects = [
        word(0, 0, 9.0, 0.5),
        word(0, 1, 1.5, 0.5),
        word(1, 0, 2.5, 0.6),
        word(1, 1, 7.0, 0.05),
    ]
    found = summarize_effects(effects, [["a", "dog"], ["cat", "runs"]])
    content = found["content"]
    assert isinstance(content, dict)
    assert content["words"] == 2 and content["effect"] == pytest.approx(1.5)
    assert content["intervals"]["effect"] == pytest.approx([1.0, 2.0])
    assert content["gate"] == pytest.approx(0.55)
    shut, function = found["content_shut_gate"], found["function"]
    assert isinstance(shut, dict) and shut["effect"] == pytest.approx(6.5)
    assert isinstance(function, dict) and function["effect"] == pytest.approx(8.5)
    # All content words: 1.5 and 1 of one gate, 6.5 of another, less 0.5 by chance each.
    whole = summarize_content(effects, [["a", "dog"], ["cat", "runs"]])
    assert whole is not None and whole["words"] == 3
    assert whole["effect"] == pytest.approx((1.0 + 2.0 + 6.5) / 3)
    assert summarize_content(effects[:1], [["a", "dog"]]) is None
