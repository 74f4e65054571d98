"""Things that are closed when their block ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

__all__ = ["Closing"]


class Closing(ABC):
    """A thing to be closed, by itself at the end of `with thing:`."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything that it holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
