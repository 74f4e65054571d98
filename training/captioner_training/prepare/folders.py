"""Read folders: captions beside photos, tables, and shards."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from captioner.errors import ConfigError, DataError
from captioner.photos.header import IMAGE_SUFFIXES
from captioner.shared.paths import is_system_folder
from captioner.shared.tables import split_lines
from captioner_training.prepare.caption_files import CAPTION_FILES, read_caption_file
from captioner_training.prepare.columns import Columns
from captioner_training.prepare.listing import ListedImage, Problems, read_text
from captioner_training.prepare.originals import casefold_path, to_posix, walk
from captioner_training.prepare.splits import split_of_file
from captioner_training.prepare.webdataset import has_captions, read_shards

_SIDECARS = (".txt", ".caption")
_NO_CAPTIONS = ("readme", "license", "licence", "credits", "notice")  # names of other texts


def read_folder(folder: Path, problems: Problems) -> tuple[list[ListedImage], bool]:
    """Read a folder of photos and captions.

    The first of these layouts that fits is used: Hugging Face's metadata tables; captions beside
    photos (photo.jpg, photo.txt); WebDataset shards; Parquet files; another table of captions.

    Returns the images, and whether a table lists them.

    Raises DataError: the folder cannot be read, or has no photos or captions.
    """
    files = list(walk(folder))
    if not files:
        raise DataError(f"{folder} is empty")
    _note_system_folders(folder, problems)
    photos = [path for path in files if path.suffix.lower() in IMAGE_SUFFIXES]
    tables = [path for path in files if path.suffix.lower() in CAPTION_FILES]
    if metadata := [path for path in tables if path.stem.lower() == "metadata"]:
        return _read_tables(metadata, folder, problems), True
    texts = {path for path in files if path.suffix.lower() in _SIDECARS}
    if not any(path in texts for photo in photos for path in _beside(photo)):
        shards = [path for path in files if path.suffix.lower() == ".tar" and has_captions(path)]
        if shards:
            _note_loose(photos, folder, problems)
            return read_shards(shards, folder, problems), True
        if listing := _find_listing(photos, texts, tables, folder):
            images = _read_tables(listing, folder, problems)
            if all(image.location for image in images):
                _note_loose(photos, folder, problems)
            return images, True
    if not photos:
        raise DataError(f"{folder} has no photos; it has {_count_suffixes(files, ())}")
    return _read_sidecars(photos, texts, files, folder, problems), False


def _note_system_folders(folder: Path, problems: Problems) -> None:
    """Note the photos in folders of thumbnails and deleted files, which `walk` skips."""
    for parent, _, names in os.walk(folder):
        place = Path(parent).relative_to(folder)
        for name in sorted(names) if any(map(is_system_folder, place.parts)) else ():
            if name.lower().endswith(IMAGE_SUFFIXES):
                path = (place / name).as_posix()
                problems.note("skipped, photos in folders of thumbnails or deleted files", path)


def _find_listing(
    photos: Sequence[Path], texts: set[Path], tables: Sequence[Path], folder: Path
) -> list[Path]:
    """Return the tables of captions of a folder that has no captions beside its photos."""
    if parquet := [path for path in tables if path.suffix.lower() == ".parquet"]:
        return parquet
    named = [path for path in tables if split_of_file(path, folder)]
    archives = any(path.suffix.lower() in (".zip", ".tar") for path in folder.iterdir())
    if not (photos or archives):
        return []
    captions = [path for path in texts if path.name.lower().endswith(("captions.txt", "token.txt"))]
    listing = named if len(named) > 1 and len(named) == len(tables) else [*tables, *captions]
    if len(listing) > 1 and listing != named:
        names = ", ".join(path.relative_to(folder).as_posix() for path in sorted(listing)[:5])
        raise DataError(
            f"{folder} has several tables ({names}): choose one, with `captioner prepare csv TABLE "
            f"--images {folder}`"
        )
    return listing


def _note_loose(photos: Sequence[Path], folder: Path, problems: Problems) -> None:
    for photo in photos:
        problems.note_unlisted(photo.relative_to(folder).as_posix())


def _read_tables(tables: Sequence[Path], folder: Path, problems: Problems) -> list[ListedImage]:
    """Read tables. Photo names in a table are relative to the table's folder."""
    listed: list[ListedImage] = []
    for table in tables:
        split = split_of_file(table, folder)
        below = table.parent.relative_to(folder)
        prefix = (below / table.stem).as_posix()
        try:
            images = read_caption_file(table, Columns(), problems, prefix=prefix)
        except ConfigError as error:
            raise ConfigError(
                f"{error} (options of `captioner prepare csv {table} --images {folder}`)"
            ) from error
        for image in images:
            if not image.location:
                name = (below / to_posix(image.file_name)).as_posix()
                has_id = image.id != image.file_name
                image = image._replace(id=image.id if has_id else name, file_name=name)
            if split and not image.split:
                image = image._replace(split=split[0], split_from=split[1])
            listed.append(image)
    return listed


def _read_sidecars(
    photos: Sequence[Path],
    texts: set[Path],
    files: Sequence[Path],
    folder: Path,
    problems: Problems,
) -> list[ListedImage]:
    """Read photos with captions beside them: photo.jpg and photo.txt, one caption per line."""
    problems.explain(
        "image without caption",
        "add photo.txt or photo.caption beside photo.jpg, or use a table: `captioner prepare csv "
        "TABLE --images FOLDER`",
    )
    if unused := _count_suffixes(files, (*IMAGE_SUFFIXES, *_SIDECARS)):
        problems.note(f"unused files: {unused}")
    beside = {photo: _beside(photo) for photo in photos}
    used = {path for paths in beside.values() for path in paths} & texts
    # If a photo has no text of its exact name, the name may differ in case or Unicode form.
    spelled = {casefold_path(str(path)): path for path in sorted(texts - used)}
    listed = []
    for photo, paths in beside.items():
        similar = [
            path if path in texts else spelled.get(casefold_path(str(path))) for path in paths
        ]
        sidecars = list(dict.fromkeys(filter(None, similar)))
        used.update(sidecars)
        name = photo.relative_to(folder).as_posix()
        captions = _captions(sidecars, folder, problems)
        if captions is not None:
            listed.append(ListedImage(id=name, file_name=name, captions=captions))
    for sidecar in sorted(texts - used):
        if not sidecar.stem.lower().startswith(_NO_CAPTIONS):
            problems.add("caption of an unknown image", sidecar.relative_to(folder).as_posix())
    return listed


def _count_suffixes(files: Sequence[Path], ignored: Sequence[str]) -> str:
    suffixes = Counter(path.suffix.lower() for path in files)
    return ", ".join(
        f"{count:,} {suffix or 'without a suffix'}"
        for suffix, count in suffixes.most_common()
        if suffix not in ignored
    )


def _beside(image: Path) -> list[Path]:
    names = [image.with_suffix(suffix) for suffix in _SIDECARS]
    return names + [image.with_name(image.name + suffix) for suffix in _SIDECARS]


def _captions(texts: list[Path], folder: Path, problems: Problems) -> tuple[str, ...] | None:
    """Read the captions of an image; report a file that cannot be read, and return None."""
    captions: list[str] = []
    readable = True
    for path in texts:
        try:
            text = read_text(path, problems, name=path.relative_to(folder).as_posix())
        except DataError as error:
            problems.add("unreadable captions", error.detail)
            readable = False
        else:
            # An empty file is an empty caption.
            captions += [line for line in split_lines(text) if line.strip()] or [""]
    return tuple(captions) if readable else None
