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
        finally:  # leave no trace where nothing was done
            with suppress(OSError):
                if [path.name for path in work.iterdir()] == ["lock"]:
                    shutil.rmtree(work)
                    to.rmdir()  # unless it has something in it


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
    """Clear away another data set's files and move everything into place, the manifest last.

    DIR/.prepare/manifest.json names at any time what lies in DIR and is ours: the files of the
    set that makes way, then those of the new one. So an interruption leaves nothing that the next
    run takes for somebody's own.

    Raises:
        OutputError: the folder cannot be written, or has somebody's own file under a name that is
            needed.

    """
    names = {file.file for file in manifest.files}
    try:
        ours: set[str] = set()
        for path in (to / MANIFEST, work / MANIFEST):
            if path.exists():
                ours |= {file.file for file in Manifest.read(path).files}
        # An earlier run may have been interrupted after moving some.
        moving = {name for name in names if (work / name).exists()}
        if others := sorted(name for name in moving - ours if (to / name).exists()):
            raise OutputError(
                f"{to / others[0]} is in the way and is of no data set: move it elsewhere, and the "
                "same command goes on from here"
            )
        if is_prepared(to):
            (to / MANIFEST).replace(work / MANIFEST)  # from here on, it does not count
        for name in ours - (names - moving):
            (to / name).unlink(missing_ok=True)
        with replace_file(work / MANIFEST) as file:
            file.write(manifest.to_json())
        for name in sorted(moving):
            (work / name).replace(to / name)
        sync_folder(to)
        (work / MANIFEST).replace(to / MANIFEST)
        sync_folder(to)
    except OSError as error:
        raise OutputError(f"{to} cannot be written: {error.strerror or error}") from error


def clear(work: Path, *, keep: str | None = None) -> None:
    """Remove DIR/.prepare, which a whole data set does not need; `keep` names what stays in it."""
    if keep is None or not (work / keep).exists():
        shutil.rmtree(work, ignore_errors=True)
        return
    for path in work.iterdir():
        if path.name != keep:
            path.unlink() if path.is_file() else shutil.rmtree(path, ignore_errors=True)
