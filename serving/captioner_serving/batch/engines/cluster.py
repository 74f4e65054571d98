"""The engine for a cluster: Ray Data spreads the photos over actors.

Some actors decode, on CPUs, and feed those that caption, on the GPUs where there are any: no GPU
waits for a file. The journal stays with the process that was started: results come back in the
order of the photos and are written there, so that going on works as on one machine. When an actor
or a node fails, Ray gives its photos to others, a few times.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
from collections.abc import Generator, Iterator
from typing import Any

import torch

from captioner.checkpoint import Checkpoint
from captioner.decoding.decoded import Decoded
from captioner.decoding.reader import Reader
from captioner.errors import CaptionerError, MissingExtraError
from captioner.familiarity import Familiarity
from captioner.generation.config import GenerationConfig
from captioner.predictor import Captioner
from captioner.vision.transform import TransformConfig
from captioner_serving.batch.config import BatchConfig
from captioner_serving.batch.engines.local import caption_decoded
from captioner_serving.batch.engines.outcome import Claim, Outcome
from captioner_serving.batch.inputs.photos import MemoryPhoto, Photo

__all__ = ["CaptionActor", "DecodeActor", "RayEngine"]

_WINDOW = 64  # batches an actor that Ray has at once: between two windows some actors wait
_CARRIED = 1 << 29  # bytes of files out of compressed archives that Ray has at once
_BATCH = 32
_RESTARTS = 4  # of an actor, and tries of a batch: what always fails must not go on for ever

_Column = dict[str, list[Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Result:
    """What a photo came to so far; it travels without the bytes of its file."""

    name: str
    decoded: Decoded
    record: dict[str, Any] | None = None


class DecodeActor:
    """Decodes on a CPU of a node, in a process beside it that a photo may bring down."""

    def __init__(self, transform: TransformConfig, *, max_pixels: int) -> None:
        self._reader = Reader(transform, max_pixels=max_pixels, environment=os.environ)

    def __call__(self, batch: dict[str, Any]) -> _Column:
        """Decode the photos in batch["photo"]."""
        decoded = self._reader.stream(iter(batch["photo"]))
        return {"result": [_Result(name=photo.name, decoded=one) for photo, one in decoded]}


class CaptionActor:
    """Captions on a GPU, or on a CPU, of a node: "auto" is decided there.

    The process that was started may have no GPU, and another CPU; its files may be its own.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        generation: GenerationConfig,
        *,
        device: str | torch.device,
        dtype: str | torch.dtype,
        familiarity: Familiarity | None,
        attention: bool,
        check_attention: bool,
    ) -> None:
        torch.set_num_threads(1)
        # What came here is nobody else's: it need not be kept in float32 beside what captions.
        self._captioner = Captioner(checkpoint, device=device, dtype=dtype, _keep=False)
        self._captioner.familiarity = familiarity
        self._generation = generation
        self._attention, self._check = attention, check_attention

    def __call__(self, batch: dict[str, Any]) -> _Column:
        """Caption what was decoded without an error in batch["result"]."""
        results: list[_Result] = list(batch["result"])
        good = [result for result in results if result.decoded.error is None]
        captions = caption_decoded(
            self._captioner,
            [result.name for result in good],
            [result.decoded for result in good],
            self._generation,
            check_attention=self._check,
        )
        records = [caption.record(attention=self._attention) for caption in captions]
        made = dict(zip(map(id, good), records, strict=True))
        return {
            "result": [
                dataclasses.replace(
                    result,
                    decoded=result.decoded._replace(pixels=b""),
                    record=made.get(id(result)),
                )
                for result in results
            ]
        }


