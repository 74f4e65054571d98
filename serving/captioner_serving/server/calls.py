"""What a call of the page may hold: a few plain values, and files by the places we gave them.

Gradio takes any JSON for an argument and keeps it, so a megabyte of nested lists becomes thirty in
memory, for as long as it is remembered.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from captioner_serving.server.problems import bad_call

__all__ = ["MAX_CALL", "Call", "read_call"]

MAX_CALL = 16_000
"""Bytes of a call: it holds numbers and paths."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _FileMeta(_Strict):
    type: Annotated[str, Field(alias="_type", max_length=40)] = ""


class CallFile(_Strict):
    """A file as Gradio's clients name it. Only `path` counts, and only if it is one of ours."""

    path: Annotated[str, Field(max_length=2000)]
    url: Annotated[str, Field(max_length=4000)] | None = None
    orig_name: Annotated[str, Field(max_length=2000)] | None = None
    mime_type: Annotated[str, Field(max_length=200)] | None = None
    size: int | None = None
    is_stream: bool = False
    meta: _FileMeta = _FileMeta()


_Plain = None | bool | int | float | str


class Call(_Strict):
    """The body of a call, as the page and gradio_client send it."""

    data: Annotated[list[_Plain | CallFile], Field(max_length=16)] = []
    session_hash: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    fn_index: int | None = None
    trigger_id: int | None = None
    event_id: Annotated[str, Field(max_length=64)] | None = None
    event_data: Annotated[dict[str, _Plain], Field(max_length=8)] | None = None
    simple_format: bool = False
    batched: bool | None = False

    def files(self) -> Iterator[CallFile]:
        """The files that it names."""
        return (value for value in self.data if isinstance(value, CallFile))


def read_call(body: bytes) -> Call:
    """Read and check a body.

    Raises:
        RequestError: it is not JSON, or holds what no function of the page takes.

    """
    try:
        return Call.model_validate_json(body)
    except ValidationError as error:
        raise bad_call(error.errors()) from None
