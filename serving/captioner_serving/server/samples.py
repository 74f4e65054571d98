"""GET page/samples/NAME: the photos to try, as they lie in assets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse

from captioner_serving.server.problems import RouteError

__all__ = ["make_sample_router"]


def make_sample_router(samples: Mapping[str, Path]) -> APIRouter:
    """The route of the samples, by their names."""
    router = APIRouter(prefix="/page/samples", include_in_schema=False)

    @router.get("/{name}")
    def sample(name: str) -> FileResponse:
        if name not in samples:
            raise RouteError("there is no such sample: the page lists them")
        return FileResponse(samples[name])

    return router
