"""A word: when it counts as guessed."""

from __future__ import annotations

import pytest

from captioner.word import Word


@pytest.mark.parametrize(
    ("gate", "effect", "guessed"),
    [
        # Where nobody checked it, the gate decides: docs/attention.md, "Did it matter?".
        (None, None, False), (0.0999, None, True), (0.1, None, False), (0.9, None, False),
        # Where it was checked, the effect alone does.
        (0.01, 0.05, False), (0.01, 2.0, False), (0.99, 0.0499, True), (None, 0.0499, True),
        (None, 0.05, False), (0.5, -0.3, True), (0.5, 0.0, True),
    ],
)  # fmt: skip
def test_a_word_is_guessed_by_its_effect_or_else_by_its_gate(
    gate: float | None, effect: float | None, guessed: bool
) -> None:
    assert Word(text="of", probability=0.5, gate=gate, effect=effect).guessed is guessed
