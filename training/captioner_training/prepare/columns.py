"""Find the columns of a table by their names or their content, in any language."""

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

# Usual names of columns, in lower case. Other columns are found by their content.
_IMAGE = (
    "image", "file_name", "filename", "image_path", "filepath", "path", "image_name", "image_file",
    "file", "photo", "img",
)  # fmt: skip
_CAPTION = (
    "caption", "captions", "text", "sentence", "sentences", "raw", "comment", "description",
    "alt_text",
)  # fmt: skip
_IN_OBJECT = ("raw", *_CAPTION, "tags")  # kohya's metadata may have tags as captions
IMAGE_NAMES = frozenset(_IMAGE)
_USUAL_NAMES = IMAGE_NAMES | frozenset(_CAPTION)
_SPLIT = ("split", "set", "subset", "partition")
_NUMBERED = re.compile(r"(.*?)[ _-]?\d+")  # caption_1, Beschreibung 2
_SAMPLE = 200  # rows that are examined, spread over the table
_LOOKUPS = 20  # values that are looked up among the photos
_NAME_WORDS = 2  # names have at most this many words on average; sentences have more


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns to read; those that are not given are detected.

    delimiter: the character between the cells of a CSV file.
    is_photo: returns whether a photo of the given name exists; used if file suffixes do not
        identify one column.
    """

    image: str | None = None
    captions: tuple[str, ...] = ()
    split: str | None = None
    delimiter: str | None = None
    is_photo: Callable[[str], bool] = lambda _: False

    def named(self) -> list[str]:
        """Return the columns that are given by name."""
        return [name for name in (self.image, *self.captions, self.split) if name]

    def find(
        self,
        names: Sequence[str],
        rows: Sequence[Mapping[str, Any]],
        path: Path,
        problems: Problems,
    ) -> Columns:
        """Return the columns to read, with the detected ones filled in.

        Detected columns with unusual names are noted in `problems`.

        Raises ConfigError: a named column is missing, or no column has photos or captions.
        """
        have = f"{path} has the columns {', '.join(names)}"
        for name in self.named():
            if name not in names:
                near = did_you_mean(name, names)
                raise ConfigError(f"there is no column {name!r}{near or ':'} {have}")
        sample = rows[:: len(rows) // _SAMPLE + 1]
        cells = {
            name: list(filter(_is_filled, (row.get(name) for row in sample))) for name in names
        }
        image = self.image or self._photos(cells)
        captions = self.captions or _sentences(
            {name: cells[name] for name in names if name not in (image, self.split)},
            rows=len(sample),
        )
        missing = []
        if image is None:
            missing.append("name the column of photos with --image-column")
        if not captions:
            missing.append("name the column of captions with --caption-column")
        if missing:
            raise ConfigError(f"{have}: {', and '.join(missing)}")
        detected = {name for name in (image, *captions) if name} - {*self.named()}
        if any(name.lower() not in _USUAL_NAMES for name in detected):
            problems.note(
                f"using the columns {image} for photos and {', '.join(captions)} for captions; "
                "--image-column and --caption-column change that"
            )
        rest = {name: cells[name] for name in names if name not in (image, *captions)}
        return Columns(image=image, captions=captions, split=self.split or _split_column(rest))

    def _photos(self, cells: Mapping[str, Sequence[object]]) -> str | None:
        """Find the column of photos by the suffixes of its values, or else by looking them up."""
        counts = {name: sum(map(_names_photo, values)) for name, values in cells.items()}
        most = max(counts.values(), default=0)
        candidates = [
            name for name, count in counts.items() if 2 * count > max(len(cells[name]), most - 1)
        ]
        if len(candidates) != 1:
            lookups = {
                name: [str(cell).strip() for cell in cells[name] if _is_short(cell)][:_LOOKUPS]
                for name in candidates or cells
            }
            hits = {
                name: mean(map(self.is_photo, texts)) for name, texts in lookups.items() if texts
            }
            best = max(hits.values(), default=0)
            candidates = [name for name, share in hits.items() if share == best > 0.5] or candidates
        usual = _first(_IMAGE, candidates) or next(iter(candidates), None)
        return usual or _first(_IMAGE, [*cells])


def _names_photo(cell: object) -> bool:
    """Whether a cell is the name of a photo, or contains a photo, as in Hugging Face's tables."""
    if isinstance(cell, Mapping):
        return isinstance(cell.get("bytes"), bytes) or bool(cell.get("path"))
    return isinstance(cell, bytes) or (isinstance(cell, str) and bool(image_suffix(cell.strip())))


def _is_short(cell: object) -> bool:
    return isinstance(cell, str | int) and len(str(cell)) < 200


def cell_captions(value: object) -> list[str]:
    """Return the captions in a cell.

    A cell may be a text, a list, a JSON or Python list as text, or an object with `raw`.
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
    """Find the column of splits by its name, else by its values."""
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
    """Find the columns of captions by a usual name, or else by their many long sentences.

    Columns whose names differ only in a number belong together: caption_1, caption_2.
    """
    names = [*cells]
    best = _first(_CAPTION, names) or next(
        (name for name in names if _stem(name) in _CAPTION), None
    )
    if best is None:
        weights = {name: _weight(values, rows) for name, values in cells.items()}
        best = max((name for name in weights if weights[name]), key=weights.__getitem__, default="")
    stem = _stem(best)
    return tuple(name for name in names if name == best or (stem and _stem(name) == stem))


def _stem(name: str) -> str:
    numbered = _NUMBERED.fullmatch(name)
    return (numbered[1] if numbered else name).lower()


def _weight(cells: Sequence[object], rows: int) -> float:
    """Return a score for a column of captions: words per text times the share of distinct texts.

    The share excludes copyright notices, for example, which are equal in every row.
    """
    texts = [text for cell in cells for text in cell_captions(cell) if has_word(text)]
    # In scripts without spaces a word has about two characters.
    words = [max(text.count(" ") + 1, _unspaced(text) // 2) for text in texts]
    if not words or mean(words) <= _NAME_WORDS:
        return 0.0
    return min(mean(words), 50) * len(set(texts)) / rows


def _unspaced(text: str) -> int:
    return sum("\u0e00" <= sign <= "\u9fff" for sign in text)
