"""CHAIR: how many of the objects that captions name are not there (Rohrbach et al. 2018)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import yaml

from captioner_training.evaluation.bootstrap import mean_table, summary

__all__ = ["Mention", "hallucination", "mentions", "named_categories", "words_of"]

Words = Sequence[str]


class Mention(NamedTuple):
    """A category that a caption names with its words from `first` to before `end`."""

    category: str
    first: int
    end: int


def mentions(words: Words) -> list[Mention]:
    """Find the categories that a caption names, in its order.

    >>> mentions("two men with a hot dog beside train tracks".split())
    [Mention(category='person', first=1, end=2), Mention(category='hot dog', first=4, end=6)]
    """
    names, found, at = _names(), [], 0
    while at < len(words):
        # A name of two words goes first: a hot dog is no dog.
        size = 2 if at + 2 <= len(words) and tuple(words[at : at + 2]) in names else 1
        if category := names.get(tuple(words[at : at + size])):
            found.append(Mention(category, at, at + size))
        at += size
    return found


def named_categories(words: Words) -> list[str]:
    """List the categories that a caption names, once for each mention."""
    return [one.category for one in mentions(words)]


def hallucination(
    references: Sequence[Sequence[Words]],
    captions: Sequence[Words],
    *,
    objects: Sequence[Collection[str]] | None = None,
) -> dict[str, object] | None:
    """Count objects of COCO's categories that a caption names and its image does not have.

    Args:
        references: of each image; what they name is there.
        captions: of each image.
        objects: of each image, categories that its annotated objects have: they are there too.
            Without them, an object that people left out counts as hallucinated.

    Returns:
        `CHAIR_i`, the share of mentions, and `CHAIR_s`, the share of captions with such a mention,
        in percent, with `intervals`; how many `mentions` there are; and `annotated`, whether
        objects were given. None where no object is mentioned.
    """
    wrong, count = [], []
    for at, (texts, caption) in enumerate(zip(references, captions, strict=True)):
        there = {category for words in texts for category in named_categories(words)}
        there |= set(objects[at]) if objects is not None else set()
        said = named_categories(caption)
        count.append(len(said))
        wrong.append(sum(category not in there for category in said))
    if not sum(count):
        return None
    tables = {
        "CHAIR_i": mean_table(wrong, count, scale=100),
        "CHAIR_s": mean_table([each > 0 for each in wrong], scale=100),
    }
    return {"mentions": sum(count), "annotated": objects is not None, **summary(tables)}


@cache
def words_of(table: str) -> dict[str, Any]:
    """Read a table of words that lies beside this file."""
    file = files("captioner_training.evaluation").joinpath(table)
    found: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return found


@cache
def _names() -> dict[tuple[str, ...], str]:
    """Give the category of each name, as words; "" for what only looks like a name."""
    lists = words_of("categories.yaml")
    found: dict[tuple[str, ...], str] = {(word,): "person" for word in lists["people"].split()}
    for category, others in lists["categories"].items():
        for name in (category, *filter(None, others.split(", "))):
            *before, last = name.split()
            ending = "es" if last.endswith(("s", "x", "ch", "sh")) else "s"
            for form in (last, lists["plurals"].get(last, last + ending)):
                found[(*before, form)] = category
    for category, phrases in lists["phrases"].items():
        for phrase in phrases.split(", "):
            found[tuple(phrase.split())] = "" if category == "none" else category
    return found
