"""How far a run is: part of its states, and of the note that it leaves when it is over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pydantic import ConfigDict

__all__ = ["Progress", "is_better"]


@dataclass(kw_only=True)
class Progress:
    """How far a run is. Everything here and in the model stands as after the last step."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    stage: int = 0  # from 0, as are the next two; people are told of them from 1
    epoch: int = 0  # of the stage
    step: int = 0  # of the epoch
    taken: int = 0  # steps of the stage
    total: int = 0  # steps of the whole run
    best: float = -1.0  # the highest CIDEr on validation so far
    # The cross-entropy on validation that goes with it; None in runs of older versions.
    best_surprise: float | None = None
    best_at: tuple[int, int] | None = None  # stage and epoch of the best, from 1; None: untouched
    untouched: float | None = None  # CIDEr of the checkpoint that the run began from
    stage_best: float = -1.0  # the highest CIDEr of this stage
    stage_surprise: float | None = None  # as best_surprise
    stale: int = 0  # epochs since stage_best
    log_bytes: int = 0  # how long the log is
    last_epoch: int = 0  # epochs of the stage before this one
    finished: bool = False

    @property
    def told_best(self) -> str:
        """Say of which weights the best checkpoint is."""
        if self.best_at is not None:
            return "stage {}, epoch {}".format(*self.best_at)
        untouched = self.best == self.untouched
        return "the model as it was before the training" if untouched else f"CIDEr {self.best:.1f}"


def is_better(cider: float, surprise: float, *, than: float, with_surprise: float | None) -> bool:
    """Whether a score is better than another: by CIDEr, and of equal ones by cross-entropy.

    Few validation photos give many epochs the same CIDEr, often 0, while the cross-entropy tells
    them apart. Where that is not known of the other, only a higher CIDEr is better.
    """
    if cider == than:
        return with_surprise is not None and surprise < with_surprise
    return cider > than
