"""What is done to a caption before it is written: words replaced, a template, a text before it.

A record that was worded keeps the model's own sentence as `unworded`: it can be worded anew.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from captioner.errors import ConfigError

__all__ = ["CONTROL", "Existing", "Wording", "combine", "combine_keywords", "has_word", "sentence"]

Existing = Literal["skip", "overwrite", "prepend", "append"]
"""What becomes of a text that is there already."""

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
"""What no text file and no XML wants, and no wording makes."""

_FIELDS = {"caption", "score"}
_HUGE = re.compile(r"\d{4}")  # in a format: so many digits, or so wide


@dataclass(frozen=True, kw_only=True)
class Wording:
    """Replace words, then fill the template, then put the prefix in front.

    Raises ConfigError: a template without {caption} or with an unknown field; a control character.
    """

    template: str = "{caption}"  # fields: caption, score
    prefix: str = ""
    replace: tuple[tuple[str, str], ...] = ()  # whole words: man=person leaves "woman" alone

    def __post_init__(self) -> None:
        try:
            parsed = list(string.Formatter().parse(self.template))
            fields = {name for _, name, _, _ in parsed} - {None}
            if wrong := [form for _, _, form, _ in parsed if form and _unfit(form)]:
                raise ValueError(f"{wrong[0]!r} cannot format it")
            self.template.format(caption="", score=-1.0)
        except (ValueError, KeyError, IndexError, AttributeError) as error:
            raise ConfigError(
                f"template {self.template!r} cannot be filled in ({error}): its fields are "
                "{caption} and {score}; a brace itself is written twice"
            ) from error
        if not {"caption"} <= fields <= _FIELDS:
            raise ConfigError(
                f"template {self.template!r} must have {{caption}}, may have {{score}}, no others"
            )
        for text in (self.template, self.prefix, *(part for pair in self.replace for part in pair)):
            if CONTROL.search(text):
                raise ConfigError(f"{text!r} has a control character")
            if any("\ud800" <= sign <= "\udfff" for sign in text):
                raise ConfigError(f"{text!r} is not UTF-8 text")
        if any(not old.strip() for old, _ in self.replace):
            raise ConfigError("replace needs something to replace: OLD=NEW")

    def apply(self, record: dict[str, Any]) -> dict[str, Any]:
        """Word the caption and the alternatives of a record; its words stay the model's own.

        A record that was worded before is worded from the model's own sentences.
        """
        alternatives = [self._word(other) for other in record["alternatives"]]
        worded = {**self._word(record), "alternatives": alternatives}
        if self.replace and "keywords" in record:
            text = self._replaced(record.get("unworded", record["caption"]))
            keywords = map(self._replaced, record["keywords"])
            replaced = (" ".join(keyword.replace(",", " ").split()) for keyword in keywords)
            # A keyword that a replacement of several words has removed is removed too.
            kept = (keyword for keyword in replaced if has_word(text, keyword))
            worded["keywords"] = list(dict.fromkeys(kept))
        return worded

    def _replaced(self, text: str) -> str:
        for old, new in self.replace:
            plain = new.replace("\\", r"\\")  # or re.sub would read backslashes as groups
            text = re.sub(rf"(?<!\w){re.escape(old)}(?!\w)", plain, text)
        return text

    def _word(self, sentence: Mapping[str, Any]) -> dict[str, Any]:
        own = sentence.get("unworded", sentence["caption"])
        text = self.template.format(caption=self._replaced(own), score=sentence["score"])
        text = self.prefix + text
        worded = {**sentence, "caption": text}
        worded.pop("unworded", None)
        return worded if text == own else {**worded, "unworded": own}


def sentence(text: str) -> str:
    """Begin with a capital and end with a full stop, as alt texts do; doing it twice does it once.

    >>> sentence("a dog runs"), sentence("A dog!")
    ('A dog runs.', 'A dog!')
    """
    if not any(sign.isupper() or sign.islower() for sign in text):
        return text  # a writing system without capitals has its own full stops
    stop = "." if text[-1].isalnum() or text[-1] in ")'\"" else ""
    return f"{text[0].upper()}{text[1:]}{stop}"


def combine(old: str | None, new: str, existing: Existing) -> str | None:
    """Bring two texts together; None keeps the old one. Doing it twice does it once."""
    if old is None or not old.strip() or existing == "overwrite":
        return new
    if existing == "append":
        return old if old == new or old.endswith(f" {new}") else f"{old} {new}"
    if existing == "prepend":
        return old if old == new or old.startswith(f"{new} ") else f"{new} {old}"
    return None


def combine_keywords(old: str | None, new: Sequence[str], existing: Existing) -> str:
    """Bring comma-separated keywords together, each once, whatever its case.

    >>> combine_keywords("Dog, sea", ["dog", "beach"], "append")
    'Dog, sea, beach'
    """
    before = [] if existing == "overwrite" else re.split(r"[,\n]", old or "")
    parts = [*new, *before] if existing == "prepend" else [*before, *new]
    named: dict[str, str] = {}
    for part in filter(None, map(str.strip, parts)):
        named.setdefault(part.casefold(), part)
    return ", ".join(named.values())


def has_word(text: str, word: str) -> bool:
    """Whether a text has a word or phrase as whole words, in any case."""
    pattern = rf"(?<!\w){re.escape(word)}(?!\w)"
    return bool(word) and re.search(pattern, text, re.IGNORECASE) is not None


def _unfit(form: str) -> bool:
    return "{" in form or _HUGE.search(form) is not None
