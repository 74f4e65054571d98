"""OUTPUT.run.json: the settings of a run, and the digests of its exports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import TypeAdapter, ValidationError

from captioner.errors import ConfigError, OutputError
from captioner.files import replace_file


@dataclass(frozen=True, kw_only=True)
class RunState:
    """The state of a run besides its JSON Lines files.

    settings: the settings that all runs with one output must share.
    exported: digests of the last two exports. If OUTPUT has neither digest, it was edited.
    """

    settings: dict[str, Any]
    exported: tuple[str, ...] = ()
    format: Literal[3] = 3

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Read the file; return None if it does not exist.

        Raises OutputError: it is damaged, or from another version.
        """
        try:
            return TypeAdapter(cls).validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise OutputError(
                f"{path} is damaged or from another version of Captioner: restore it, resume with "
                "that version, or choose another output"
            ) from error

    def write(self, path: Path, *, part: str) -> None:
        """Write the file; `part` is the name of the temporary file."""
        with replace_file(path, part=part) as file:
            file.write(json.dumps(asdict(self)).encode() + b"\n")

    def check_settings(self, output: Path, settings: Mapping[str, Any]) -> None:
        """Raise ConfigError if the settings differ; the detail names every difference."""
        before = self.settings
        changed = [
            f"{_option(key)} was {_value(before.get(key))} and is {_value(settings.get(key))}"
            for key in {**before, **settings}
            if before.get(key) != settings.get(key)
        ]
        if changed:
            raise ConfigError(
                f"{output} has records with other settings: {'; '.join(changed)}. "
                "Use the same settings, choose another output, or start over with --restart"
            )


def _option(key: str) -> str:
    """Return the command-line option for a setting."""
    words = {"model": "the model of --checkpoint", "wording": "--template, --prefix or --replace"}
    return words.get(key, f"--{key.replace('_', '-')}")


def _value(value: Any) -> str:
    if value is None or value == "" or value is False:
        return "not given"
    return "given" if value is True else value if isinstance(value, str) else json.dumps(value)
