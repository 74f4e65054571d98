"""The shipped recipes, one YAML file each, and the texts of recipes."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from captioner.errors import ConfigError
from captioner.paths import did_you_mean, expanded, there_is_no

__all__ = ["recipe_path", "recipe_text", "shipped_recipes"]


def shipped_recipes() -> dict[str, Path]:
    """Return the file of each recipe, by name."""
    folder = Path(str(files(__name__)))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def recipe_path(name: str) -> Path:
    """Return the file of a recipe. Raises ConfigError: no recipe is shipped under this name."""
    if name.endswith((".yaml", ".yml")):
        return expanded(name)
    shipped = shipped_recipes()
    if name in shipped:
        return shipped[name]
    file = Path(f"{name}.yaml")
    near = f", did you mean {file}?" if file.is_file() else did_you_mean(name, shipped)
    raise ConfigError(
        f"there is no recipe {name!r}{f'{near} Use' if near else ': use'} a .yaml file, or one "
        f"of {', '.join(shipped)}"
    )


def recipe_text(name: str) -> str:
    """Return the text of a recipe. Raises ConfigError: it does not exist or cannot be read."""
    source = recipe_path(name)
    try:
        return source.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"recipe {name} cannot be read: {there_is_no('file', source)}") from error
    except OSError as error:
        raise ConfigError(f"recipe {source} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"recipe {source} is not YAML: {error}") from error