class RayEngine:
    """Captions on a Ray cluster; see Engine.

    Args:
        address: of the cluster; "auto" finds the one of this machine, "local" starts one.
        captioner: the model; every actor that captions prepares a copy for its own device.
        generation: how sentences are made.
        config: says what a record carries.
        batch_size: photos an actor captions at once.

    Raises:
        MissingExtraError: Ray is not installed.
        CaptionerError: there is no cluster at the address.

    """

    def __init__(
        self,
        address: str,
        captioner: Captioner,
        generation: GenerationConfig,
        config: BatchConfig,
        *,
        batch_size: int | None,
    ) -> None:
        try:
            import ray
            import ray.data
        except ImportError as error:
            raise MissingExtraError("--ray", "cluster") from error
        self.batch_size = batch_size or _BATCH
        self._captioner, self._generation, self._config = captioner, generation, config
        self._checkpoint = captioner.checkpoint
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
        device, _ = captioner.asked
        self._gpus = 0 if str(device) == "cpu" else int(resources.get("GPU", 0))
        self._decoders = max(1, int(resources.get("CPU", 1)))
        self._captioners = self._gpus or self._decoders
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = True

    @property
    def description(self) -> str:
        """Where and how, for the summary."""
        kind = "GPU" if self._gpus else "CPU"
        return (
            f"{self._captioners} actors that caption, on a {kind} each, in batches of "
            f"{self.batch_size}, and {self._decoders} that decode"
        )

    def run(self, photos: Iterator[Photo], claim: Claim) -> Generator[list[Outcome]]:
        """See Engine.run; a file that another node has captioned already is captioned again."""
        while window := _window(photos, _WINDOW * self._captioners * self.batch_size):
            waiting = iter(window)
            for results in self._results(window):
                outcomes = []
                for result in results:
                    photo, decoded = next(waiting), result.decoded
                    if photo.name != result.name:
                        raise CaptionerError(f"Ray lost track of {photo.name}: run it again")
                    if decoded.error is None:
                        claim(decoded.content)
                    outcomes.append(
                        Outcome(
                            photo=photo,
                            content=decoded.content,
                            record=result.record,
                            error=decoded.error,
                        )
                    )
                yield outcomes

    def _results(self, window: list[Photo]) -> Iterator[list[_Result]]:
        """Decode and caption on the cluster, in the order of the photos.

        Raises:
            CaptionerError: the cluster cannot; the detail says why.

        """
        import ray

        # Where there are no GPUs both kinds share the CPUs: while one waits the other has work.
        share = 1.0 if self._gpus else 0.5
        common: dict[str, Any] = {
            "batch_size": self.batch_size,
            "max_restarts": _RESTARTS,
            "max_task_retries": _RESTARTS,
        }
        device, dtype = self._captioner.asked
        source = ray.data.from_items(
            [{"photo": _absolute(photo)} for photo in window],
            override_num_blocks=-(-len(window) // self.batch_size),
        )
        decoded = source.map_batches(
            DecodeActor,
            fn_constructor_args=(self._captioner.transform.config,),
            fn_constructor_kwargs={"max_pixels": self._captioner.max_pixels},
            concurrency=(1, self._decoders),
            num_cpus=share,
            **common,
        )
        captioned = decoded.map_batches(
            CaptionActor,
            fn_constructor_args=(self._checkpoint, self._generation),
            fn_constructor_kwargs={
                "device": device,
                "dtype": dtype,
                "familiarity": self._captioner.familiarity,
                "attention": self._config.attention,
                "check_attention": self._config.check_attention,
            },
            concurrency=self._captioners,
            # Ray would reserve a CPU beside each GPU, and the decoders have them all.
            num_gpus=1 if self._gpus else None,
            num_cpus=0 if self._gpus else share,
            **common,
        )
        try:
            for batch in captioned.iter_batches(batch_size=self.batch_size, batch_format="numpy"):
                yield list(batch["result"])
        except Exception as error:  # Ray wraps what it is told, in several ways
            raise CaptionerError(_reason(error)) from error


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
    place = next((name for name in ("file", "archive") if hasattr(photo, name)), None)
    if place is None:
        return photo
    return dataclasses.replace(photo, **{place: os.path.abspath(getattr(photo, place))})
