"""What a smaller model costs: its sentences and its time beside those of the exact one."""

from __future__ import annotations

import importlib.util
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

from captioner.errors import DataError, MissingExtraError
from captioner.export.parity import load_app
from captioner.vocabulary import tokenize

__all__ = ["Price", "measure_price"]

_IMAGES = (".jpg", ".jpeg", ".png", ".webp")


class Price:
    """Of one split: how many photos, how many sentences stay, CIDEr and milliseconds of both."""

    def __init__(self) -> None:
        self.photos = self.same = 0
        self.milliseconds = [0.0, 0.0]
        self.cider: list[float] | None = None

    def __str__(self) -> str:
        exact, small = (each / self.photos for each in self.milliseconds)
        text = (
            f"{self.same} of {self.photos} sentences are the same; "
            f"{small:.0f} ms a photo in place of {exact:.0f}"
        )
        if self.cider is None:
            return text
        return f"{text}; CIDEr {self.cider[1]:.1f} in place of {self.cider[0]:.1f}"


def measure_price(exact: Path, small: Path, split: Path) -> Price:
    """Caption a split with two exported folders, and compare what they say.

    Args:
        exact: the exported model.
        small: the quantised one.
        split: a folder of photos, or one with captions_val.json and val*.tar or a folder val.

    Raises:
        DataError: there is no photo in it.
        MissingExtraError: it has captions, and the extra `eval` is not installed.

    """
    references = _references(split / "captions_val.json")
    models = [load_app(folder).Captioner(folder) for folder in (exact, small)]
    price, said = Price(), ([], [])  # type: ignore[var-annotated]
    names = []
    for name, data in _photos(split):
        if references is not None and name not in references:
            continue
        names.append(name)
        for at, model in enumerate(models):
            start = perf_counter()
            said[at].append(model.caption(io.BytesIO(data), attention=False)["caption"])
            price.milliseconds[at] += 1000 * (perf_counter() - start)
    if not names:
        raise DataError(f"--check {split} has no photos, nor val*.tar with photos of its captions")
    price.photos = len(names)
    price.same = sum(one == other for one, other in zip(*said, strict=True))
    if references is not None:
        wanted = [references[name] for name in names]
        price.cider = [_cider(each, wanted) for each in said]
    return price


def _references(path: Path) -> dict[str, list[str]] | None:
    """Read the captions of each photo, by its name; None where there is no such file."""
    if not path.is_file():
        return None
    if importlib.util.find_spec("pycocoevalcap") is None:
        raise MissingExtraError("CIDEr in --check", "eval")
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        names = {one["id"]: Path(one["file_name"]).name for one in told["images"]}
        found: dict[str, list[str]] = {}
        for one in told["annotations"]:
            found.setdefault(names[one["image_id"]], []).append(one["caption"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} does not hold captions as COCO's json does ({error})") from error
    return found


def _photos(split: Path) -> Iterator[tuple[str, bytes]]:
    """Read the photos of a split, by the names of their files."""
    for path in sorted(split.glob("val*.tar")):
        with tarfile.open(path) as archive:
            for member in archive:
                if member.isfile() and (file := archive.extractfile(member)) is not None:
                    yield Path(member.name).name, file.read()
    folder = split / "val" if (split / "val").is_dir() else split
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.suffix.lower() in _IMAGES:
            yield path.name, path.read_bytes()


def _cider(sentences: list[str], references: list[list[str]]) -> float:
    """Score sentences on lower-case Treebank tokens, as `captioner evaluate` does; times 100."""
    from pycocoevalcap.cider.cider import Cider

    said: dict[int, Any] = {at: [_tokens(one)] for at, one in enumerate(sentences)}
    wanted: dict[int, Any] = {
        at: [_tokens(one) for one in each] for at, each in enumerate(references)
    }
    return 100 * float(Cider().compute_score(wanted, said)[0])


def _tokens(text: str) -> str:
    return " ".join(tokenize(text))
