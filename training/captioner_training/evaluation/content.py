"""Words that name something, and whether a caption's words are right.

A word is right where a reference of the photo has its stem, or that of a synonym, or, for a word of
COCO's categories but people, names the same category. So a word that nobody happened to say counts
as wrong: people's own words are right in two of three cases only, judged by the others of a photo.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

from nltk.stem.snowball import SnowballStemmer

from captioner_training.evaluation.hallucination import mentions, named_categories, words_of

__all__ = ["FUNCTION_WORDS", "right_words", "stem", "stems_of", "synonyms"]

_FUNCTION = """
a an the this that these those its his her their it he she they them who which what there
of in on at to from by with without for as into onto over under near through up down out off
and or but while is are was were be been being has have had do does did not n't 's 're
some other another each very so than then also
"""
# Words of English captions that name nothing to be seen; all others are content words.
FUNCTION_WORDS = frozenset(_FUNCTION.split())

_PERSON = "person"
_SYNONYMS = "synonyms.yaml"


@cache
def stem(word: str) -> str:
    """Give the stem of an English word; forms that no rule brings together are in the table."""
    found: str = SnowballStemmer("english").stem(words_of(_SYNONYMS)["irregular"].get(word, word))
    return found


def stems_of(references: Iterable[Sequence[str]]) -> set[str]:
    """Give the stems of all words of references."""
    return {stem(word) for words in references for word in words}


def synonyms(of: str) -> frozenset[str]:
    """Give the stems that a stem may stand for in a reference, itself among them."""
    return _synonyms().get(of, frozenset([of]))


def right_words(words: Sequence[str], references: Sequence[Sequence[str]]) -> list[bool | None]:
    """Say of every word of a caption whether it is right; None for function words.

    >>> right_words("a puppy on the grass".split(), ["a dog runs".split()])
    [None, True, None, None, False]
    """
    said = stems_of(references)
    named = {one for each in references for one in named_categories(each)}
    there = {
        place
        for one in mentions(words)
        if one.category != _PERSON and one.category in named
        for place in range(one.first, one.end)
    }
    return [
        None if word in FUNCTION_WORDS else place in there or bool(said & synonyms(stem(word)))
        for place, word in enumerate(words)
    ]


@cache
def _synonyms() -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    table, people = words_of(_SYNONYMS), words_of("categories.yaml")["people"]
    for line in table["same"]:
        group = {stem(word) for word in line.split()}
        for one in group:
            found.setdefault(one, set()).update(group)
    for word, others in {**table["general"], _PERSON: people}.items():
        found.setdefault(stem(word), {stem(word)}).update(map(stem, others.split()))
    return {one: frozenset(group) for one, group in found.items()}
