"""Read archives with captions beside the photos: KEY.jpg and KEY.txt or KEY.json.

These are WebDataset shards (tar), such as img2dataset writes, and zip files, such as the page of
`captioner serve` offers.
"""

from __future__ import annotations

import json
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from captioner.errors import DataError
from captioner.shared.archives import open_zip, tar_members
from captioner.shared.tables import split_lines
from captioner_training.prepare.columns import cell_captions
from captioner_training.prepare.listing import ListedImage, Problems, read_text
from captioner_training.prepare.locations import Location
from captioner_training.prepare.originals import image_suffix
from captioner_training.prepare.splits import split_of_file

_TEXTS = (".txt", ".caption", ".json")
_LARGEST_TEXT = 1 << 20  # bytes of a caption file
_SAMPLE = 20  # members that has_captions examines
_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OSError)

Member = tuple[str, Location, Callable[[], bytes]]  # name, place and content


def _is_zip(path: Path) -> bool:
    """Whether a file's name is that of a zip file."""
    return path.suffix.lower() == ".zip"


def has_captions(path: Path) -> bool:
    """Whether a tar file contains captions."""
    try:
        for number, (_, member) in enumerate(tar_members(path)):
            if _split_name(member.name)[1] in _TEXTS:
                return True
            if number > _SAMPLE:
                break
    except (tarfile.TarError, OSError):
        pass  # damage is reported when the file is read
    return False


def read_shards(paths: Sequence[Path], top: Path, problems: Problems) -> list[ListedImage]:
    """Read photos and captions from tar and zip files below the folder `top`.

    Raises DataError: a file is damaged.
    """
    listed: list[ListedImage] = []
    shards: list[Path] = []  # of each listed image
    for path in paths:
        split = split_of_file(path, top)
        try:
            samples = _read_samples(path)
        except _DAMAGE as error:
            kind = "a zip file" if _is_zip(path) else "an uncompressed tar file"
            raise DataError(f"{path} cannot be read as {kind}: {error}") from error
        for key, (name, location, texts) in samples.items():
            if location is None:
                problems.add("caption of an unknown image", f"{path.name}/{key}")
                continue
            about = _parse(texts.get(".json", b""))
            captions = _captions(texts, about, problems, f"{path.name}/{key}.txt")
            named = about.get("split")
            listed.append(
                ListedImage(
                    id=f"{path.stem}/{name}",
                    file_name=f"{path.stem}/{name}",
                    captions=tuple(captions),
                    split=named if isinstance(named, str) else split and split[0],
                    split_from="the photos' json files" if named else (split or ("", ""))[1],
                    rows=(f"{path.name}/{key}",) * len(captions),
                    location=location,
                )
            )
            shards.append(path)
    if len({image.id for image in listed}) < len(listed):
        return _with_paths(listed, shards)
    return listed


def _with_paths(images: Sequence[ListedImage], shards: Sequence[Path]) -> list[ListedImage]:
    """Name images by the paths of their shards, because shards in several folders have one name."""
    # A link keeps its name; its target may be named by a hash.
    whole = {path: Path(os.path.normpath(path.absolute())) for path in shards}
    top = os.path.commonpath([path.parent for path in whole.values()])
    named = []
    for image, path in zip(images, shards, strict=True):
        inside = image.file_name.removeprefix(f"{path.stem}/")
        name = f"{whole[path].relative_to(top).as_posix()}/{inside}"
        named.append(image._replace(id=name, file_name=name))
    return named


def _split_name(name: str) -> tuple[str, str]:
    """Split a member's name into key and suffix, at the first dot of the base name."""
    folder, _, base = name.removeprefix("./").rpartition("/")
    key, dot, suffix = base.partition(".")
    return (f"{folder}/{key}" if folder else key), f"{dot}{suffix}".lower()


def _read_samples(path: Path) -> dict[str, tuple[str, Location | None, dict[str, bytes]]]:
    samples: dict[str, tuple[str, Location | None, dict[str, bytes]]] = {}
    for member, place, read in _zip_members(path) if _is_zip(path) else _tar_members(path):
        key, suffix = _split_name(member)
        is_photo = bool(image_suffix(member))
        if not (is_photo or suffix in _TEXTS):
            continue
        name, location, texts = samples.get(key, ("", None, {}))
        if is_photo and location is None:
            name, location = member.removeprefix("./"), place
        elif not is_photo and place.size <= _LARGEST_TEXT:
            texts[suffix] = read()
        samples[key] = name, location, texts
    return {key: sample for key, sample in samples.items() if sample[1] or ".json" not in sample[2]}


def _tar_members(path: Path) -> Iterator[Member]:
    stamp = path.stat().st_mtime_ns
    for tar, member in tar_members(path):
        if file := tar.extractfile(member) if member.isfile() else None:
            yield (
                member.name,
                Location(str(path), member.offset_data, member.size, None, stamp),
                file.read,
            )


def _zip_members(path: Path) -> Iterator[Member]:
    path = path.resolve()  # open_zip caches open files by path
    archive = open_zip(str(path))
    for member in archive.infolist():
        if not member.is_dir() and not member.filename.startswith("__MACOSX/"):
            place = Location(str(path), 0, member.file_size, member.filename, member.CRC)
            yield member.filename, place, partial(archive.read, member)


def _parse(content: bytes) -> Mapping[str, Any]:
    try:
        about = json.loads(content or b"{}")
    except (ValueError, RecursionError):
        return {}
    return about if isinstance(about, dict) else {}


def _captions(
    texts: Mapping[str, bytes], about: Mapping[str, Any], problems: Problems, name: str
) -> list[str]:
    captions: list[str] = []
    for suffix in (".txt", ".caption"):
        if suffix in texts:
            try:
                captions += split_lines(read_text(texts[suffix], problems, name=name))
            except DataError as error:
                problems.add("unreadable captions", error.detail)
    captions = [caption for caption in captions if caption.strip()]
    return captions or [caption for caption in cell_captions(dict(about)) if caption]
