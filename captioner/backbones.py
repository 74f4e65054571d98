"""Which CNN an encoder is made of; torchvision is imported for unusual names only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final

from annotated_types import Ge

from captioner.bounds import Positive, check_bounds

__all__ = ["EncoderConfig", "backbones"]

_FAMILIES = ("resnet", "resnext", "wide_resnet", "efficientnet", "convnext", "mobilenet")
# Names that every torchvision has, known without asking it: it takes seconds to import.
_USUAL: Final = frozenset(
    (
        "efficientnet_v2_b0", "efficientnet_v2_s", "efficientnet_v2_m", "efficientnet_v2_l",
        "efficientnet_b0", "resnet18", "resnet34", "resnet50", "resnet101", "resnet152",
        "convnext_tiny", "convnext_small", "convnext_base", "mobilenet_v3_small",
        "mobilenet_v3_large",
    )
)  # fmt: skip


def backbones() -> list[str]:
    """The names that EncoderConfig takes."""
    import torchvision

    names = torchvision.models.list_models(module=torchvision.models)
    return sorted([*(name for name in names if name.startswith(_FAMILIES)), "efficientnet_v2_b0"])


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Which CNN, and how fine a grid.

    Raises:
        ConfigError: a value cannot work; the detail names every such field.

    """

    name: str = "resnet101"  # the backbone; ResNet-101 is the usual choice for COCO
    stride: Positive = 32  # pixels a cell: 32 is the backbone's own; 16 gives four times the cells
    # The grid is its output: early cells know their own place only. None: the backbone's last.
    last_stage: Annotated[int, Ge(0)] | None = None
    coordinates: bool = False  # add x and y to each cell's features: an early stage has no idea

    def __post_init__(self) -> None:
        check_bounds(self, also=self._contradictions())

    def _contradictions(self) -> Iterator[str]:
        if self.name not in _USUAL and self.name not in backbones():
            known = ", ".join(backbones())
            yield f"encoder name {self.name!r} is not known; known are {known}"
        if self.last_stage is None and self.stride not in (16, 32):
            yield f"encoder stride {self.stride} is not 16 or 32"
