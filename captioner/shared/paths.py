"""Path helpers: expand, suggest close matches, find bundled files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from captioner.errors import CheckpointNotFoundError, ConfigError
from captioner.hub import CHECKPOINT, download_checkpoint, is_hub_name

HUGGING_FACE = "hf:"
"""The prefix of checkpoint names that are Hugging Face models."""

# Thumbnails, snapshots and deleted files of Synology, QNAP and Windows, in lower case.
_SYSTEM_FOLDERS = {
    *("@eadir", "#recycle", "#snapshot", "@recycle", "@__thumb", "@recently-snapshot"),
    *("$recycle.bin", "system volume information"),
}


def expanded(path: str | os.PathLike[str]) -> Path:
    """Expand a leading ~; the path is returned unchanged if the user does not exist.

    >>> expanded("~nobody-of-that-name/photos")
    PosixPath('~nobody-of-that-name/photos')
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def checkpoint_file(path: str | os.PathLike[str]) -> Path:
    """Return the file of a checkpoint, given a file, the folder of a run, or a name on the Hub.

    A run's best checkpoint is returned. "bundled" is the checkpoint that comes with Captioner. A
    local path that exists takes precedence over a name on the Hub, and one with a checkpoint over
    "bundled". A folder may also be a copy of a repository of the Hub.

    Raises:
        CheckpointNotFoundError: the Hub has no such checkpoint, or cannot be reached.
        ConfigError: a local path has a revision.
    """
    place, name = expanded(path), os.fspath(path)
    for file in ("best.safetensors", CHECKPOINT):
        if (place / file).is_file():
            return place / file
    if name == "bundled" and not place.is_file():
        return bundled_checkpoint()
    if os.path.lexists(place) or not is_hub_name(name):
        return place
    repository, _, revision = name.partition("@")
    if revision and os.path.lexists(repository):
        raise ConfigError(
            f"revision {revision}: {repository} is a local path, which has no revisions: leave it "
            "out"
        )
    return download_checkpoint(name)


def is_system_folder(name: str) -> bool:
    """Whether a folder of this name has thumbnails or deleted files, not photos of its owner.

    >>> is_system_folder("@eaDir"), is_system_folder(".Trash-1000"), is_system_folder("Holidays")
    (True, True, False)
    """
    lower = name.lower()
    return lower in _SYSTEM_FOLDERS or lower.startswith(".trash")


def is_web_address(name: str) -> bool:
    """Whether a name is an http or https address.

    >>> is_web_address("HTTPS://example.org/photo.jpg")
    True
    """
    return name.lower().startswith(("http://", "https://"))


def absolute(path: Path) -> Path:
    """Return an absolute path without `..`. Links are not followed: targets may be hashes."""
    return Path(os.path.abspath(path))  # noqa: PTH100 - Path.resolve follows links


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return ", did you mean X?" with the closest of `names`; "" if none is close.

    >>> did_you_mean("minimum_cuont", ["minimum_count", "workers"])
    ', did you mean minimum_count?'
    """
    near = _nearest(name, names)
    return f", did you mean {near}?" if near else ""


def there_is_no(what: str, path: Path) -> str:
    """Return the message that a file or folder does not exist; suggest a similar name, if any.

    >>> there_is_no("folder", Path("/nowhere/photos"))
    'there is no folder /nowhere/photos: /nowhere does not exist'
    """
    text = f"there is no {what} {path}"
    if what == "file" and os.path.isdir(path):  # noqa: PTH112 - Path.is_dir may raise
        return f"{path} is not a file but a folder"
    try:
        near = _nearest(path.name, (entry.name for entry in path.parent.iterdir()))
    except OSError:
        return f"{text}: {path.parent} does not exist"
    return f"{text}, did you mean {path.parent / near}?" if near else text


def _nearest(name: str, names: Iterable[str]) -> str | None:
    by_lower = {candidate.lower(): candidate for candidate in names}
    matches = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[matches[0]] if matches else None


def bundled_checkpoint() -> Path:
    """Return the path of the bundled checkpoint.

    Raises CheckpointNotFoundError: this installation has no bundled checkpoint.
    """
    path = _find_bundled("captioner.safetensors")
    if path is None:
        raise CheckpointNotFoundError(
            "the bundled checkpoint is missing from this installation: "
            "install Captioner again, or name a checkpoint file"
        )
    return path


def sample_photos() -> dict[str, Path]:
    """Return the bundled sample photos by name, in display order.

    They are public domain or CC0; see CREDITS.md beside them.
    """
    folder = _find_bundled("samples")
    photos = {path.stem: path for path in sorted(folder.glob("*.jpg"))} if folder else {}
    # The photo with the clearest attention maps is first.
    return dict(sorted(photos.items(), key=lambda item: item[0] != "coffee"))


def _find_bundled(name: str) -> Path | None:
    """Find a file of assets/, in the package or in a checkout."""
    package = Path(__file__).resolve().parents[1]
    paths = (folder / "assets" / name for folder in (package, package.parent))
    return next((path for path in paths if path.exists()), None)
