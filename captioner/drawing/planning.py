"""Plan the picture files that `captioner caption` writes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from captioner.drawing.saving import check_suffix
from captioner.errors import ConfigError, OutputError
from captioner.files import identity, writing
from captioner.paths import is_web_address


def plan_pictures(
    patterns: Mapping[str, str], photos: Sequence[str], *, inputs: Iterable[str | os.PathLike[str]]
) -> list[dict[str, str]]:
    """Return each photo's picture files by option; call it before any picture is drawn.

    Args:
        patterns: the file of each option (such as "--sheet"), as typed. `{name}` is
            the photo's name without folder and suffix, `{number}` its position from 1.
        photos: paths and addresses, as typed.
        inputs: other files that the command reads.

    Raises ConfigError: unknown suffix or field, or a picture would overwrite an input or another
    picture of the command. Other existing files are overwritten.
    """
    plan = [
        {option: _fill(option, pattern, photo, number) for option, pattern in patterns.items()}
        for number, photo in enumerate(photos, 1)
    ]
    read = {key: path for path in (*inputs, *photos) for key in identity(path)}
    written: dict[object, str] = {}
    for photo, files in zip(photos, plan, strict=True):
        for option, file in files.items():
            keys = identity(file)
            for key in keys & read.keys():
                raise ConfigError(
                    f"{option} {patterns[option]} would overwrite {read[key]}, an input of this "
                    "command: name another file"
                )
            label = f"{option} of {photo}"
            for key in keys & written.keys():
                raise ConfigError(
                    f"{written[key]} and {label} would both be written to {file}: "
                    "use {number}, which is different for every photo"
                )
            written.update(dict.fromkeys(keys, label))
    return plan


def make_folders(files: Mapping[str, str]) -> None:
    """Make the folders of files. Raises OutputError."""
    for folder in {Path(file).parent for file in files.values()}:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)


def _fill(option: str, pattern: str, photo: str, number: int) -> str:
    path = urlsplit(photo).path if is_web_address(photo) else photo
    name = "" if path == "-" else Path(path).stem
    try:
        check_suffix(pattern, moving=option == "--animation")
        return pattern.format(name=name or "photo", number=number)
    except OutputError as error:
        raise ConfigError(f"{option}: {error}") from error
    except (ValueError, LookupError, AttributeError) as error:
        raise ConfigError(
            f"{option} {pattern} is invalid ({error}): use the fields {{name}} and {{number}}"
        ) from error
