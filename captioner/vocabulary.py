"""The vocabulary: captions to words, words to tokens, and back."""

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

Tokenizer = Literal["words", "unicode", "characters"]
"""words: Treebank's rules, for English. unicode: words by Unicode's rules (UAX 29), for languages
with spaces between words. characters: like unicode, but each character of a script without spaces
is a token."""

SPECIAL_TOKENS = ("<pad>", "<start>", "<end>", "<unk>")
PAD, START, END, UNK = range(4)

_WORD = re.compile(r"\w")
# Captions that Treebank's rules split only at spaces, unless they have a word in _CUT. Splitting
# them without Treebank is much faster.
_PLAIN = re.compile(r" *[a-z0-9]+(?:(?: *,)? +[a-z0-9]+)* *\.? *")
# Control characters, marks of writing direction and lone surrogates: not allowed in records.
_UNFIT: Final = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_DIRECTIONS: Final = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_LONGEST_STYLE = 100  # characters
_PLAIN_WORD = re.compile(r"[a-z0-9]+")
_CUT = frozenset({"cannot", "gimme", "gonna", "gotta", "lemme", "wanna"})
# Scripts without spaces between words: Thai, Lao, Tibetan, Burmese, Khmer, Japanese, Chinese.
_UNSPACED: Final = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003ffff]"
)


def tokenize(caption: str, by: Tokenizer = "words", *, lowercase: bool = True) -> list[str]:
    """Split a caption into words without punctuation, in lower case by default.

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
    text = _DIRECTIONS.sub("", unicodedata.normalize("NFC", caption))
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
    """Return patterns of word boundaries and of grapheme clusters."""
    import regex  # slow to import

    return regex.compile(r"(?V1w)\b"), regex.compile(r"\X")


def is_printable(text: str) -> bool:
    """Whether a text has no characters that records forbid, such as control characters."""
    return not _UNFIT.search(text)


def has_no_spaces(captions: Iterable[str]) -> bool:
    """Whether most letters of the captions belong to scripts without spaces between words."""
    letters = unspaced = 0
    for caption in captions:
        letters += sum(map(str.isalpha, caption))
        unspaced += len(_UNSPACED.findall(caption))
    return 2 * unspaced > letters


@cache
def _treebank() -> TreebankWordTokenizer:
    from nltk.tokenize import TreebankWordTokenizer  # slow to import

    return TreebankWordTokenizer()


def join(words: Iterable[str], by: Tokenizer = "words") -> str:
    """Join words into a sentence; Treebank's "n't", "'s" and so on are attached without a space.

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
    text = " ".join(words)
    return re.sub(r" (n't|'(?:s|m|d|ll|re|ve))\b", r"\1", text) if "'" in text else text


class Vocabulary:
    """The words of a model. Tokens 0 to 3 are <pad>, <start>, <end> and <unk>.

    A model with several styles of captions has a start token for each, after the words.

    Args:
        words: the words in the order of their tokens, without special tokens.
        tokenizer: how captions are split into words.
        lowercase: whether captions are converted to lower case.
        styles: the names of the styles; the first is the default.

    Raises ConfigError: a word is empty, repeated or a special token; a style has unprintable
    characters; or there is no such tokenizer.
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
            names = ", ".join(get_args(Tokenizer))
            raise ConfigError(f"there is no tokenizer {tokenizer!r}: choose from {names}")
        if not isinstance(styles, list | tuple):
            raise ConfigError("the styles of the vocabulary are not a list")
        if not all(isinstance(word, str) for word in (*words, *styles)):
            raise ConfigError("the vocabulary has words that are not text")
        if not all(
            style and is_printable(style) and len(style) <= _LONGEST_STYLE for style in styles
        ):
            raise ConfigError("the vocabulary has a style that is empty, too long or unprintable")
        self.tokenizer: Tokenizer = tokenizer
        self.lowercase = lowercase
        self.styles = tuple(styles)
        self.words = (*SPECIAL_TOKENS, *words, *(f"<start {style}>" for style in styles))
        self._ids = {word: number for number, word in enumerate(self.words)}
        if "" in self._ids or len(self._ids) != len(self.words):
            raise ConfigError("the vocabulary has an empty or repeated word")

    @property
    def ordinary_words(self) -> tuple[str, ...]:
        """The words without special tokens."""
        return self.words[len(SPECIAL_TOKENS) : len(self.words) - len(self.styles)]

    @property
    def never_generated(self) -> tuple[int, ...]:
        """The tokens that are not words: <pad> and the start tokens."""
        return (PAD, START, *range(len(self.words) - len(self.styles), len(self.words)))

    def start(self, style: str = "") -> int:
        """Return the start token of a style; argument and errors as for `style`."""
        name = self.style(style)
        return START if name is None else self._ids[f"<start {name}>"]

    def style(self, name: str = "") -> str | None:
        """Return the name of a style, or of the default for ""; None if the model has no styles.

        Raises ConfigError: there is no such style.
        """
        if name and name not in self.styles:
            names = ", ".join(map(ascii, self.styles))
            hint = f"the model has {names}" if names else "the model has one style of captions only"
            raise ConfigError(f"there is no style {name!r}: {hint}")
        return name or next(iter(self.styles), None)

    @classmethod
    def build(
        cls,
        captions: Iterable[Sequence[str]],
        *,
        minimum_count: int = 5,
        tokenizer: Tokenizer = "words",
    ) -> Vocabulary:
        """Make a vocabulary of the words that occur at least `minimum_count` times.

        Words are ordered by frequency, then alphabetically.
        """
        counts = Counter(word for caption in captions for word in caption)
        ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return cls([word for word, n in ordered if n >= minimum_count], tokenizer=tokenizer)

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._ids

    def encode(self, words: Iterable[str]) -> list[int]:
        """Return the tokens of words; unknown words are <unk>."""
        return [self._ids.get(word, UNK) for word in words]

    def decode(self, tokens: Iterable[int]) -> list[str]:
        """Return the words of tokens up to <end>, without <pad> and start tokens."""
        words, skipped = [], self.never_generated
        for token in tokens:
            if token == END:
                break
            if token not in skipped:
                words.append(self.words[token])
        return words

    def decode_plain(self, tokens: Iterable[int]) -> list[str]:
        """Return the words as evaluation scores them; here the same as `decode`."""
        return self.decode(tokens)

    def tokenize(self, caption: str) -> list[str]:
        """Split a caption into words, as for training."""
        return tokenize(caption, self.tokenizer, lowercase=self.lowercase)

    def join(self, words: Iterable[str]) -> str:
        """Join words into a sentence; unprintable characters become U+FFFD."""
        return _UNFIT.sub("\ufffd", join(words, self.tokenizer))
