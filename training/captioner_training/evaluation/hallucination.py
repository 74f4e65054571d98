"""CHAIR: the share of named objects that are not in the photo (Rohrbach et al. 2018)."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import yaml

from captioner_training.evaluation.bootstrap import mean_table, summary

Words = Sequence[str]


class Mention(NamedTuple):
    """A mention of a COCO category: the words `first` to `end` (exclusive) of a caption."""

    category: str
    first: int
    end: int


def mentions(words: Words) -> list[Mention]:
    """Return the COCO categories that a caption names, in order.

    >>> mentions("two men with a hot dog beside train tracks".split())
    [Mention(category='person', first=1, end=2), Mention(category='hot dog', first=4, end=6)]
    """
    names, named, at = _names(), [], 0
    while at < len(words):
        # Names of two words take precedence: a hot dog is no dog.
        size = 2 if at + 2 <= len(words) and tuple(words[at : at + 2]) in names else 1
        if category := names.get(tuple(words[at : at + size])):
            named.append(Mention(category, at, at + size))
        at += size
    return named


def named_categories(words: Words) -> list[str]:
    """Return the categories that a caption names, one per mention."""
    return [mention.category for mention in mentions(words)]


def hallucination(
    references: Sequence[Sequence[Words]],
    captions: Sequence[Words],
    *,
    objects: Sequence[Collection[str]] | None = None,
) -> dict[str, object] | None:
    """Measure how often captions name objects that are not in their images.

    Args:
        references: tokenized references of each image. Categories that they name are present.
        captions: tokenized caption of each image.
        objects: categories of the annotated objects of each image, which are present too. Without
            annotations, an object that no reference names counts as absent.

    Returns:
        `CHAIR_i`: the percentage of mentions that name an absent object.
        `CHAIR_s`: the percentage of captions with such a mention.
        `intervals`: the 95 % intervals of both.
        `mentions`: the number of mentions.
        `annotated`: whether `objects` was given.
        None if no caption names a category.
    """
    wrong, count = [], []
    for at, (texts, caption) in enumerate(zip(references, captions, strict=True)):
        present = {category for words in texts for category in named_categories(words)}
        present |= set(objects[at]) if objects is not None else set()
        named = named_categories(caption)
        count.append(len(named))
        wrong.append(sum(category not in present for category in named))
    if not sum(count):
        return None
    tables = {
        "CHAIR_i": mean_table(wrong, count, scale=100),
        "CHAIR_s": mean_table([number > 0 for number in wrong], scale=100),
    }
    return {"mentions": sum(count), "annotated": objects is not None, **summary(tables)}


@cache
def words_of(table: str) -> dict[str, Any]:
    """Read a YAML table of words from this folder."""
    file = files("captioner_training.evaluation").joinpath(table)
    content: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return content


@cache
def _names() -> dict[tuple[str, ...], str]:
    """Return the category of each name, a tuple of words; "" for phrases that name no category."""
    lists = words_of("categories.yaml")
    names: dict[tuple[str, ...], str] = {(word,): "person" for word in lists["people"].split()}
    for category, synonyms in lists["categories"].items():
        for name in (category, *filter(None, synonyms.split(", "))):
            *before, last = name.split()
            for form in (last, lists["plurals"].get(last) or _plural(last)):
                names[(*before, form)] = category
    for category, phrases in lists["phrases"].items():
        for phrase in phrases.split(", "):
            names[tuple(phrase.split())] = "" if category == "none" else category
    return names


def _plural(noun: str) -> str:
    """Return the regular plural of an English noun."""
    if noun.endswith("knife"):
        return noun[:-2] + "ves"
    if re.search("[^aeiou]y$", noun):
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")
