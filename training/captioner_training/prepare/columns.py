"""The columns of a table: called by name, or found by what they hold, in any language."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from captioner.errors import ConfigError
from captioner.paths import did_you_mean
from captioner_training.prepare.listing import Problems, has_word
from captioner_training.prepare.originals import image_suffix
from captioner_training.prepare.splits import split_named

__all__ = ["IMAGE_NAMES", "Columns", "cell_captions"]

# What tables call these columns; capitals do not matter. Others are found by what they hold.
_IMAGE = (
    "image", "file_name", "filename", "image_path", "filepath", "path", "image_name", "image_file",
    "file", "photo", "img",
)  # fmt: skip
_CAPTION = (
    "caption", "captions", "text", "sentence", "sentences", "raw", "comment", "description",
    "alt_text",
)  # fmt: skip
_IN_OBJECT = ("raw", *_CAPTION, "tags")  # kohya's captions may be tags
IMAGE_NAMES = frozenset(_IMAGE)
_USUAL_NAMES = IMAGE_NAMES | frozenset(_CAPTION)
_SPLIT = ("split", "set", "subset", "partition")
_NUMBERED = re.compile(r"(.*?)[ _-]?\d+")  # caption_1, Beschreibung 2
_LOOKED_AT = 200  # rows, spread over the table
_TRIED = 20  # names that are looked for among the photos
_NAME = 2  # words, on average; sentences have more


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns to read; None: found by what they hold.

    delimiter: between the cells of a CSV file; None: found by its first rows.
    is_photo: whether a name without an image's suffix, such as a number, is that of a photo.
    """

    image: str | None = None
    captions: tuple[str, ...] = ()
    split: str | None = None
    delimiter: str | None = None
    is_photo: Callable[[str], bool] = lambda _: False

    def named(self) -> list[str]:
        """List the columns that the user has named."""
        return [name for name in (self.image, *self.captions, self.split) if name]

    def find(
        self,
        names: Sequence[str],
        rows: Sequence[Mapping[str, Any]],
        path: Path,
        problems: Problems,
    ) -> Columns:
        """Choose among the columns that there are; what was found by its cells is noted.

        Raises ConfigError: a named column is not there, or none holds photos, or sentences.
        """
        have = f"{path} has the columns {', '.join(names)}"
        for name in self.named():
            if name not in names:
                near = did_you_mean(name, names)
                raise ConfigError(f"there is no column {name!r}{near or ':'} {have}")
        some = rows[:: len(rows) // _LOOKED_AT + 1]
        cells = {name: [one for row in some if _is_filled(one := row.get(name))] for name in names}
        image = self.image or self._photos(cells)
        captions = self.captions or _sentences(
            {name: each for name, each in cells.items() if name not in (image, self.split)},
            rows=len(some),
        )
        asked = []
        if image is None:
            asked.append("which one names the photos? --image-column NAME")
        if not captions:
            asked.append("which one has the captions? --caption-column NAME")
        if asked:
            raise ConfigError(f"{have}: {', and '.join(asked)}")
        found = {name for name in (image, *captions) if name} - {*self.named()}
        if any(name.lower() not in _USUAL_NAMES for name in found):
            problems.note(
                f"photos are named in the column {image}, captions are those of "
                f"{', '.join(captions)}: --image-column and --caption-column name others"
            )
        others = {name: each for name, each in cells.items() if name not in (image, *captions)}
        split = self.split or _split_column(others)
        return Columns(image=image, captions=captions, split=split)

    def _photos(self, cells: Mapping[str, Sequence[object]]) -> str | None:
        """Find the column whose values are photos: by their suffixes, else among the photos."""
        counts = {name: sum(map(_names_photo, each)) for name, each in cells.items()}
        most = max(counts.values(), default=0)
        found = [
            name for name, count in counts.items() if 2 * count > max(len(cells[name]), most - 1)
        ]
        if len(found) != 1:  # several, or none, look like names of photos
            tried = {
                name: [str(one).strip() for one in cells[name] if _is_short(one)][:_TRIED]
                for name in found or cells
            }
            there = {name: mean(map(self.is_photo, each)) for name, each in tried.items() if each}
            best = max(there.values(), default=0)
            found = [name for name, part in there.items() if part == best > 0.5] or found
        return _first(_IMAGE, found) or next(iter(found), None) or _first(_IMAGE, [*cells])


def _names_photo(cell: object) -> bool:
    """Whether a cell is the name of a photo, or holds one, as Hugging Face's tables do."""
    if isinstance(cell, Mapping):
        return isinstance(cell.get("bytes"), bytes) or bool(cell.get("path"))
    return isinstance(cell, bytes) or (isinstance(cell, str) and bool(image_suffix(cell.strip())))


def _is_short(cell: object) -> bool:
    """Whether a cell may be a name."""
    return isinstance(cell, str | int) and len(str(cell)) < 200


def cell_captions(value: object) -> list[str]:
    """Read one caption or a list of them.

    A cell of a text table may hold a JSON or Python list; a caption may be an object with `raw`.
    """
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = _parse_list(value)
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        if name := next((name for name in _IN_OBJECT if value.get(name)), None):
            return cell_captions(value[name])
        tokens = value.get("tokens")
        return [" ".join(map(str, tokens)) if isinstance(tokens, list) else ""]
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


def _split_column(cells: Mapping[str, Sequence[object]]) -> str | None:
    """Find the column of splits: by its name, else by its values."""
    if named := _first(_SPLIT[:1], [*cells]):
        return named
    for name, values in cells.items():
        splits = {split_named(value) if isinstance(value, str) else None for value in values}
        if splits and None not in splits and (len(splits) > 1 or name.lower() in _SPLIT):
            return name
    return None


def _is_filled(cell: object) -> bool:
    return bool(cell.strip()) if isinstance(cell, str) else cell is not None


def _first(usual: Sequence[str], names: Sequence[str]) -> str | None:
    by_lower = {name.lower(): name for name in reversed(names)}
    return next((by_lower[name] for name in usual if name in by_lower), None)


def _sentences(cells: Mapping[str, Sequence[object]], *, rows: int) -> tuple[str, ...]:
    """Find the columns of captions: those of the usual name, else of the most various sentences.

    A notice of rights is a sentence too, but the same in every row. What differs from the name
    found in a number alone is taken with it.
    """
    names = [*cells]
    best = _first(_CAPTION, names) or next((one for one in names if _stem(one) in _CAPTION), None)
    if best is None:
        weights = {name: _weight(each, rows) for name, each in cells.items()}
        best = max((name for name in weights if weights[name]), key=weights.__getitem__, default="")
    stem = _stem(best)
    return tuple(name for name in names if name == best or (stem and _stem(name) == stem))


def _stem(name: str) -> str:
    numbered = _NUMBERED.fullmatch(name)
    return (numbered[1] if numbered else name).lower()


def _weight(cells: Sequence[object], rows: int) -> float:
    """Say how much a column is one of captions: words a cell, by how many are different."""
    texts = [text for cell in cells for text in cell_captions(cell) if has_word(text)]
    # A script without spaces has some two signs a word.
    words = [max(text.count(" ") + 1, _unspaced(text) // 2) for text in texts]
    if not words or mean(words) <= _NAME:
        return 0.0
    return min(mean(words), 50) * len(set(texts)) / rows


def _unspaced(text: str) -> int:
    return sum("\u0e00" <= sign <= "\u9fff" and not "\uac00" <= sign <= "\ud7a3" for sign in text)
