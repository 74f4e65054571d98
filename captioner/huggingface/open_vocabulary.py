"""The vocabulary of models whose tokens are sub-words."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from captioner.vocabulary import Vocabulary, is_printable

_PUNCTUATION = ".,;:!?\"'()"


class OpenVocabulary(Vocabulary):
    """Numbers words when they first appear, because a model of sub-words has no list of words."""

    def __init__(self, words: Sequence[str] = ()) -> None:
        super().__init__(words)
        self._lock = threading.Lock()

    def knows(self, word: str) -> bool:
        """Whether a sentence can contain the word."""
        return bool(word) and is_printable(word)

    def encode(self, words: Iterable[str]) -> list[int]:
        """Return the numbers of words; new words are added."""
        words = list(words)
        with self._lock:
            new = [word for word in dict.fromkeys(words) if word not in self._ids]
            self._ids |= {word: len(self.words) + at for at, word in enumerate(new)}
            self.words = (*self.words, *new)
        return [self._ids[word] for word in words]

    def decode_plain(self, tokens: Iterable[int]) -> list[str]:
        """Return the words as evaluation scores them: in lower case, without punctuation."""
        return [word.lower().strip(_PUNCTUATION) for word in self.decode(tokens)]
