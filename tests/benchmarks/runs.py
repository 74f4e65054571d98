"""Training runs side by side, each as a command, on grids that are encoded once for all of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

__all__ = ["captioner", "train"]

_ROOT = Path(__file__).resolve().parent.parent.parent


def train(recipe: dict[str, Any], folder: Path, *, device: str) -> None:
    """Train, or go on; a run that is finished is left as it is.

    Args:
        recipe: as its file, which is written beside the folder.
        folder: of the run, made here; its neighbours share their grids.
        device: as --device takes it.

    """
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "finished.json").exists():
        return
    (folder.parent / "grids").mkdir(exist_ok=True)
    if not (folder / "cache").exists():
        (folder / "cache").symlink_to((folder.parent / "grids").resolve())
    file = folder.parent / f"{folder.name}.yaml"
    file.write_text(yaml.safe_dump(recipe))
    captioner("train", file, "--out", folder, "--device", device)


def captioner(*arguments: object) -> str:
    """Run the command, whose words for people go to standard error; returns what it prints."""
    path = os.pathsep.join(str(_ROOT / part) for part in (".", "training", "serving"))
    command = [sys.executable, "-m", "captioner", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with exit status {done.returncode}")
    return done.stdout
