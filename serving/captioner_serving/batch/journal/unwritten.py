"""A journal for runs that write no file: it only remembers what a run needs to know of itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from captioner_serving.batch.journal.journal import ERRORS

__all__ = ["MemoryJournal"]

_CLAIMED = 2048  # files back, an equal one is known
_KEPT = 4 * _CLAIMED  # records; more than can lie between an equal file being seen and written


class MemoryJournal:
    """The part of Journal that a run uses, with a bounded memory of contents."""

    def __init__(self) -> None:
        self.done: set[bytes] = set()
        self.counts = [0, 0, 0]
        self.failed: frozenset[bytes] = frozenset()  # in runs before, of which nothing is known
        self.batch_size: int | None = None
        self.written = None  # of a run that remembers nothing, nothing is taken back
        self._claims: dict[bytes, None] = {}
        self._records: dict[bytes, dict[str, Any]] = {}

    def add(
        self,
        name: bytes,
        content: bytes,
        file: int,
        record: Mapping[str, Any],
        *,
        failure: Mapping[str, Any] | None = None,
    ) -> None:
        """Count a record, and the failure of what belongs to it."""
        self.done.add(name)
        self.counts[file] += 1
        self.counts[ERRORS] += failure is not None
        if content and "error" not in record and content not in self._records:
            self._records[content] = dict(record)
            if len(self._records) > _KEPT:
                del self._records[next(iter(self._records))]

    def commit(self) -> None:
        """Nothing waits to be written."""

    def close(self) -> None:
        """Nothing is open."""

    def claim(self, content: bytes) -> bool:
        """Whether no file of this content was seen lately."""
        if content in self._claims:
            return False
        self._claims[content] = None
        if len(self._claims) > _CLAIMED:
            del self._claims[next(iter(self._claims))]
        return True

    def twin(self, content: bytes) -> dict[str, Any] | None:
        """Give the record of the first photo with this content."""
        return self._records.get(content)
