"""The engine for a cluster: Ray Data distributes the photos to actors, each with a local engine.

Results return in the order of the photos, and the driver writes the journal, so that resume works
as on one machine. When an actor or node fails, Ray retries its photos on other actors.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from captioner.captioner import Captioner
from captioner.checkpoint import Checkpoint
from captioner.errors import CaptionerError, MissingExtraError
from captioner.generation.config import GenerationConfig
from captioner.trust.trust import Trust
from captioner_serving.batch.config import BatchConfig
from captioner_serving.batch.engine import LocalEngine, Outcome
from captioner_serving.batch.inputs.photos import Photo

_WINDOW = 64  # batches per actor that are submitted together; actors wait between two windows
_BATCH = 32
_TOGETHER = 4  # batches per call of an actor, which decodes one while it captions another
_RESTARTS = 4  # restarts of an actor, and retries of its photos


def check_ray() -> None:
    """Raise MissingExtraError if Ray is not installed."""
    try:
        import ray.data  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("--ray", "cluster") from error


class CaptionActor:
    """A local engine on a GPU or CPU of a node.

    Device "auto" is resolved on the node: the driver may have other hardware and files.
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
        if isinstance(checkpoint, str):  # a Hugging Face model, which each node downloads
            captioner = Captioner.from_pretrained(checkpoint, **options)
            captioner.use_trust(trust)  # the node may not have the trust file
        else:
            captioner = Captioner(checkpoint, **options, trust=trust)
        self._engine = LocalEngine(captioner, generation, config, share=share)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Outcome]]:
        """Caption the photos in batch["photo"]."""
        return {"outcomes": list(chain.from_iterable(self._engine.run(iter(batch["photo"]))))}


class RayEngine:
    """Captions on a Ray cluster; every actor has a copy of the model.

    Raises CaptionerError: there is no cluster at the address ("auto": the cluster of this machine).
    """

    def __init__(
        self, address: str, captioner: Captioner, generation: GenerationConfig, config: BatchConfig
    ) -> None:
        import ray
        import ray.data

        self._captioner, self._generation = captioner, generation
        self._batch = config.batch_size or _BATCH
        self._config = replace(config, batch_size=self._batch)
        path = os.pathsep.join(part or os.getcwd() for part in sys.path)
        # Silence Ray's progress messages; errors are raised. Set the level after the import of
        # ray.data, which sets it too.
        logger, self._settings = logging.getLogger("ray.data"), ExitStack()
        self._settings.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.CRITICAL)
        if "RAY_BACKEND_LOG_LEVEL" not in os.environ:
            os.environ["RAY_BACKEND_LOG_LEVEL"] = "fatal"
            self._settings.callback(os.environ.pop, "RAY_BACKEND_LOG_LEVEL", None)
        try:
            ray.init(
                address,
                ignore_reinit_error=True,
                log_to_driver=False,
                configure_logging=False,
                runtime_env={"env_vars": {"PYTHONPATH": path}},
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            self._settings.close()
            raise CaptionerError(
                f"there is no Ray cluster at {address} ({error}): start one with ray start --head"
            ) from error
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        cpus = max(1, int(resources.get("CPU", 1)))
        self._gpus = (
            0 if str(captioner.options["device"]) == "cpu" else int(resources.get("GPU", 0))
        )
        self._actors = self._gpus or cpus
        self._share = max(1, cpus // self._actors)
        context = ray.data.DataContext.get_current()
        for part, name, value in (
            (context, "enable_progress_bars", False),
            (context.execution_options, "preserve_order", True),
        ):
            self._settings.callback(setattr, part, name, getattr(part, name))
            setattr(part, name, value)

    @property
    def description(self) -> str:
        """Actors, batch size and workers, for the summary."""
        return (
            f"{self._actors} actors with a {'GPU' if self._gpus else 'CPU'} each, batches of "
            f"{self._batch}, {self._share} decoding processes per actor"
        )

    def close(self) -> None:
        """Restore Ray's settings. Ray releases the actors when this process ends."""
        self._settings.close()

    def run(self, photos: Iterator[Photo]) -> Generator[list[Outcome]]:
        """See LocalEngine.run."""
        while window := list(islice(photos, _WINDOW * self._actors * self._batch)):
            waiting = iter(window)
            for part in self._outcomes(window):
                pairs = list(zip(islice(waiting, len(part)), part, strict=True))
                if lost := [photo for photo, outcome in pairs if photo.name != outcome.photo.name]:
                    raise CaptionerError(
                        f"Ray returned no result for {lost[0].name}: run the same command to resume"
                    )
                yield [replace(outcome, photo=photo) for photo, outcome in pairs]

    def _outcomes(self, window: list[Photo]) -> Iterator[list[Outcome]]:
        """Caption photos on the cluster; yield their outcomes in the same order."""
        import ray

        captioner, together = self._captioner, _TOGETHER * self._batch
        model = captioner.source or captioner.checkpoint
        options = {"share": self._share, "trust": captioner.trust, **captioner.options}
        outcomes = ray.data.from_items(
            [{"photo": _absolute(photo)} for photo in window],
            override_num_blocks=-(-len(window) // together),
        ).map_batches(
            CaptionActor,
            fn_constructor_args=(model, self._generation, self._config),
            fn_constructor_kwargs=options,
            concurrency=self._actors,
            num_gpus=1 if self._gpus else None,
            num_cpus=self._share,
            batch_size=together,
            max_restarts=_RESTARTS,
            max_task_retries=_RESTARTS,
        )
        try:
            for batch in outcomes.iter_batches(batch_size=together, batch_format="numpy"):
                yield list(batch["outcomes"])
        except Exception as error:  # Ray wraps exceptions in several ways
            raise CaptionerError(_reason(error)) from error


def _reason(error: BaseException) -> str:
    """Return the reason of a failure: the message of the CaptionerError that caused it, if any."""
    import ray

    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.cause if isinstance(cause, ray.exceptions.RayTaskError) else cause.__cause__
    for cause in causes:
        if isinstance(cause, CaptionerError):
            return str(cause)
        if isinstance(cause, ray.exceptions.RayActorError):
            return (
                "an actor of the Ray cluster ended repeatedly, perhaps because memory is short: "
                "finished photos are kept, and the same command resumes"
            )
    return f"the Ray cluster cannot continue ({type(causes[-1]).__name__}: {causes[-1]})"


def _absolute(photo: Photo) -> Photo:
    """Make the path of a photo independent of the current folder; its name is unchanged."""
    places = ((name, getattr(photo, name, None)) for name in ("path", "archive"))
    return replace(photo, **{name: os.path.abspath(place) for name, place in places if place})
