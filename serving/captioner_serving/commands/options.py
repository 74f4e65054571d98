"""Options for sidecars and wording, shared by `batch` and `convert`."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from captioner.errors import ConfigError

if TYPE_CHECKING:
    from captioner_serving.batch.wording import Wording


def add_sidecars(group: argparse._ArgumentGroup) -> None:
    """Add the options for sidecars."""
    add = group.add_argument
    add("--sidecar", metavar="KIND", help="file beside each photo: txt, caption, json or xmp")
    add("--embed", action="store_true",
        help="with --sidecar xmp: copy it into the JPEG file too (needs exiftool)")  # fmt: skip
    add("--existing", default="skip", metavar="HOW",
        help="if a text exists: skip, overwrite or append")  # fmt: skip
    add("--language", default="en", metavar="TAG",
        help="language of the captions in XMP; default: en")  # fmt: skip


def add_wording(group: argparse._ArgumentGroup) -> None:
    """Add the options for wording."""
    add = group.add_argument
    add("--template", metavar="TEXT", help="text around the caption: 'Photo of {caption}.'")
    add("--replace", action="append", default=[], metavar="OLD=NEW", help="replace whole words")


def given_fields(kind: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the given options that are fields of a dataclass."""
    options = ((field.name, getattr(arguments, field.name, None)) for field in fields(kind))
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in options
        if value is not None
    }


def is_worded(arguments: argparse.Namespace) -> bool:
    """Return whether an option for wording is given."""
    return bool(arguments.replace or arguments.template is not None)


def read_wording(arguments: argparse.Namespace) -> Wording:
    """Return the wording that the options describe."""
    from captioner_serving.batch.wording import Wording

    if invalid := [text for text in arguments.replace if "=" not in text]:
        raise ConfigError(f"--replace {invalid[0]!r} has no '=': write OLD=NEW")
    replace = tuple(
        (old, new) for old, _, new in (text.partition("=") for text in arguments.replace)
    )
    return Wording(template=arguments.template, replace=replace)
