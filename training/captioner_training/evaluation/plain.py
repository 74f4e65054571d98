"""Reports as JSON has them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["as_json"]


def as_json(value: Any) -> Any:
    """Give a report as JSON has it, which knows neither nan nor infinity: they become null."""
    if isinstance(value, Mapping):
        return {key: as_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
