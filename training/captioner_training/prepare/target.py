"""The folder that a data set is prepared into: whose it is, and how it becomes whole.

DIR/.prepare       work in progress: finished shards with a record each, downloads, a lock
DIR/manifest.json  written last; without it there is no data set in DIR
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from captioner.errors import ConfigError, OutputError
from captioner.files import replace_file, sync_folder
from captioner_training.lock import locked
from captioner_training.prepare.manifest import MANIFEST, WORK, ImageFormat, Manifest, is_prepared

__all__ = ["Options", "claimed", "clear", "find_finished", "publish"]

_REPLACED = "replaced.json"  # in DIR/.prepare: the files of data sets that make way


@dataclass(frozen=True, kw_only=True)
class Options:
    """How and where a data set is prepared."""

    to: Path
    image: ImageFormat
    shard_images: int = 2000  # about 50 MB: few files, and little to do again when interrupted
    workers: int = 1
    skip_bad: bool = False
    force: bool = False  # replace another prepared data set

    def __post_init__(self) -> None:
        least = {
            "--size": self.image.short_side,
            "--shard-images": self.shard_images,
            "--workers": self.workers,
        }
        for name, value in least.items():
            if value < 1:
                raise ConfigError(f"{name} {value}: must be 1 or more")
        if not 1 <= self.image.quality <= 100:
            raise ConfigError(f"--quality {self.image.quality}: must be from 1 to 100")


@contextmanager
def claimed(to: Path) -> Iterator[Path]:
    """Make the folder, keep other runs out of it, and yield DIR/.prepare.

    Raises:
        OutputError: the folder contains other files, is in use, or cannot be written.

    """
    work = to / WORK
    try:
        if to.exists() and not (is_prepared(to) or work.exists()) and any(to.iterdir()):
            raise OutputError(f"{to} contains other files: choose an empty or new folder")
    except OSError as error:
        raise OutputError(f"{to} cannot be written: {error.strerror or error}") from error
    with locked(work / "lock", verb="prepare", what=to):
        try:
            yield work
        finally:
            _tidy(work)


def _tidy(work: Path) -> None:
    """Leave no trace where nothing was done."""
    with suppress(OSError):
        if [path.name for path in work.iterdir()] == ["lock"]:
            shutil.rmtree(work)
            work.parent.rmdir()  # unless it has something in it


def find_finished(
    options: Options, *, source: dict[str, Any], fingerprint: str | None = None
) -> Manifest | None:
    """Find the whole data set of this very command, by its source or its fingerprint.

    Raises:
        OutputError: the folder holds another one, and --force was not given.
        DataError: its manifest is none of ours, or its files are not as it says.

    """
    if not is_prepared(options.to):
        return None
    if options.force:
        Manifest.read(options.to / MANIFEST)  # what is not ours is not replaced
        return None
    manifest = Manifest.load(options.to)
    same = manifest.fingerprint == fingerprint if fingerprint else manifest.source == source
    if same and manifest.image == options.image:
        return manifest
    images = sum(split.images for split in manifest.splits.values())
    raise OutputError(
        f"{options.to} holds another data set, or another state of this one: {manifest.name}, "
        f"{images:,} images, {json.dumps(manifest.source)}; choose another folder, or --force to "
        "replace it"
    )


def publish(manifest: Manifest, *, to: Path, work: Path) -> None:
    """Move everything into place, the manifest last, and clear away another data set's files.

    Raises:
        OutputError: the folder cannot be written, or has somebody's own file under a name that is
            needed.

    """
    try:
        ours = _files_before(to, work)
        # An earlier run may have been interrupted after moving some.
        moving = [name for name in manifest.files if (work / name).exists()]
        if others := [name for name in moving if name not in ours and (to / name).exists()]:
            raise OutputError(
                f"{to / others[0]} is in the way and is of no data set: move it elsewhere, and the "
                "same command goes on from here"
            )
        with replace_file(work / _REPLACED) as file:
            file.write(json.dumps({"files": sorted(ours)}).encode())
        with replace_file(work / MANIFEST) as file:
            file.write(manifest.to_json())
        (to / MANIFEST).unlink(missing_ok=True)  # from here on, it does not count
        for name in moving:
            (work / name).replace(to / name)
        for name in ours - set(manifest.files):
            (to / name).unlink(missing_ok=True)
        (work / _REPLACED).unlink()  # what has one of its names from here on is somebody's own
        sync_folder(to)
        (work / MANIFEST).replace(to / MANIFEST)
        sync_folder(to)
    except OSError as error:
        raise OutputError(f"{to} cannot be written: {error.strerror or error}") from error


def _files_before(to: Path, work: Path) -> set[str]:
    """Name the files of the data set that is there, and of those that were cut short."""
    names = set[str]()
    for path in (to / MANIFEST, work / MANIFEST):  # the latter was interrupted while it moved in
        if path.exists():
            names.update(Manifest.read(path).files)
    if (work / _REPLACED).exists():
        try:
            names.update(map(str, json.loads((work / _REPLACED).read_bytes())["files"]))
        except (ValueError, TypeError, KeyError) as error:
            raise OutputError(
                f"{work / _REPLACED} is damaged: remove it, and the same command goes on from here"
            ) from error
    return {name for name in names if Path(name).name == name}  # a folder's own files only


def clear(work: Path, *, keep: str | None = None) -> None:
    """Remove DIR/.prepare, which a whole data set does not need; `keep` names what stays in it."""
    if keep is None or not (work / keep).exists():
        shutil.rmtree(work, ignore_errors=True)
        return
    for path in work.iterdir():
        if path.name != keep:
            path.unlink() if path.is_file() else shutil.rmtree(path, ignore_errors=True)
