"""Tokens, numbers and sentences."""

from __future__ import annotations

import re
from random import Random

import pytest

from captioner import ConfigError
from captioner.vocabulary import (
    END,
    PAD,
    SPECIAL_TOKENS,
    START,
    UNK,
    Vocabulary,
    has_no_spaces,
    join,
    tokenize,
)


def test_tokens_are_treebanks_lower_case_without_punctuation() -> None:
    # Treebank conventions (Marcus et al. 1993): clitics stand alone.
    assert tokenize('A man\'s dog doesn\'t "run", it WALKS (slowly) .') == [
        "a", "man", "'s", "dog", "does", "n't", "run", "it", "walks", "slowly",
    ]  # fmt: skip
    assert tokenize("T-shirt, 2 café tables - outside!") == [
        "t-shirt", "2", "café", "tables", "outside",
    ]  # fmt: skip
    assert tokenize(" ... ") == []


def test_plain_captions_are_split_as_treebank_splits_them() -> None:
    """Against nltk's own tokenizer, on 1,000 texts of words, numbers, clitics and stops."""
    from nltk.tokenize import TreebankWordTokenizer  # takes a second to import

    treebank = TreebankWordTokenizer()
    words = ["a", "dog", "Cannot", "gonna", "gimme", "wanna", "lemme", "gotta", "10", "000", "t"]
    words += ["u", "s", "can", "not", "man's", "café", "o'clock", "d'ye", "more'n"]
    between = [" ", "  ", ", ", " , ", ",", ". ", ".", " .", "-", ": "]
    chance = Random(0)
    for _ in range(1_000):
        parts = chance.choices(words, k=chance.randrange(1, 6))
        weights = [8, *[1] * 9]
        text = "".join(w + chance.choices(between, weights)[0] for w in parts)
        expected = [token for token in treebank.tokenize(text.lower()) if re.search(r"\w", token)]
        assert tokenize(text) == expected, text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Ein großer Hund, »Max«, läuft.", ["Ein", "großer", "Hund", "Max", "läuft"]),
        ("L’arbre d'été – 3,5 m", ["L’arbre", "d'été", "3,5", "m"]),
        # Vowels stay with their letters; the comma and the marks of direction go.
        ("\u200fرجلٌ يركبُ، أمامَ بيت\u200f", ["رجلٌ", "يركبُ", "أمامَ", "بيت"]),
        ("\u2067דג\u200e ים\u061c\u2069", ["דג", "ים"]),
        ("می\u200cخواهم بروم", ["می\u200cخواهم", "بروم"]),  # a joiner belongs to the word
        ("Fu\u0308ße", ["Füße"]),  # ü in two characters
        ("...", []),
    ],
)
def test_words_of_other_languages_are_cut_by_unicode_s_rules(text: str, words: list[str]) -> None:
    assert tokenize(text, "unicode", lowercase=False) == words
    assert tokenize(text, "unicode") == [word.lower() for word in words]
    vocabulary = Vocabulary.build([words], minimum_count=1, tokenizer="unicode")
    assert vocabulary.join(vocabulary.decode(vocabulary.encode(words))) == " ".join(words)


@pytest.mark.parametrize(
    ("text", "tokens", "sentence"),
    [
        ("戴着LED灯的狗。", ["戴", "着", "led", "灯", "的", "狗"], "戴着led灯的狗"),
        ("犬が2匹、ボール", ["犬", "が", "2", "匹", "ボ", "ー", "ル"], "犬が2匹ボール"),
        # Vowels and tones above and below belong to the letter that they stand on.
        ("สุนัขวิ่ง", ["สุ", "นั", "ข", "วิ่", "ง"], "สุนัขวิ่ง"),
        ("A red T恤, Nike Air", ["a", "red", "t", "恤", "nike", "air"], "a red t恤nike air"),
        # Lao, Burmese, Khmer, Tibetan, and rarer letters of Chinese and Japanese.
        ("ຫມາမိការ", ["ຫ", "ມ", "າ", "မိ", "កា", "រ"], "ຫມາမိការ"),
        ("བོད་ཡིག", ["བོ", "ད", "ཡི", "ག"], "བོདཡིག"),
        ("㐂𠮷﨑々ｶﾒ", ["㐂", "𠮷", "﨑", "々", "ｶ", "ﾒ"], "㐂𠮷﨑々ｶﾒ"),
    ],
)
def test_scripts_without_spaces_are_split_by_characters(
    text: str, tokens: list[str], sentence: str
) -> None:
    assert tokenize(text, "characters") == tokens
    assert join(tokens, "characters") == sentence
    vocabulary = Vocabulary.build([tokens], minimum_count=1, tokenizer="characters")
    assert vocabulary.join(vocabulary.decode(vocabulary.encode(tokens))) == sentence


def test_scripts_without_spaces_are_recognized() -> None:
    assert has_no_spaces(["一只狗在草地上跑", "a dog"]) and has_no_spaces(["สุนัขวิ่ง"])
    assert not has_no_spaces(["개가 공원에서 뛴다", "a dog", "собака", "穿T-shirt的a man"])
    assert not has_no_spaces(["a dog in a park", "一只狗"]) and not has_no_spaces([])
    assert not has_no_spaces(["a dog in a park", "狗"]) and has_no_spaces(["一只狗跑", "a d"])


def test_equally_frequent_words_are_in_alphabetical_order() -> None:
    """Whatever comes first in the data: so that its order does not decide a word's number."""
    captions = [["d", "b", "b"], ["c", "a"]]
    for given in (captions, captions[::-1]):
        assert Vocabulary.build(given, minimum_count=1).ordinary_words == ("b", "a", "c", "d")
    assert Vocabulary.build(captions, minimum_count=2).words == (*SPECIAL_TOKENS, "b")


def test_encode_and_decode() -> None:
    vocabulary = Vocabulary(["dog", "a"])
    assert vocabulary.encode(["a", "zebra", "dog"]) == [5, UNK, 4]
    for decode in (vocabulary.decode, vocabulary.decode_plain):
        assert decode([START, 5, 4, END, 4, PAD]) == ["a", "dog"]
    assert len(vocabulary) == 6


@pytest.mark.parametrize(
    ("caption", "joined"),
    [
        ("a man's dog doesn't run, he'd say they're sure I'm well", None),
        ("we'll see what they've got", None),
        ("the dogs' bowls", "the dogs bowls"),
        ("a 'no parking' sign", "a 'no parking sign"),
        ("rock 'n roll and 'some thing", None),
    ],
)
def test_only_endings_are_joined_to_the_word_before(caption: str, joined: str | None) -> None:
    assert join(tokenize(caption)) == (joined or caption.lower().replace(",", ""))


def test_an_invalid_vocabulary_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="no tokenizer 'letters': choose from words, unicode, characters"
    ):
        Vocabulary(["a"], tokenizer="letters")  # type: ignore[arg-type]
    for words in (["a", "a"], ["<unk>"], [""]):
        with pytest.raises(ConfigError, match="vocabulary"):
            Vocabulary(words)


def test_unprintable_characters_in_words_are_replaced() -> None:
    """The words of a checkpoint are untrusted."""
    words = ("a\x1b[2J", "\x9b5m", "do\ng", "\u202ered", "\ud800", "plain")
    said = Vocabulary(words).join(words)
    assert said == "a\ufffd[2J \ufffd5m do\ufffdg \ufffdred \ufffd plain"
