"""OUTPUT.run.json: the settings of a run, and which exports it wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import TypeAdapter, ValidationError

from captioner.errors import ConfigError, OutputError
from captioner.files import replace_file

__all__ = ["RunState"]


@dataclass(frozen=True, kw_only=True)
class RunState:
    """What a resume must know besides the lines.

    settings: must be the same for all runs with one output.
    exported: digests of the last two exports, one of which OUTPUT is.
    """

    settings: dict[str, Any]
    exported: tuple[str, ...] = ()
    format: Literal[3] = 3

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Read the file; None if there is none.

        Raises OutputError: it is damaged, or of another version.
        """
        try:
            return TypeAdapter(cls).validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise OutputError(
                f"{path} is damaged, or another version of Captioner wrote it: put it back, resume "
                "with that version, or choose another output"
            ) from error

    def write(self, path: Path, *, part: str) -> None:
        """Write the file; `part` is its name until it is complete."""
        with replace_file(path, part=part) as file:
            file.write(json.dumps(asdict(self)).encode() + b"\n")

    def check_settings(self, output: Path, settings: Mapping[str, Any]) -> None:
        """Refuse to mix records of two kinds in one output.

        Raises ConfigError: the settings differ; names every difference.
        """
        before = self.settings
        changed = [
            f"{_option(key)} was {_value(before.get(key))} and is {_value(settings.get(key))}"
            for key in {**before, **settings}
            if before.get(key) != settings.get(key)
        ]
        if changed:
            raise ConfigError(
                f"{output} was begun with different settings: {'; '.join(changed)}. "
                "Use the same settings, choose another output, or start over with --restart"
            )


def _option(key: str) -> str:
    """Return a setting as it is typed."""
    words = {"model": "the model of --checkpoint", "wording": "--template, --prefix or --replace"}
    return words.get(key, f"--{key.replace('_', '-')}")


def _value(value: Any) -> str:
    if value is None or value == "" or value is False:
        return "not given"
    return "given" if value is True else value if isinstance(value, str) else json.dumps(value)
