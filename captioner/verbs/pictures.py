"""Which file each picture of a run goes to: never onto an input, and never two into one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from captioner.drawing.saving import check_suffix, is_drawn
from captioner.errors import ConfigError, OutputError
from captioner.files import identity
from captioner.paths import is_web_address

__all__ = ["make_folders", "plan_pictures"]

_FIELD = re.compile(r"\{[^{}]*\}")
_Path = str | os.PathLike[str]


def plan_pictures(
    patterns: Mapping[str, str], photos: Sequence[str], *, inputs: Iterable[_Path]
) -> list[dict[str, str]]:
    """Give each photo's files, by option, before any work is done.

    Args:
        patterns: by option ("--sheet"), the file as it was typed. `{name}` in it stands for the
            photo's name without folder and suffix, `{number}` for its place in the list, from 1.
        photos: paths and addresses, as they were typed.
        inputs: other files that the run reads.

    Raises:
        ConfigError: the kind of file or a field is not known, the folder is missing, or a picture
            would overwrite an input, another picture of this run, or a file that
            Captioner did not draw.

    """
    for option, pattern in patterns.items():
        _check_pattern(option, pattern, several=len(photos) > 1)
    plan = [
        {option: _fill(pattern, photo, number) for option, pattern in patterns.items()}
        for number, photo in enumerate(photos, 1)
    ]
    read = {key: path for path in (*inputs, *photos) for key in identity(path)}
    taken: dict[object, str] = {}
    for photo, files in zip(photos, plan, strict=True):
        for option, file in files.items():
            keys = identity(file)
            for key in keys & read.keys():
                raise ConfigError(
                    f"{option} {patterns[option]} would overwrite {read[key]}, "
                    "which this command reads: name another file"
                )
            there = Path(file)
            if there.is_file() and there.stat().st_size and not is_drawn(there):
                raise ConfigError(
                    f"{option}: {file} is there already, and Captioner did not draw it: name "
                    "another file, or move that one away"
                )
            label = f"{option} of {photo}"
            for key in keys & taken.keys():
                raise ConfigError(
                    f"{taken[key]} and {label} would both be written to {file}: "
                    "give them different names; {number} is different for every photo"
                )
            taken.update(dict.fromkeys(keys, label))
    return plan


def make_folders(plan: Iterable[Mapping[str, str]]) -> None:
    """Make the folders that the files of a plan go to.

    Raises:
        OutputError: one cannot be made.

    """
    for folder in dict.fromkeys(Path(file).parent for files in plan for file in files.values()):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"folder {folder} cannot be made: {error.strerror}") from error


def _check_pattern(option: str, pattern: str, *, several: bool) -> None:
    try:
        check_suffix(pattern, moving=option == "--animation")
    except OutputError as error:
        raise ConfigError(f"{option}: {error}") from error
    fields = _FIELD.findall(pattern)
    if {*_FIELD.sub("", pattern)} & {*"{}"}:
        raise ConfigError(f"{option} {pattern}: a brace is left open; write {{name}} or {{number}}")
    for field in fields:
        if field not in ("{name}", "{number}"):
            raise ConfigError(
                f"{option} {pattern}: {field} is not known; {{name}} and {{number}} are"
            )
    if several and not fields:
        raise ConfigError(
            f"{option} {pattern} would be overwritten by each photo: put {{name}} into it"
        )
    # With a field the folder is made; without one a missing folder is more likely mistyped.
    if not fields and not Path(pattern).parent.is_dir():
        raise ConfigError(f"{option} {pattern}: there is no folder {Path(pattern).parent}")


def _fill(pattern: str, photo: str, number: int) -> str:
    path = urlsplit(photo).path if is_web_address(photo) else photo
    values = {"{name}": Path(path).stem or "photo", "{number}": str(number)}
    return _FIELD.sub(lambda match: values[match[0]], pattern)
