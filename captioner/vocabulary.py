"""The vocabulary: captions to tokens, tokens to numbers, and back."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from captioner.errors import ConfigError

if TYPE_CHECKING:
    from nltk.tokenize import TreebankWordTokenizer

__all__ = [
    "END",
    "PAD",
    "SPECIAL_TOKENS",
    "START",
    "UNK",
    "Tokenizer",
    "Vocabulary",
    "has_no_spaces",
    "is_fit",
    "join",
    "tokenize",
]

# "words": Treebank's, for English. "unicode": words by Unicode's rules (UAX 29), for any language
# that puts spaces between them. "characters": the same, and each character of a script without such
# spaces is a token.
Tokenizer = Literal["words", "unicode", "characters"]

SPECIAL_TOKENS = ("<pad>", "<start>", "<end>", "<unk>")
PAD, START, END, UNK = range(4)

_WORD = re.compile(r"\w")
# Nearly all captions are plain words, on which Treebank's fifty expressions do no more than split,
# at thirty times the cost: half a minute for COCO. The exceptions are the words that it cuts.
_PLAIN = re.compile(r" *[a-z0-9]+(?:(?: *,)? +[a-z0-9]+)* *\.? *")
# A word comes from whoever made the checkpoint: it must steer no terminal, and be text.
_UNFIT: Final = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_TURNS: Final = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")  # of direction
_LONGEST_STYLE = 100  # characters: it stands in records and messages
_PLAIN_WORD = re.compile(r"[a-z0-9]+")
_CUT = frozenset({"cannot", "gimme", "gonna", "gotta", "lemme", "wanna"})
# Unicode's blocks of the scripts that are written without spaces between words: Thai, Lao, Tibetan,
# Burmese, Khmer, Japanese, Chinese. Korean has spaces.
_UNSPACED: Final = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003ffff]"
)


def tokenize(caption: str, by: Tokenizer = "words", *, lowercase: bool = True) -> list[str]:
    """Split a caption into tokens without punctuation, in small letters unless told otherwise.

    >>> tokenize("A man's dog doesn't run.")
    ['a', 'man', "'s", 'dog', 'does', "n't", 'run']
    >>> tokenize("戴着LED灯的狗。", "characters")
    ['戴', '着', 'led', '灯', '的', '狗']
    >>> tokenize("Ein Hund, »groß« wie l'arbre", "unicode", lowercase=False)
    ['Ein', 'Hund', 'groß', 'wie', "l'arbre"]
    """
    if lowercase:
        caption = caption.lower()
    if by != "words":
        return _unicode_words(caption, characters=by == "characters")
    if _PLAIN.fullmatch(caption):
        words = _PLAIN_WORD.findall(caption)
        if _CUT.isdisjoint(words):
            return words
    return [token for token in _treebank().tokenize(caption) if _WORD.search(token)]


def _unicode_words(caption: str, *, characters: bool) -> list[str]:
    bounds, letter = _unicode_patterns()
    text = _TURNS.sub("", unicodedata.normalize("NFC", caption))
    words = [word for word in bounds.split(text) if _WORD.search(word)]
    if not characters:
        return words
    return [
        part
        for word in words
        for part in (letter.findall(word) if _UNSPACED.search(word) else [word])
    ]


@cache
def _unicode_patterns() -> tuple[Any, Any]:
    """Give the boundaries of words and what is one letter to a reader, by Unicode's rules."""
    import regex  # only here: it takes longer to import than a photo to caption

    return regex.compile(r"(?V1w)\b"), regex.compile(r"\X")


def is_fit(text: str) -> bool:
    """Whether a text steers no terminal and can be written down, so that records may have it."""
    return not _UNFIT.search(text)


def has_no_spaces(captions: Iterable[str]) -> bool:
    """Whether most letters are of scripts without spaces between words."""
    letters = unspaced = 0
    for caption in captions:
        letters += sum(map(str.isalpha, caption))
        unspaced += len(_UNSPACED.findall(caption))
    return 2 * unspaced > letters


@cache
def _treebank() -> TreebankWordTokenizer:
    # Captioning only needs to decode, and nltk takes longer to import than a photo to caption.
    from nltk.tokenize import TreebankWordTokenizer

    return TreebankWordTokenizer()


def join(words: Iterable[str], by: Tokenizer = "words") -> str:
    """Write tokens as a sentence; Treebank's "n't", "'s" and their like lean on the word before.

    >>> join(["a", "man", "'s", "dog"])
    "a man's dog"
    >>> join(["狗", "和", "led", "灯"], "characters")
    '狗和led灯'
    """
    if by != "words":
        text = before = ""
        for word in words:
            both = before and not _UNSPACED.match(before) and not _UNSPACED.match(word)
            text, before = f"{text} {word}" if both else text + word, word
        return text
    return re.sub(r" (n't|'(?:s|m|d|ll|re|ve))\b", r"\1", " ".join(words))


