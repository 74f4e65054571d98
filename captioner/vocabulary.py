"""The vocabulary: captions to tokens, tokens to numbers, and back."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from captioner.errors import ConfigError

if TYPE_CHECKING:
    from nltk.tokenize import TreebankWordTokenizer

__all__ = ["END", "PAD", "SPECIAL_TOKENS", "START", "UNK", "Vocabulary", "join", "tokenize"]

SPECIAL_TOKENS = ("<pad>", "<start>", "<end>", "<unk>")
PAD, START, END, UNK = range(4)

_WORD = re.compile(r"\w")
# Nearly all captions are plain words, on which Treebank's fifty expressions do no more than split,
# at thirty times the cost: half a minute for COCO. The exceptions are the words that it cuts.
_PLAIN = re.compile(r" *[a-z0-9]+(?:,? +[a-z0-9]+)* *\.? *")
_PLAIN_WORD = re.compile(r"[a-z0-9]+")
_CUT = frozenset({"cannot", "gimme", "gonna", "gotta", "lemme", "wanna"})


def tokenize(caption: str) -> list[str]:
    """Split a caption into lower-case Treebank tokens without punctuation.

    >>> tokenize("A man's dog doesn't run.")
    ['a', 'man', "'s", 'dog', 'does', "n't", 'run']
    """
    caption = caption.lower()
    if _PLAIN.fullmatch(caption):
        words = _PLAIN_WORD.findall(caption)
        if _CUT.isdisjoint(words):
            return words
    return [token for token in _treebank().tokenize(caption) if _WORD.search(token)]


@cache
def _treebank() -> TreebankWordTokenizer:
    # Captioning only needs to decode, and nltk takes longer to import than a photo to caption.
    from nltk.tokenize import TreebankWordTokenizer

    return TreebankWordTokenizer()


def join(words: Iterable[str]) -> str:
    """Write words as a sentence; Treebank's "n't" and "'s" lean on the word before.

    >>> join(["a", "man", "'s", "dog"])
    "a man's dog"
    """
    return re.sub(r" (n't|'\w+)\b", r"\1", " ".join(words))


class Vocabulary:
    """The words a model knows. Tokens 0 to 3 are <pad>, <start>, <end> and <unk>.

    Args:
        words: the words without the special tokens, in the order of their numbers.

    Raises:
        ConfigError: a word is empty, stands twice, or is a special token.

    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = (*SPECIAL_TOKENS, *words)
        self._ids = {word: number for number, word in enumerate(self.words)}
        if "" in self._ids or len(self._ids) != len(self.words):
            raise ConfigError("the vocabulary has an empty word, or a word that stands twice")

    @classmethod
    def build(cls, captions: Iterable[Sequence[str]], *, minimum_count: int = 5) -> Vocabulary:
        """Take the words that stand at least `minimum_count` times in tokenized captions.

        The most frequent come first; words that are equally frequent follow the alphabet.
        """
        counts = Counter(word for caption in captions for word in caption)
        frequent = [word for word, count in counts.items() if count >= minimum_count]
        return cls(sorted(frequent, key=lambda word: (-counts[word], word)))

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._ids

    def encode(self, words: Iterable[str]) -> list[int]:
        """Number the words, without start and end; an unknown word is <unk>."""
        return [self._ids.get(word, UNK) for word in words]

    def decode(self, tokens: Iterable[int]) -> list[str]:
        """Name the words of the tokens up to <end>, leaving <pad> and <start> out."""
        words = []
        for token in tokens:
            if token == END:
                break
            if token not in (PAD, START):
                words.append(self.words[token])
        return words
