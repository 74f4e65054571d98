"""What the server counts, in the format of Prometheus."""

from __future__ import annotations

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    Summary,
    generate_latest,
)

__all__ = ["Metrics"]

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Counters of one server, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)  # memory, time, open files; of Linux
        self.requests = Counter(
            "captioner_requests",
            "Requests answered, by route and status",
            ["route", "status"],
            registry=self._registry,
        )
        self.latency = Histogram(
            "captioner_request_seconds",
            "Seconds from a request's first byte to its answer's last",
            ["route"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.photo = Summary(
            "captioner_photo_seconds",
            "Seconds that a photo spends being opened, and waiting for the model and in it",
            ["stage"],
            registry=self._registry,
        )
        self.captions = Counter("captioner_captions", "Images captioned", registry=self._registry)
        self.errors = Counter(
            "captioner_errors",
            "Images and requests refused or failed, by the type of the problem",
            ["type"],
            registry=self._registry,
        )
        self.batch_size = Histogram(
            "captioner_batch_images",
            "Images encoded and decoded together",
            buckets=(1, 2, 4, 8, 16, 32, 64),
            registry=self._registry,
        )
        self.batch_seconds = Histogram(
            "captioner_batch_seconds",
            "Seconds that the model took for a batch",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.queue = Gauge(
            "captioner_queue_images",
            "Images accepted and not yet answered",
            registry=self._registry,
        )
        self.bodies = Gauge(
            "captioner_body_bytes",
            "Bytes of requests in memory, on their way in and until they are answered",
            registry=self._registry,
        )

    def exposition(self) -> bytes:
        """Everything counted, as text."""
        return generate_latest(self._registry)
