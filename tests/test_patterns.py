"""Every literal regular expression of the product ends quickly on text made to hold it up."""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Iterator
from re import _compiler, _parser  # type: ignore[attr-defined]
from typing import Any

import pytest

from captioner.photos import formats
from tests.launcher import ROOT

_LIMIT = 0.05  # seconds
_FUNCTIONS = {"compile", "match", "search", "fullmatch", "sub", "subn", "findall", "finditer",
              "split"}  # fmt: skip
_REPEATS = {_parser.MAX_REPEAT, _parser.MIN_REPEAT, _parser.POSSESSIVE_REPEAT}


def _patterns() -> set[str | bytes]:
    """Return the literal patterns in calls of the module re, and those of file signatures."""
    found: set[str | bytes] = {formats._HEIC, *formats._READERS}
    for folder in ("captioner", "serving/captioner_serving", "training/captioner_training"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                match node:
                    case ast.Call(
                        func=ast.Attribute(value=ast.Name(id="re"), attr=attribute),
                        args=[ast.Constant(value=str() | bytes() as pattern), *_],
                    ) if attribute in _FUNCTIONS:
                        found.add(pattern)
    return found


def _sample(items: Any) -> str:
    """Return a text that a parsed pattern matches, with each repetition as short as allowed."""
    text = ""
    for item in items:
        match item:
            case _parser.LITERAL, value:
                text += chr(value)
            case ((_parser.NOT_LITERAL | _parser.ANY | _parser.IN), _):
                text += _member(item)
            case _parser.BRANCH, value:
                text += _sample(value[1][0])
            case _parser.SUBPATTERN, value:
                text += _sample(value[3])
            case _parser.ATOMIC_GROUP, value:
                text += _sample(value)
            case operator, value if operator in _REPEATS:
                text += _sample(value[2]) * value[0]
    return text


def _member(item: Any) -> str:
    """Return a character that an item accepts; of a set a space, if it may."""
    accepted = _compiler.compile(_parser.SubPattern(_parser.State(), [item]))
    first = "" if item[0] is _parser.IN else "ab"
    return next(filter(accepted.match, [*first, *map(chr, range(32, 0x250))]), "\t")


def _pumps(items: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """Iterate over the repetitions: the text before one, and a text that it matches."""
    for item in items:
        operator, value = item
        if operator in _REPEATS:
            yield before, _sample(value[2])
            yield from _pumps(value[2], before)
            for _, inner in _pumps(value[2]):
                yield before, inner + _sample(value[2])
        elif operator is _parser.SUBPATTERN:
            yield from _pumps(value[3], before)
        elif operator is _parser.BRANCH:
            for branch in value[1]:
                yield from _pumps(branch, before)
        before += _sample([item])


def _slowest(pattern: str | bytes) -> float:
    """Return the longest time of one search, in seconds; exponential growth ends the search."""
    compiled, longest = re.compile(pattern, re.DOTALL), 0.0
    for before, pump in {*_pumps(_parser.parse(pattern))}:
        for count in (12, 16, 18, 20, 22, 24, 100, 500):
            text = before + pump * count + "\0\1"
            subject = text if isinstance(pattern, str) else text.encode("latin-1", "replace")
            start = time.process_time()
            compiled.search(subject)
            longest = max(longest, time.process_time() - start)
            if longest > _LIMIT:
                return longest
    return longest


@pytest.mark.parametrize("pattern", sorted(_patterns(), key=repr), ids=repr)
def test_no_pattern_is_slow_on_any_text(pattern: str | bytes) -> None:
    assert _slowest(pattern) < _LIMIT


def test_an_exponential_pattern_is_found() -> None:
    assert _slowest(rb"\s*(<!--.*?-->\s*)*<(html|body)\b") > _LIMIT
    assert _slowest(r"(a+)+$") > _LIMIT
