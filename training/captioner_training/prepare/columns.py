"""Find the columns of a table by the usual names in its header."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from captioner.errors import ConfigError
from captioner.shared.paths import did_you_mean
from captioner_training.prepare.splits import split_named

# Usual names of columns, in lower case, the most common first.
_IMAGE = (
    "image", "file_name", "filename", "image_path", "filepath", "path", "image_name", "image_file",
    "file", "photo", "img",
)  # fmt: skip
_CAPTION = (
    "caption", "captions", "text", "sentence", "sentences", "raw", "comment", "description",
    "alt_text",
)  # fmt: skip
_SPLIT = ("set", "subset", "partition")  # only if all values name splits
_NUMBERED = re.compile(r"(.*?)[ _-]?\d+")  # caption_1, text 2
_SHOWN = 20  # columns in a message


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns to read. Columns that are not given are found by their usual names."""

    image: str | None = None
    captions: tuple[str, ...] = ()
    split: str | None = None

    def named(self) -> list[str]:
        """Return the columns that are given by name."""
        return [name for name in (self.image, *self.captions, self.split) if name]

    def are_in(self, names: Sequence[str]) -> bool:
        """Whether a row has the given columns, or a usual name of photos or captions if none is."""
        if named := self.named():
            return {*named} <= {*names}
        return bool(_first(_IMAGE, names) or _captions(names))

    def find(self, names: Sequence[str], rows: Iterable[Mapping[str, Any]], path: Path) -> Columns:
        """Return the columns to read, with those that were not given filled in.

        Raises ConfigError: a given column is missing, or no column has photos or captions.
        """
        more = ", ..." if len(names) > _SHOWN else ""
        have = f"{path} has the columns {', '.join(names[:_SHOWN])}{more}"
        for name in self.named():
            if name not in names:
                near = did_you_mean(name, names)
                raise ConfigError(f"there is no column {name!r}{near or ':'} {have}")
        image = self.image or _first(_IMAGE, names)
        captions = self.captions or _captions(names)
        missing = []
        if image is None:
            missing.append("name the column of photos with --image-column")
        if not captions:
            missing.append("name the column of captions with --caption-column")
        if missing:
            raise ConfigError(f"{have}: {', and '.join(missing)}")
        return Columns(image=image, captions=captions, split=self.split or _split(names, rows))


def cell_captions(value: object) -> list[str]:
    """Return the captions in a cell.

    A cell may be a text, a list, a JSON or Python list as text, or an object with `raw`.
    """
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = _parse_list(value)
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        if name := next((name for name in ("raw", *_CAPTION) if value.get(name)), None):
            return cell_captions(value[name])
        return [""]
    if isinstance(value, list):
        return [text for item in value for text in (cell_captions(item) or [""])]
    return []


def _parse_list(text: str) -> object:
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return text


def _first(usual: Sequence[str], names: Sequence[str]) -> str | None:
    by_lower = {name.lower(): name for name in reversed(names)}
    return next((by_lower[name] for name in usual if name in by_lower), None)


def _captions(names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of captions. Numbered columns are read together: caption_1, caption_2."""
    best = _first(_CAPTION, list(map(_stem, names)))
    return tuple(name for name in names if _stem(name) == best) if best else ()


def _stem(name: str) -> str:
    numbered = _NUMBERED.fullmatch(name)
    return (numbered[1] if numbered else name).lower()


def _split(names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str | None:
    if name := _first(("split",), names):
        return name
    name = _first(_SPLIT, names)
    values = {str(row.get(name) or "") for row in rows} - {""} if name else set()
    return name if values and all(map(split_named, values)) else None
