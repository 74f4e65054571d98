"""The engine for a cluster: Ray Data spreads the photos over actors that decode and caption.

The journal stays with the process that was started: records come back in the order of the photos
and are written there, so that going on works as on one machine. When an actor or a node fails, Ray
gives its photos to others.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
from collections.abc import Generator, Iterator
from itertools import islice
from typing import Any

import torch

from captioner.errors import CaptionerError, MissingExtraError
from captioner.generation.config import GenerationConfig
from captioner.predictor import Captioner
from captioner_serving.batch.config import BatchConfig
from captioner_serving.batch.engines.local import caption_decoded
from captioner_serving.batch.engines.outcome import Claim, Outcome
from captioner_serving.batch.inputs.photos import Photo
from captioner_serving.decoding.decoder import Decoder

__all__ = ["CaptionActor", "RayEngine"]

_WINDOW = 64  # batches a core that Ray has at once: between two windows some actors wait
_BATCH = 32


class CaptionActor:
    """What runs on a node: a Captioner and a decoder."""

    def __init__(
        self, captioner: Captioner, generation: GenerationConfig, *, attention: bool, threads: int
    ) -> None:
        torch.set_num_threads(threads)
        self._captioner = captioner
        self._generation = generation
        self._attention = attention
        self._decode = Decoder(captioner.transform.config, max_pixels=captioner.max_pixels)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """Caption the photos in batch["photo"]: a column each of contents, records, errors."""
        photos: list[Photo] = list(batch["photo"])
        decoded = [self._decode(photo) for photo in photos]
        good = [index for index, one in enumerate(decoded) if one.error is None]
        records: list[dict[str, Any] | None] = [None] * len(photos)
        captions = caption_decoded(
            self._captioner,
            [photos[index].name for index in good],
            [decoded[index] for index in good],
            self._generation,
        )
        for index, caption in zip(good, captions, strict=True):
            records[index] = caption.record(attention=self._attention)
        outcomes = [
            Outcome(photo=photo, content=one.content, record=record, error=one.error)
            for photo, one, record in zip(photos, decoded, records, strict=True)
        ]
        return {"outcome": outcomes}


class RayEngine:
    """Captions on a Ray cluster; see Engine.

    Args:
        address: of the cluster; "auto" finds the one of this machine, "local" starts one.
        captioner: the model; every actor gets a copy.
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
        except ImportError as error:
            raise MissingExtraError("--ray", "cluster") from error
        self.batch_size = batch_size or _BATCH
        self._captioner, self._generation, self._config = captioner, generation, config
        path = os.pathsep.join(part or os.getcwd() for part in sys.path)
        # Ray reports every step of its own on standard error; what matters comes as an exception.
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
        logging.getLogger("ray.data").setLevel(logging.ERROR)
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
        self._gpus = int(resources.get("GPU", 0))
        self._actors = self._gpus or max(1, int(resources.get("CPU", 1)))
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = True

    @property
    def description(self) -> str:
        """Where and how, for the summary."""
        kind = "GPU" if self._gpus else "CPU"
        return f"{self._actors} actors with a {kind} each, batches of {self.batch_size}"

    def run(self, photos: Iterator[Photo], claim: Claim) -> Generator[list[Outcome]]:
        """See Engine.run; a file that another node has captioned already is captioned again."""
        import ray

        while window := list(islice(photos, _WINDOW * self._actors * self.batch_size)):
            results = ray.data.from_items(
                [{"photo": _absolute(photo)} for photo in window],
                override_num_blocks=-(-len(window) // self.batch_size),
            ).map_batches(
                CaptionActor,
                fn_constructor_args=(self._captioner, self._generation),
                fn_constructor_kwargs={"attention": self._config.attention, "threads": 1},
                batch_size=self.batch_size,
                concurrency=self._actors,
                num_gpus=1 if self._gpus else None,
                num_cpus=None if self._gpus else 1,
            )
            for batch in results.iter_batches(batch_size=self.batch_size, batch_format="numpy"):
                for outcome in batch["outcome"]:
                    if outcome.error is None:
                        claim(outcome.content)
                yield list(batch["outcome"])


def _absolute(photo: Photo) -> Photo:
    """Say where a photo lies in a way that does not depend on the current folder; not its name."""
    place = next((name for name in ("file", "archive") if hasattr(photo, name)), None)
    if place is None:
        return photo
    return dataclasses.replace(photo, **{place: os.path.abspath(getattr(photo, place))})
