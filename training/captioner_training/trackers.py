"""Send the log of a run to TensorBoard or Weights & Biases (`captioner train --log NAME`)."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol

from captioner.errors import ConfigError
from captioner.files import writing


class Tracker(Protocol):
    """Receives the scalars of a run's log."""

    def begin(self, recipe: Mapping[str, Any], *, out: Path, step: int) -> None:
        """Open the run in the folder `out`, or continue it after `step` steps."""

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        """Record scalars by name."""

    def close(self) -> None:
        """Flush and close the run."""


def open_tracker(name: Literal["tensorboard", "wandb"]) -> Tracker:
    """Return a tracker, to be opened with `begin`.

    Raises ConfigError: the tracker's package is not installed.
    """
    try:
        if name == "tensorboard":
            return TensorBoard()
        return WeightsAndBiases()
    except ImportError as error:
        raise ConfigError(f"--log {name} needs {name}: pip install 'captioner[{name}]'") from error


class TensorBoard:
    """Writes event files to DIR/tensorboard; view them with `tensorboard --logdir DIR`."""

    def __init__(self) -> None:
        self._module: Any = import_module("torch.utils.tensorboard")

    def begin(self, recipe: Mapping[str, Any], *, out: Path, step: int) -> None:
        """Open an event file. Events that an interrupted run wrote after `step` are dropped."""
        folder = out / "tensorboard"
        with writing(folder):
            self._writer = self._module.SummaryWriter(str(folder), purge_step=step + 1)
        self._writer.add_text("recipe", f"```\n{dict(recipe)}\n```", global_step=step + 1)

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        """Record scalars by name."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, global_step=step)

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()


class WeightsAndBiases:
    """Logs to Weights & Biases, configured by WANDB_PROJECT, WANDB_MODE and so on."""

    def __init__(self) -> None:
        self._module: Any = import_module("wandb")

    def begin(self, recipe: Mapping[str, Any], *, out: Path, step: int) -> None:  # noqa: ARG002 - kept by W&B
        """Open a run, or continue the run whose id is stored in `out`."""
        marker = out / "wandb-run"
        with writing(marker):
            out.mkdir(parents=True, exist_ok=True)
            identifier = marker.read_text().strip() if marker.exists() else None
            try:
                self._run = self._module.init(
                    dir=str(out),
                    name=out.name,
                    id=identifier,
                    resume=None if identifier is None else "allow",
                    config=dict(recipe),
                )
            except self._module.Error as error:
                raise ConfigError(
                    f"--log wandb failed ({error}): run `wandb login`, or set WANDB_API_KEY or "
                    "WANDB_MODE=offline"
                ) from error
            marker.write_text(f"{self._run.id}\n")

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        """Record scalars by name."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Upload the remaining scalars and close the run."""
        self._run.finish()


def scalars(record: Mapping[str, Any], *, prefix: str = "") -> dict[str, float]:
    """Return the numbers of a log.jsonl record; nested numbers have names like timing/seconds."""
    values: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            values.update(scalars(value, prefix=f"{prefix}{name}/"))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            values[f"{prefix}{name}"] = float(value)
    return values
