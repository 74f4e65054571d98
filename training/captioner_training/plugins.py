"""Import classes that a recipe names as module:Class."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from captioner.errors import ConfigError


def import_class(path: str, base: type, *, field: str) -> Any:
    """Import a class of an installed module or of a file in the current folder.

    Args:
        path: module:Class.
        base: the required base class.
        field: the field of the recipe, for messages.

    Raises ConfigError: `path` has another form, the class cannot be imported, it is not a subclass
    of `base`, or it lacks a method.
    """
    module, _, name = path.partition(":")
    if not all(map(str.isidentifier, (*module.split("."), name))) or module.endswith(".py"):
        raise ConfigError(f"{field} {path!r} is not module:Class: use {_corrected(path)}")
    if str(Path.cwd()) not in sys.path and "" not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        kind = getattr(import_module(module), name)
    except Exception as error:  # user code may raise anything
        raise ConfigError(
            f"{field} {path!r} cannot be imported ({type(error).__name__}: {error}): it must be "
            f"installed, or a file in {Path.cwd()}"
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise ConfigError(f"{field} {path!r} is not a subclass of {base.__name__}")
    if missing := ", ".join(sorted(getattr(kind, "__abstractmethods__", ()))):
        raise ConfigError(f"{field} {path!r} does not define {missing}: see {base.__name__}")
    return kind


def _corrected(path: str) -> str:
    """Return the likely module:Class for a path of a file, or for a dotted name."""
    dotted = path.removeprefix("./").replace(".py:", ":").replace("/", ".")
    module, _, name = dotted.rpartition(":" if ":" in dotted else ".")
    is_valid = all(map(str.isidentifier, (*module.split("."), name)))
    return f"{module}:{name}" if is_valid else "a form like package.module:Class"
