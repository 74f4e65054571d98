"""Image ids of COCO's results format: the number at the end of a file name, else text."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from captioner.errors import OutputError

__all__ = ["image_ids"]

_NUMBER = re.compile(r"(?:^|_)([0-9]{1,18})$")  # COCO_val2014_000000391895


def image_ids(names: Iterable[str], output: str) -> dict[str, int | str]:
    """Give each photo its id.

    A stem that is or ends with `_` and a number is that number. Other ids are the stem, or the
    whole name if two photos share a stem.

    Args:
        names: of the photos.
        output: names the file in errors.

    Raises OutputError: photos share a number; names all of them.
    """
    names = list(dict.fromkeys(names))
    stems = {name: Path(name).stem for name in names}
    counts, known = Counter(stems.values()), set(names)
    ids: dict[str, int | str] = {}
    photos = defaultdict(list)
    for name, stem in stems.items():
        if match := _NUMBER.search(stem):
            ids[name] = int(match[1])
            photos[int(match[1])].append(name)
        else:
            ids[name] = name if counts[stem] > 1 or stem in known else stem
    if shared := [f"{number}: {', '.join(of)}" for number, of in photos.items() if len(of) > 1]:
        raise OutputError(
            f"{output} cannot hold photos with the same COCO id ({'; '.join(shared)}): rename "
            "them, or write .jsonl, .csv or .parquet"
        )
    return ids
