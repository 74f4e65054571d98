"""What `captioner serve` refuses before it listens."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest


@pytest.mark.parametrize(
    ("option", "value", "status", "words"),
    [
        ("--device", "quantum", 1, "no such kind of device"),
        ("--dtype", "float8", 2, "--dtype 'float8'"),
        ("--checkpoint", "missing", 1, "there is no checkpoint"),
    ],
)
def test_a_model_that_cannot_be_is_refused(
    run_main: Callable[..., subprocess.CompletedProcess[str]],
    option: str,
    value: str,
    status: int,
    words: str,
) -> None:
    result = run_main("serve", option, value)
    assert result.returncode == status and words in result.stderr
