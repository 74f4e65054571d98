"""Wording of captions before they are written: replaced words and a template.

A record keeps the model's sentence as `unworded`, so that another wording can be applied later.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

from captioner.errors import ConfigError

Existing = Literal["skip", "overwrite", "append"]
"""How an existing text is combined with a new one."""

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
"""Control characters that text files and XML should not contain."""

INVALID = re.compile(rf"{CONTROL.pattern}|[\ud800-\udfff]")
"""Control characters, and surrogates, which stand for bytes that are not UTF-8."""

_FIELD = "{caption}"


@dataclass(frozen=True, kw_only=True)
class Wording:
    """Replace words, then fill the template.

    With a template, texts are written as it gives them. Otherwise captions in XMP and CSV begin
    with a capital letter and end with a full stop.

    Raises ConfigError: the template lacks {caption}, or a text has a control character.
    """

    template: str | None = None  # {caption} stands for the caption
    replace: tuple[tuple[str, str], ...] = ()  # whole words: man=person does not change "woman"

    def __post_init__(self) -> None:
        if self.template is not None and _FIELD not in self.template:
            raise ConfigError(f"template is {self.template!r}; it must have the field {_FIELD}")
        for text in (self.template or "", *chain.from_iterable(self.replace)):
            if INVALID.search(text):
                raise ConfigError(f"{text!r} has a control character, or is not UTF-8: correct it")
        if any(not old.strip() for old, _ in self.replace):
            raise ConfigError("replace has no word to replace: write OLD=NEW")

    def apply(self, record: dict[str, Any]) -> dict[str, Any]:
        """Return a record with this wording in its caption and alternatives.

        Its `words` are not changed. An earlier wording is replaced, not extended.
        """
        alternatives = [self._word(alternative) for alternative in record["alternatives"]]
        worded = {**self._word(record), "alternatives": alternatives}
        if self.replace and "keywords" in record:
            text = self._replaced(record.get("unworded", record["caption"]))
            keywords = map(self._replaced, record["keywords"])
            replaced = (" ".join(keyword.replace(",", " ").split()) for keyword in keywords)
            # Drop keywords that a replacement of several words removed.
            kept = (keyword for keyword in replaced if has_word(text, keyword))
            worded["keywords"] = list(dict.fromkeys(kept))
        return worded

    def _replaced(self, text: str) -> str:
        for old, new in self.replace:
            literal = new.replace("\\", r"\\")  # re.sub would read backslashes as groups
            text = re.sub(rf"(?<!\w){re.escape(old)}(?!\w)", literal, text)
        return text

    def _word(self, sentence: Mapping[str, Any]) -> dict[str, Any]:
        original = sentence.get("unworded", sentence["caption"])
        text = self._replaced(original)
        if self.template is not None:
            text = self.template.replace(_FIELD, text)
        worded = {**sentence, "caption": text}
        worded.pop("unworded", None)
        return worded if text == original else {**worded, "unworded": original}


def sentence(text: str) -> str:
    """Add a capital letter and a full stop, as in alt texts, unless they are there.

    >>> sentence("a dog runs"), sentence("A dog!")
    ('A dog runs.', 'A dog!')
    """
    if not any(sign.isupper() or sign.islower() for sign in text):
        return text  # scripts without capitals have other full stops
    stop = "." if text[-1].isalnum() or text[-1] in ")'\"" else ""
    return f"{text[0].upper()}{text[1:]}{stop}"


def combine(old: str | None, new: str, existing: Existing) -> str | None:
    """Combine two texts; return None to keep the old one. Idempotent.

    A text of several lines gets a new line, any other text a sentence in its line.
    """
    if old is None or not old.strip() or existing == "overwrite":
        return new
    if existing == "skip":
        return None
    if old == new or old.endswith((f" {new}", f"\n{new}")):
        return old
    return f"{old}\n{new}" if "\n" in old else f"{old} {new}"


def combine_keywords(old: str | None, new: Sequence[str], existing: Existing) -> str:
    """Combine comma-separated keywords without duplicates, ignoring case.

    >>> combine_keywords("Dog, sea", ["dog", "beach"], "append")
    'Dog, sea, beach'
    """
    before = [] if existing == "overwrite" else re.split(r"[,\n]", old or "")
    named: dict[str, str] = {}
    for part in filter(None, map(str.strip, [*before, *new])):
        named.setdefault(part.casefold(), part)
    return ", ".join(named.values())


def has_word(text: str, word: str) -> bool:
    """Return whether a text contains a word or phrase as whole words, ignoring case."""
    pattern = rf"(?<!\w){re.escape(word)}(?!\w)"
    return bool(word) and re.search(pattern, text, re.IGNORECASE) is not None
