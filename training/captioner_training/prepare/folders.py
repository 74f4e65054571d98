"""Read folders and archives with captions beside the photos, and folders with tables."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from itertools import islice
from pathlib import Path
from typing import Any

from captioner.errors import ConfigError, DataError
from captioner.shared.paths import expanded, is_system_folder
from captioner.shared.tables import split_lines
from captioner_training.prepare.columns import Columns, cell_captions
from captioner_training.prepare.files import (
    ARCHIVES,
    Found,
    Location,
    SourceImage,
    casefold_path,
    image_suffix,
    loose_file,
    members,
    read_location,
    to_posix,
    walk,
)
from captioner_training.prepare.problems import Problems, read_text
from captioner_training.prepare.splits import common_folder, split_of_file
from captioner_training.prepare.tables import CAPTION_TABLES, read_tables

_SIDECARS = (".txt", ".caption")
_TEXTS = (*_SIDECARS, ".json")  # in archives
_NO_CAPTIONS = ("readme", "license", "licence", "credits", "notice")  # names of other texts
_FIRST = 20  # members of an archive that may show that it has captions
_LARGEST_TEXT = 1 << 20  # bytes of a caption file in an archive


def list_folder(names: Sequence[str], problems: Problems) -> tuple[list[SourceImage], list[Path]]:
    """Return the images of a folder or of archives, and the folders to search them in.

    The first layout that fits is used: Hugging Face's metadata tables; captions beside photos
    (photo.jpg, photo.txt); WebDataset shards; Parquet files; another table of captions.
    """
    paths = list(map(expanded, names))
    if all(path.suffix.lower() in ARCHIVES for path in paths):
        return _read_shards(paths, common_folder(paths), problems), []
    if len(paths) > 1:
        raise ConfigError("name either one folder, or tar or zip files")
    folder = paths[0]
    files = _files_below(folder, problems)
    photos = [path for path in files if image_suffix(path.name)]
    texts = {path for path in files if path.suffix.lower() in _SIDECARS}
    tables = [path for path in files if path.suffix.lower() in CAPTION_TABLES]
    if metadata := [path for path in tables if path.stem.lower() == "metadata"]:
        return _tables_in(folder, metadata, problems), [folder]
    if any(path in texts for photo in photos for path in _beside(photo)):
        return _list_sidecars(photos, texts, folder, problems), [folder]
    parquet = [path for path in tables if path.suffix.lower() == ".parquet"]
    has_splits = len(tables) > 1 and all(split_of_file(path, folder) for path in tables)
    named = [path for path in texts if path.name.lower().endswith(("captions.txt", "token.txt"))]
    if shards := [path for path in files if path.suffix.lower() == ".tar" and _has_captions(path)]:
        return _read_shards(shards, folder, problems), []
    if tables := parquet or [*tables, *([] if has_splits else named)]:
        return _tables_in(folder, tables, problems), [folder]
    if photos:
        return _list_sidecars(photos, texts, folder, problems), [folder]
    suffixes = {path.suffix.lower() or "without a suffix" for path in files}
    raise DataError(f"{folder} has no photos; it has files {', '.join(sorted(suffixes)[:_FIRST])}")


def _files_below(folder: Path, problems: Problems) -> list[Path]:
    """Return the files of a folder, without those in folders of thumbnails and deleted files."""
    files = []
    for path in walk(folder):
        inside = path.relative_to(folder)
        if not any(map(is_system_folder, inside.parts)):
            files.append(path)
        elif image_suffix(path.name):
            kind = "skipped, photos in folders of thumbnails or deleted files"
            problems.note(kind, inside.as_posix())
    if not files:
        raise DataError(f"{folder} is empty")
    return files


def _tables_in(folder: Path, tables: Sequence[Path], problems: Problems) -> list[SourceImage]:
    """Read the tables in a folder. Photo names are relative to the folder of their table."""
    are_parts = all(
        path.stem.lower() == "metadata"
        or path.suffix.lower() == ".parquet"
        or split_of_file(path, folder)
        for path in tables
    )
    if len(tables) > 1 and not are_parts:
        names = ", ".join(path.relative_to(folder).as_posix() for path in sorted(tables)[:5])
        raise DataError(
            f"{folder} has several tables ({names}): choose one, with `captioner prepare csv TABLE "
            f"--images {folder}`"
        )
    listed = []
    for table in tables:
        try:
            images = read_tables([("", table)], folder, Columns(), problems)
        except ConfigError as error:
            raise ConfigError(
                f"{error} (options of `captioner prepare csv {table} --images {folder}`)"
            ) from error
        for image in images:
            if not image.location.path:
                below = table.parent.relative_to(folder)
                name = (below / to_posix(image.file_name)).as_posix()
                has_id = image.id != image.file_name
                image = image._replace(id=image.id if has_id else name, file_name=name)
            listed.append(image)
    return listed


def _beside(image: Path) -> list[Path]:
    names = [image.with_suffix(suffix) for suffix in _SIDECARS]
    return names + [image.with_name(image.name + suffix) for suffix in _SIDECARS]


def _list_sidecars(
    photos: Sequence[Path], texts: Set[Path], folder: Path, problems: Problems
) -> list[SourceImage]:
    """Read photos with captions beside them: photo.jpg and photo.txt, one caption per line."""
    beside = {photo: _beside(photo) for photo in photos}
    used = {path for paths in beside.values() for path in paths} & texts
    # If a photo has no text of its exact name, the name may differ in case or Unicode form.
    spelled = {casefold_path(str(path)): path for path in sorted(texts - used)}
    listed = []
    for photo, paths in beside.items():
        name = photo.relative_to(folder).as_posix()
        similar = (p if p in texts else spelled.get(casefold_path(str(p))) for p in paths)
        sidecars = list(dict.fromkeys(filter(None, similar)))
        used.update(sidecars)
        captions = [
            _caption_lines(path, path.relative_to(folder).as_posix(), problems) for path in sidecars
        ]
        if None not in captions:  # an empty file is an empty caption
            lines = tuple(line for lines in captions for line in lines or [""])
            image = SourceImage(id=name, file_name=name, captions=lines)
            if location := loose_file(photo):
                image = image._replace(location=location)
            listed.append(image)
    for sidecar in sorted(texts - used):
        if not sidecar.stem.lower().startswith(_NO_CAPTIONS):
            problems.add("caption of an unknown image", sidecar.relative_to(folder).as_posix())
    return listed


def _caption_lines(source: Path | bytes, name: str, problems: Problems) -> list[str] | None:
    """Read captions, one per line; report a file that cannot be read, and return None."""
    try:
        text = read_text(source, problems, name=name)
    except DataError as error:
        problems.add("unreadable captions", error.detail)
        return None
    return [line for line in split_lines(text) if line.strip()]


def _has_captions(tar: Path) -> bool:
    """Whether a tar file contains captions. Damage is reported when the file is read."""
    try:
        return any(_split_name(one.name)[1] in _TEXTS for one in islice(members(tar), _FIRST))
    except DataError:
        return False


def _split_name(name: str) -> tuple[str, str]:
    """Split a member's name into key and suffix, at the first dot of the base name."""
    folder, _, base = name.rpartition("/")
    key, dot, suffix = base.partition(".")
    return (f"{folder}/{key}" if folder else key), f"{dot}{suffix}".lower()


