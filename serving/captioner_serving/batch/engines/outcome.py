"""What became of a photo, from whichever engine captioned it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from captioner_serving.batch.inputs.photos import Photo

if TYPE_CHECKING:
    from captioner.caption import Caption

__all__ = ["Claim", "Engine", "Outcome"]

Claim = Callable[[bytes], bool]
"""Asked with the digest of a file's content: whether it is the first of its kind."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A photo with its record or its error; with neither it is the twin of an earlier one.

    content: digest of the file's bytes; b"" where they could not be read.
    caption: the caption that the record was made of, where the engine has it at hand; it can open
        the photo until the next outcomes are asked for.
    """

    photo: Photo
    content: bytes
    record: dict[str, Any] | None = None
    error: dict[str, str] | None = None
    caption: Caption | None = None


class Engine(Protocol):
    """Captions photos in batches."""

    batch_size: int

    @property
    def description(self) -> str:
        """Where and how, for the summary."""

    def run(self, photos: Iterator[Photo], claim: Claim) -> Generator[list[Outcome]]:
        """Give the outcomes in the order of the photos, one batch a list.

        A batch is a run of consecutive photos, and where it ends depends on nothing before it: a
        run that goes on after a batch makes the same batches, and so the same records to the bit.
        """
