"""The engine for a cluster: Ray Data spreads the photos over actors, each with a local engine.

The journal stays with the process that was started: results come back in the order of the photos
and are written there, so that going on works as on one machine. When an actor or a node fails, Ray
gives its photos to others, a few times.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Generator, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from captioner.checkpoint import Checkpoint
from captioner.errors import CaptionerError, MissingExtraError
from captioner.generation.config import GenerationConfig
from captioner.predictor import Captioner
from captioner.trust.trust import Trust
from captioner_serving.batch.config import BatchConfig
from captioner_serving.batch.engine import LocalEngine, Outcome
from captioner_serving.batch.inputs.photos import MemoryPhoto, Photo

__all__ = ["CaptionActor", "RayEngine"]

_WINDOW = 64  # batches an actor that Ray has at once: between two windows some actors wait
_CARRIED = 1 << 29  # bytes of files out of compressed archives that Ray has at once
_BATCH = 32
_TOGETHER = 4  # batches that an actor gets at once: it decodes one while it captions another
_RESTARTS = 4  # of an actor, and tries of its photos: what always fails must not go on for ever


class CaptionActor:
    """A local engine on a GPU, or on a CPU, of a node: "auto" is decided there.

    The process that was started may have no GPU, and another CPU; its files may be its own.
    """

    def __init__(
        self,
        checkpoint: Checkpoint | str,
        generation: GenerationConfig,
        config: BatchConfig,
        *,
        share: int,
        trust: Trust | None,
        **options: Any,
    ) -> None:
        if isinstance(checkpoint, str):  # a Hugging Face model, which each node loads by itself
            captioner = Captioner.from_pretrained(checkpoint, **options)
            captioner.use_trust(trust)  # a node may not have the file
        else:
            captioner = Captioner(checkpoint, **options, trust=trust)
        self._engine = LocalEngine(captioner, generation, config, share=share)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Outcome]]:
        """Caption the photos in batch["photo"]."""
        done = [outcome for part in self._engine.run(iter(batch["photo"])) for outcome in part]
        return {"done": [_stripped(outcome) for outcome in done]}


class RayEngine:
    """Captions on a Ray cluster; every actor prepares a copy of the model for its own device.

    Raises:
        MissingExtraError: Ray is not installed.
        CaptionerError: there is no cluster at the address ("auto": of this machine).
    """

    def __init__(
        self,
        address: str,
        captioner: Captioner,
        generation: GenerationConfig,
        config: BatchConfig,
    ) -> None:
        try:
            import ray
            import ray.data
        except ImportError as error:
            raise MissingExtraError("--ray", "cluster") from error
        self._captioner, self._generation = captioner, generation
        self._batch = config.batch_size or _BATCH
        self._config = replace(config, batch_size=self._batch)
        path = os.pathsep.join(part or os.getcwd() for part in sys.path)
        # Ray reports every step of its own on standard error; what matters comes as an exception.
        # The import of ray.data has set a level of its own before this.
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        try:
            ray.init(
                address,
                ignore_reinit_error=True,
                log_to_driver=False,
                configure_logging=False,
                runtime_env={"env_vars": {"PYTHONPATH": path}},
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise CaptionerError(
                f"no Ray cluster at {address} ({error}): start one with ray start --head"
            ) from error
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        cpus = max(1, int(resources.get("CPU", 1)))
        self._gpus = (
            0 if str(captioner.options["device"]) == "cpu" else int(resources.get("GPU", 0))
        )
        self._actors = self._gpus or cpus
        self._share = max(1, cpus // self._actors)
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = True

    @property
    def description(self) -> str:
        """See Engine."""
        return (
            f"{self._actors} actors on a {'GPU' if self._gpus else 'CPU'} each, in batches of "
            f"{self._batch}, {self._share} decoding for each"
        )

    def close(self) -> None:
        """The cluster stays; Ray ends with the process what it began."""

    def run(self, photos: Iterator[Photo]) -> Generator[list[Outcome]]:
        """See Engine.run."""
        while window := _window(photos, most=_WINDOW * self._actors * self._batch):
            waiting = iter(window)
            for part in self._outcomes(window):
                pairs = list(zip(islice(waiting, len(part)), part, strict=True))
                if lost := [photo for photo, outcome in pairs if photo.name != outcome.photo.name]:
                    raise CaptionerError(f"Ray lost track of {lost[0].name}: run it again")
                yield [replace(outcome, photo=photo) for photo, outcome in pairs]

    def _outcomes(self, window: list[Photo]) -> Iterator[list[Outcome]]:
        """Caption on the cluster, in the order of the photos."""
        import ray

        captioner, together = self._captioner, _TOGETHER * self._batch
        done = ray.data.from_items(
            [{"photo": _absolute(photo)} for photo in window],
            override_num_blocks=-(-len(window) // together),
        ).map_batches(
            CaptionActor,
            fn_constructor_args=(
                captioner.source or captioner.checkpoint,
                self._generation,
                self._config,
            ),
            fn_constructor_kwargs={
                "share": self._share,
                "trust": captioner.trust,
                **captioner.options,
            },
            concurrency=self._actors,
            num_gpus=1 if self._gpus else None,
            num_cpus=self._share,
            batch_size=together,
            max_restarts=_RESTARTS,
            max_task_retries=_RESTARTS,
        )
        try:
            for batch in done.iter_batches(batch_size=together, batch_format="numpy"):
                yield list(batch["done"])
        except Exception as error:  # Ray wraps what it is told, in several ways
            raise CaptionerError(_reason(error)) from error


def _stripped(outcome: Outcome) -> Outcome:
    """Drop the bytes of the file, the caption and the actor's decoding processes."""
    photo = outcome.photo.without_data()
    return replace(outcome, photo=photo, caption=None, open_photo=None)


def _reason(error: BaseException) -> str:
    """Say what an actor died of: our own sentence where there is one."""
    import ray

    last = error
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ray.exceptions.RayTaskError) and cause.cause is not cause:
            cause = cause.cause
        elif isinstance(cause, CaptionerError):
            return str(cause)
        elif isinstance(cause, ray.exceptions.RayActorError):
            return (
                "an actor of the Ray cluster ended again and again, perhaps because memory is "
                "short: what was done stays, and the same command goes on from there"
            )
        else:
            last, cause = cause, cause.__cause__
    return f"the Ray cluster cannot continue ({type(last).__name__}: {last})"


def _window(photos: Iterator[Photo], most: int) -> list[Photo]:
    """Take the next photos: so many, or fewer where they carry their bytes with them."""
    window: list[Photo] = []
    carried = 0
    for photo in photos:
        window.append(photo)
        carried += len(photo.data) if isinstance(photo, MemoryPhoto) else 0
        if len(window) == most or carried >= _CARRIED:
            break
    return window


def _absolute(photo: Photo) -> Photo:
    """Say where a photo lies in a way that does not depend on the current folder; not its name."""
    places = {name: getattr(photo, name) for name in ("file", "archive") if hasattr(photo, name)}
    return replace(photo, **{name: os.path.abspath(place) for name, place in places.items()})