def _read_shards(paths: Sequence[Path], top: Path, problems: Problems) -> list[SourceImage]:
    """Read archives below the folder `top` with captions beside the photos.

    The captions of KEY.jpg are in KEY.txt, KEY.caption or KEY.json, as img2dataset writes them. A
    KEY.json without a photo is a failed download.
    """
    listed = []
    for path in paths:
        photos: dict[str, Found] = {}
        texts = defaultdict[str, dict[str, Location]](dict)
        for member in members(path):
            key, suffix = _split_name(member.name)
            if image_suffix(member.name):
                photos.setdefault(key, member)
            elif suffix in _TEXTS and member.location.size <= _LARGEST_TEXT:
                texts[key][suffix] = member.location
        for key, beside in texts.items():
            if key not in photos and ".json" not in beside:
                problems.add("caption of an unknown image", f"{path.name}/{key}")
        split = split_of_file(path, top)
        prefix = Path(os.path.relpath(path, top)).with_suffix("")
        for key, photo in photos.items():
            captions, named = _captions_in(texts[key], f"{path.name}/{key}", problems)
            name = (prefix / photo.name).as_posix()
            listed.append(
                SourceImage(
                    id=name,
                    file_name=name,
                    captions=tuple(captions),
                    split=named or split or "",
                    rows=(f"{path.name}/{key}",) * len(captions),
                    location=photo.location,
                )
            )
    return listed


def _captions_in(
    texts: Mapping[str, Location], name: str, problems: Problems
) -> tuple[list[str], str | None]:
    """Return the captions and the split in the texts beside a photo in an archive."""
    captions: list[str] = []
    about: Any = {}
    for suffix in filter(texts.__contains__, _TEXTS):
        try:
            content = read_location(texts[suffix])
            if suffix == ".json":
                about = json.loads(content)
            else:
                captions += _caption_lines(content, f"{name}{suffix}", problems) or ()
        except OSError as error:
            problems.add("unreadable captions", f"{name}{suffix} cannot be read: {error}")
        except (ValueError, RecursionError):
            pass  # other JSON has no captions
    if not isinstance(about, dict):
        return captions, None
    split = about.get("split")
    captions = captions or [caption for caption in cell_captions(about) if caption]
    return captions, split if isinstance(split, str) else None
