"""What an ablation compares, known without torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from captioner.errors import ConfigError

__all__ = ["SCORES", "VARIANT_NAMES", "AblationConfig", "people_boxes"]

_Score = Literal["none", "additive", "multiplicative", "dot", "scaled_dot"]
SCORES: tuple[_Score, ...] = get_args(_Score)
"""Of the lstm's variants with one head."""

VARIANT_NAMES = (
    *(f"{score}-{query}" for query in ("previous", "current") for score in (*SCORES, "heads")),
    "top_down",
    "transformer",
)
"""By score and query of the lstm (`heads`: scaled_dot with four of them), and the other kinds."""


@dataclass(frozen=True, kw_only=True)
class AblationConfig:
    """What is compared, and how it is measured.

    Raises:
        ConfigError: a variant that there is not, no seed, or nothing to delete on.

    """

    seeds: tuple[int, ...] = (1,)  # each is a training of every variant; their spread is told
    variants: tuple[str, ...] = VARIANT_NAMES
    people: Path | None = None  # see measures.People
    deletion: int = 500  # images of validation whose captions get the deletion test

    def __post_init__(self) -> None:
        unknown = [name for name in self.variants if name not in VARIANT_NAMES]
        if unknown:
            raise ConfigError(
                f"variants {', '.join(unknown)}: there are {', '.join(VARIANT_NAMES)}"
            )
        if len(set(self.seeds)) != len(self.seeds) or not self.seeds:
            raise ConfigError(f"seeds {' '.join(map(str, self.seeds))}: name each seed once")
        if self.deletion < 1:
            raise ConfigError(f"deletion {self.deletion} is below 1")


def people_boxes(folder: Path) -> Path:
    """Find the boxes of the people in a folder's photos.

    Raises:
        ConfigError: there are none.

    """
    boxes = folder / "person_boxes_val.json"
    if not boxes.is_file():
        raise ConfigError(f"--people {folder}: there is no {boxes}")
    return boxes
