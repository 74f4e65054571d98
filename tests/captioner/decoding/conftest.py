"""Here decoding processes are what users have."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def twins() -> None:
    """No forks."""