class Vocabulary:
    """The words a model knows. Tokens 0 to 3 are <pad>, <start>, <end> and <unk>.

    A model that was trained on captions of several styles, such as those of two data sets, has a
    token for each of them that takes the place of <start>; these come last.

    Args:
        words: the words without the special tokens, in the order of their numbers.
        tokenizer: how captions are split into them.
        styles: their names; the first is the usual one.

    Raises ConfigError: a word or style is empty, stands twice, or is a special token; a style
    steers terminals; there is no such tokenizer.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        tokenizer: Tokenizer = "words",
        lowercase: bool = True,
        styles: Sequence[str] = (),
    ) -> None:
        if tokenizer not in get_args(Tokenizer):
            known = ", ".join(get_args(Tokenizer))
            raise ConfigError(f"there is no tokenizer {tokenizer!r}: it is one of {known}")
        if not isinstance(styles, list | tuple):
            raise ConfigError("the styles of the vocabulary are no list")
        if not all(isinstance(word, str) for word in (*words, *styles)):
            raise ConfigError("the vocabulary has words that are not text")
        if not all(style and is_fit(style) and len(style) <= _LONGEST_STYLE for style in styles):
            raise ConfigError("the vocabulary has a style that is no plain name")
        self.tokenizer: Tokenizer = tokenizer
        self.lowercase = lowercase
        self.styles = tuple(styles)
        self.words = (*SPECIAL_TOKENS, *words, *(f"<start {style}>" for style in styles))
        self._ids = {word: number for number, word in enumerate(self.words)}
        if "" in self._ids or len(self._ids) != len(self.words):
            raise ConfigError("the vocabulary has an empty word, or a word that stands twice")

    @property
    def ordinary_words(self) -> tuple[str, ...]:
        """The words without the special tokens: what another vocabulary like this is made of."""
        return self.words[len(SPECIAL_TOKENS) : len(self.words) - len(self.styles)]

    @property
    def silent(self) -> tuple[int, ...]:
        """What stands for no word: <pad>, and what captions begin with."""
        return (PAD, START, *range(len(self.words) - len(self.styles), len(self.words)))

    def start(self, style: str = "") -> int:
        """Number the token that captions of a style begin with; as for `style`."""
        named = self.style(style)
        return START if named is None else self._ids[f"<start {named}>"]

    def style(self, name: str = "") -> str | None:
        """Name a style in full, "" being the usual one; None where the model has no styles.

        Raises ConfigError: there is no such style.
        """
        if name and name not in self.styles:
            known = ", ".join(map(ascii, self.styles))
            has = f"has {known}" if known else "has one style of captions only"
            raise ConfigError(f"there is no style {name!r}: the model {has}")
        return name or next(iter(self.styles), None)

    @classmethod
    def build(
        cls,
        captions: Iterable[Sequence[str]],
        *,
        minimum_count: int = 5,
        tokenizer: Tokenizer = "words",
    ) -> Vocabulary:
        """Take the words that stand at least `minimum_count` times in tokenized captions.

        The most frequent come first; words that are equally frequent follow the alphabet.
        """
        counts = Counter(word for caption in captions for word in caption)
        ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return cls([word for word, n in ordered if n >= minimum_count], tokenizer=tokenizer)

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._ids

    def knows(self, word: str) -> bool:
        """Whether a word is one of the ordinary words."""
        number = self._ids.get(word, PAD)
        return len(SPECIAL_TOKENS) <= number < len(self.words) - len(self.styles)

    def encode(self, words: Iterable[str]) -> list[int]:
        """Number the words, without start and end; an unknown word is <unk>."""
        return [self._ids.get(word, UNK) for word in words]

    def decode(self, tokens: Iterable[int]) -> list[str]:
        """Name the words of the tokens up to <end>, leaving <pad> and what starts them out."""
        words, silent = [], self.silent
        for token in tokens:
            if token == END:
                break
            if token not in silent:
                words.append(self.words[token])
        return words

    def tokenize(self, caption: str) -> list[str]:
        """Split a caption as those that the words come from."""
        return tokenize(caption, self.tokenizer, lowercase=self.lowercase)

    def join(self, words: Iterable[str]) -> str:
        """Write words as a sentence; U+FFFD stands for what is no part of one, such as escapes."""
        return _UNFIT.sub("\ufffd", join(words, self.tokenizer))
