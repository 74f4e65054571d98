"""Which CNN an encoder is made of, known without importing torchvision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final

from annotated_types import Ge

from captioner.vision.bounds import Positive, check_bounds

__all__ = ["EncoderConfig", "backbones"]

# All of torchvision's that a grid can be cut from, and our own, each with how many stages it has
# here. A list, because torchvision takes seconds to import; a test compares the two.
_STAGES: Final = {
    "convnext_base": 8, "convnext_large": 8, "convnext_small": 8, "convnext_tiny": 8,
    "efficientnet_b0": 9, "efficientnet_b1": 9, "efficientnet_b2": 9, "efficientnet_b3": 9,
    "efficientnet_b4": 9, "efficientnet_b5": 9, "efficientnet_b6": 9, "efficientnet_b7": 9,
    "efficientnet_v2_b0": 8, "efficientnet_v2_l": 9, "efficientnet_v2_m": 9, "efficientnet_v2_s": 8,
    "mobilenet_v2": 19, "mobilenet_v3_large": 17, "mobilenet_v3_small": 13,
    "resnet101": 5, "resnet152": 5, "resnet18": 5, "resnet34": 5, "resnet50": 5,
    "resnext101_32x8d": 5, "resnext101_64x4d": 5, "resnext50_32x4d": 5,
    "wide_resnet101_2": 5, "wide_resnet50_2": 5,
}  # fmt: skip


def backbones() -> list[str]:
    """The names that EncoderConfig takes."""
    return sorted(_STAGES)


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

    @property
    def stage_count(self) -> int:
        """How many stages of the backbone there are up to the grid."""
        return _STAGES[self.name] if self.last_stage is None else self.last_stage + 1

    def _contradictions(self) -> Iterator[str]:
        if (stages := _STAGES.get(self.name)) is None:
            yield f"encoder name {self.name!r} is not known; known are {', '.join(backbones())}"
        elif self.last_stage is not None and self.last_stage >= stages:
            yield (
                f"encoder last_stage: {self.name} has the stages 0 to {stages - 1}; there is no "
                f"{self.last_stage}"
            )
        if self.last_stage is None and self.stride not in (16, 32):
            yield f"encoder stride {self.stride} is not 16 or 32"
