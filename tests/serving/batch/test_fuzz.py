"""Mutated archives through the whole command; tests/benchmarks/fuzz_archives.py takes thousands."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.benchmarks.fuzz_archives import fuzz


@pytest.mark.slow
def test_mutated_archives_end_in_captions_or_errors(saved_tiny: Path) -> None:
    chance = random.Random(1)
    assert fuzz(150, together=75, checkpoint=saved_tiny, chance=chance, keep=None) == []
