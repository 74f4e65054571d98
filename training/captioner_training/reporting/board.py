"""What TensorBoard shows of a run: curves, and validation photos with where the model looked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from captioner.drawing.overlay import Panel
from captioner.drawing.sheet import contact_sheet
from captioner.errors import MissingExtraError
from captioner.vision.transform import Transform
from captioner.vocabulary import Tokenizer, join
from captioner_training.evaluation.captioned import Captioned

__all__ = ["Board"]

_PHOTOS = 6  # of validation, the same ones every time, so that they can be followed


class Board:
    """Writes event files.

    Args:
        folder: for the files.
        step: that the run goes on from: what was written after it is hidden.
        tokenizer: how captions were split into words, and are put together again.

    Raises:
        MissingExtraError: tensorboard is not installed.

    """

    def __init__(self, folder: Path, *, step: int, tokenizer: Tokenizer) -> None:
        if find_spec("tensorboard") is None:
            raise MissingExtraError("TensorBoard", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self._tokenizer: Tokenizer = tokenizer
        self._writer: Any = SummaryWriter(str(folder), purge_step=step + 1 if step else None)

    def curves(self, group: str, values: Mapping[str, float], *, step: int) -> None:
        """Add a point to the curve of each value."""
        for name, value in values.items():
            self._writer.add_scalar(f"{group}/{name}", value, step)
        self._writer.flush()

    def photos(self, captioned: Sequence[Captioned], transform: Transform, *, step: int) -> None:
        """Show some photos, each with the attention of every word of its caption."""
        for number, one in enumerate(captioned[:_PHOTOS]):
            if one.attention is None:  # there is nothing to draw
                break
            photo = one.image.open()
            probabilities = one.hypothesis.log_probabilities.exp().tolist()
            panels = [
                Panel(word=word, probability=probability, weights=attention)
                for word, probability, attention in zip(
                    one.words, probabilities, one.attention, strict=False
                )
            ]
            box = transform.box(*photo.size)
            sheet = contact_sheet(photo, panels, title=join(one.words, self._tokenizer), box=box)
            picture = np.asarray(sheet.convert("RGB"))
            self._writer.add_image(f"photos/{number}", picture, step, dataformats="HWC")
        self._writer.flush()

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()
