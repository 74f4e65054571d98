"""The metrics of the server, for Prometheus."""

from __future__ import annotations

from functools import partial

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """The metrics of one server, in a separate registry."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)  # memory, CPU time, open files (on Linux)
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        about = "Requests answered, by route and status"
        self.requests = counter("captioner_requests", about, ["route", "status"])
        about = "Seconds from the first byte of a request to the last byte of its answer"
        self.latency = histogram("captioner_request_seconds", about, ["route"], buckets=_SECONDS)
        self.captions = counter("captioner_captions", "Images captioned")
        about = "Images and requests refused or failed, by type of problem"
        self.errors = counter("captioner_errors", about, ["type"])
        about = "Images per batch"
        self.batch_size = histogram(
            "captioner_batch_images", about, buckets=(1, 2, 4, 8, 16, 32, 64)
        )
        self.queue = gauge("captioner_queue_images", "Images accepted and not yet answered")
        about = "Bytes of unanswered requests in memory"
        self.bodies = gauge("captioner_body_bytes", about)

    def exposition(self) -> bytes:
        """Return all metrics as text."""
        return generate_latest(self._registry)
