"""Content words, claims and nouns of English captions, and whether a caption's words are right.

A word is right if a reference of the photo has its stem or the stem of a synonym. A word for a COCO
category, except people, is also right if a reference names that category. Correct words that no
reference uses count as wrong, so human captions do not reach 100 % either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise

from nltk.stem.snowball import SnowballStemmer

from captioner_training.evaluation.hallucination import mentions, named_categories, words_of

_FUNCTION = """
a an the this that these those its his her their it he she they them who which what there
of in on at to from by with without for as into onto over under near through up down out off
and or but while is are was were be been being has have had do does did not n't 's 're
some other another each very so than then also
"""
FUNCTION_WORDS = frozenset(_FUNCTION.split())
"""Words that name nothing visible; all others are content words."""

_NO_CLAIM = """
group groups bunch couple pair pairs set row number lot lots piece pieces kind type bit several many
various different others same top bottom front back side sides middle center centre end edge corner
background foreground distance next close behind above below beside inside outside around along
together left right standing stands stand picture pictures photo photos image view shot scene area
thing things something way
"""
# Content words that a photo hardly ever contradicts, so they are neither right nor wrong.
_WITHOUT_CLAIM = FUNCTION_WORDS | set(_NO_CLAIM.split())

_DETERMINER = """
a an the his her their its this that these those some two three four five six several many one of
another
"""
_DETERMINERS = frozenset(_DETERMINER.split())
_AFTER_DETERMINER, _BEFORE_FUNCTION_WORD = 0.1, 0.33  # least shares of a noun's occurrences

_PERSON = "person"
_SYNONYMS = "synonyms.yaml"


def is_claim(word: str) -> bool:
    """Whether a word says something about a photo that can be wrong."""
    return word != "" and word not in _WITHOUT_CLAIM


def count_nouns(captions: Iterable[Sequence[str]]) -> set[str]:
    """Return the words that captions use as nouns.

    A noun often follows a determiner and often stands before a function word or at the end. A verb
    rarely follows a determiner. An adjective rarely stands before a function word or at the end.
    """
    total, first, last = Counter[str](), Counter[str](), Counter[str]()
    for words in captions:
        total.update(words)
        first.update(b for a, b in pairwise(words) if a in _DETERMINERS)
        last.update(a for a, b in pairwise(words) if b in FUNCTION_WORDS)
        last.update(words[-1:])
    return {
        word
        for word, count in total.items()
        if is_claim(word)
        and first[word] >= _AFTER_DETERMINER * count
        and last[word] >= _BEFORE_FUNCTION_WORD * count
    }


@cache
def stem(word: str) -> str:
    """Return the stem of an English word; irregular forms are in a table."""
    stemmed: str = SnowballStemmer("english").stem(words_of(_SYNONYMS)["irregular"].get(word, word))
    return stemmed


def stems_of(references: Iterable[Sequence[str]]) -> set[str]:
    """Return the stems of all words of references."""
    return {stem(word) for words in references for word in words}


def synonyms(of: str) -> frozenset[str]:
    """Return the stem `of` and its synonyms; all of them count as this stem in references."""
    return _synonyms().get(of, frozenset([of]))


def right_words(words: Sequence[str], references: Sequence[Sequence[str]]) -> list[bool | None]:
    """Return whether each word of a caption is right; None for words without a claim.

    >>> right_words("a puppy on the grass".split(), ["a dog runs".split()])
    [None, True, None, None, False]
    """
    present = stems_of(references)
    named = {name for reference in references for name in named_categories(reference)}
    right = {
        place
        for mention in mentions(words)
        if mention.category != _PERSON and mention.category in named
        for place in range(mention.first, mention.end)
    }
    return [
        place in right or bool(present & synonyms(stem(word))) if is_claim(word) else None
        for place, word in enumerate(words)
    ]


@cache
def _synonyms() -> dict[str, frozenset[str]]:
    stems: dict[str, set[str]] = {}
    table, people = words_of(_SYNONYMS), words_of("categories.yaml")["people"]
    for line in table["same"]:
        group = {stem(word) for word in line.split()}
        for member in group:
            stems.setdefault(member, set()).update(group)
    for word, others in {**table["general"], _PERSON: people}.items():
        stems.setdefault(stem(word), {stem(word)}).update(map(stem, others.split()))
    return {word: frozenset(group) for word, group in stems.items()}
