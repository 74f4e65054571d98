"""Image ids for COCO results: the number at the end of a file name, otherwise text."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from captioner.errors import OutputError

_NUMBER = re.compile(r"(?:^|_)([0-9]{1,18})$")  # COCO_val2014_000000391895


def image_ids(names: Iterable[str], output: str) -> dict[str, int | str]:
    """Return the id of each photo.

    If the stem of the name is a number, or ends with `_` and a number, the id is that number.
    Otherwise the id is the stem, or the whole name if photos share a stem.

    Args:
        names: the names of the photos.
        output: the name of the file in errors.

    Raises OutputError: photos share a number; the detail names all of them.
    """
    unique = set(names := list(dict.fromkeys(names)))
    stems = {name: Path(name).stem for name in names}
    counts = Counter(stems.values())
    ids: dict[str, int | str] = {}
    photos = defaultdict(list)
    for name, stem in stems.items():
        if match := _NUMBER.search(stem):
            ids[name] = int(match[1])
            photos[int(match[1])].append(name)
        else:
            ids[name] = name if counts[stem] > 1 or stem in unique else stem
    shared = {number: same for number, same in photos.items() if len(same) > 1}
    if shared:
        listed = "; ".join(f"{number}: {', '.join(same)}" for number, same in shared.items())
        raise OutputError(
            f"{output} cannot have several photos with one COCO id ({listed}): rename them, or "
            "write .jsonl, .csv or .parquet"
        )
    return ids
