"""A folder of photos with their captions beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from captioner.errors import DataError
from captioner.readers import IMAGE_SUFFIXES
from captioner_training.prepare.images import ListedImage
from captioner_training.prepare.names import composed, folded
from captioner_training.prepare.places import walk
from captioner_training.prepare.problems import Problems
from captioner_training.prepare.splits import SPLIT_NAMES
from captioner_training.prepare.texts import read_text

__all__ = ["read_folder"]

_SIDECARS = (".txt", ".caption")
_NO_CAPTIONS = ("readme", "license", "licence", "credits", "notice")  # texts about the data set


def read_folder(folder: Path, problems: Problems) -> list[ListedImage]:
    """Read photos with their captions beside them: photo.jpg, photo.txt, one caption a line.

    Where all photos are in subfolders called train, val or test, these are the splits.

    Raises:
        DataError: the folder cannot be read, or has no images.

    """
    files = list(walk(folder))
    images = [path for path in files if path.suffix.lower() in IMAGE_SUFFIXES]
    sidecars = {path for path in files if path.suffix.lower() in _SIDECARS}
    known = sidecars.union(images)
    others = _kinds(path for path in files if path not in known)
    if not images:
        raise DataError(
            f"{folder} has no images that can be read: it has {others or 'only texts'}"
            if files
            else f"{folder} is empty"
        )
    problems.explain(
        "image without caption",
        "captions are expected beside each photo: photo.jpg has photo.txt or photo.caption; "
        "captions in one file are read by other kinds: `captioner prepare --help`",
    )
    if others:
        problems.note(f"files that were not taken: {others}")
    tops = {path.relative_to(folder).parts[0].lower() for path in images}
    spelled = folded if _folds(images[0]) else composed
    by_spelling = {spelled(str(path)): path for path in sorted(sidecars)}
    listed = []
    used = set()
    for path in images:
        beside = [path.with_suffix(suffix) for suffix in _SIDECARS]
        beside += [path.with_name(path.name + suffix) for suffix in _SIDECARS]
        named = (one if one in sidecars else by_spelling.get(spelled(str(one))) for one in beside)
        texts = list(filter(None, named))
        used.update(texts)
        name = path.relative_to(folder).as_posix()
        captions = _captions(texts, folder, problems)
        if captions is None:
            continue
        split = name.split("/")[0] if tops <= SPLIT_NAMES else None
        listed.append(ListedImage(id=name, file_name=name, captions=captions, split=split))
    for sidecar in sorted(sidecars - used):
        if not sidecar.stem.lower().startswith(_NO_CAPTIONS):
            problems.add("caption of an unknown image", sidecar.relative_to(folder).as_posix())
    return listed


def _folds(path: Path) -> bool:
    """Whether the file system takes names in other capital letters for the same."""
    other = path.with_name(path.name.swapcase())
    return other.exists() and other.samefile(path)


def _kinds(paths: Iterable[Path]) -> str:
    """Count files by their suffixes: "2 .heic, 1 .pdf"."""
    counts = Counter(path.suffix.lower() or "without a suffix" for path in paths)
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.most_common())


def _captions(texts: list[Path], folder: Path, problems: Problems) -> tuple[str, ...] | None:
    """Read the captions of an image; None: a file of them cannot be read, and is told."""
    captions: list[str] = []
    readable = True
    for path in texts:
        name = path.relative_to(folder).as_posix()
        try:
            text = read_text(path, problems, name=name)
        except DataError as error:
            problems.add("unreadable captions", error.detail)
            readable = False
            continue
        # A text without any lines is an empty caption.
        captions += [line for line in text.splitlines() if line.strip()] or [""]
    return tuple(captions) if readable else None
