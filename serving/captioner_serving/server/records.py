"""Records over HTTP, with marks for doubt, and the other answers as OpenAPI describes them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from captioner.caption import Caption
from captioner.record import CaptionRecord, SentenceRecord


class ServedSentence(SentenceRecord):
    """A sentence; `doubt` is a warning that it may be wrong."""

    doubt: str | None = None


class Preview(BaseModel):
    """A small JPEG, as a data URL, of a photo that browsers cannot show."""

    width: int
    height: int
    image: str


class ServedRecord(CaptionRecord):
    """The record of a captioned photo."""

    alternatives: list[ServedSentence] = Field(default_factory=list)  # type: ignore[assignment]
    doubt: str | None = None
    unfamiliar: bool | None = None
    review: bool | None = None
    preview: Preview | None = None


class PhotoError(BaseModel):
    """The error of a photo: `type` for programs, `title` and `detail` for people."""

    type: str
    title: str
    detail: str


class FailedRecord(BaseModel):
    """A photo that was not captioned."""

    image: str | None
    error: PhotoError


class Problem(BaseModel):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    request: str
    records: list[FailedRecord] | None = None


class Records(BaseModel):
    """A record for each image, in order; see docs/records.md."""

    records: list[ServedRecord | FailedRecord]


class Health(BaseModel):
    """The server is ready: its models work, even if the queue is full."""

    status: Literal["ready"]
    version: str
    model: dict[str, str]


def served_record(
    caption: Caption,
    *,
    name: str | None,
    attention: bool,
    minimum_trust: float | None = None,
    preview: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the record of a caption; `name` is the client's name for the photo.

    Sentences that may be wrong have `doubt`, captions of photos unlike the training data have
    `unfamiliar`, and captions with less than `minimum_trust` have `review`.
    """
    record = caption.record(attention=attention, minimum_trust=minimum_trust) | {"image": name}
    for number, sentence_record in enumerate((record, *record["alternatives"])):
        if doubt := caption.choose(number).doubt:
            sentence_record["doubt"] = doubt
    if caption.is_unfamiliar:
        record["unfamiliar"] = True
    if preview is not None:
        record["preview"] = preview
    return record


def needs_preview(data: bytes) -> bool:
    """Return whether browsers cannot show a photo, or show more than the captioned frame."""
    if data[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+") or data[:4] == b"GIF8":
        return True
    if data[4:8] == b"ftyp":
        return data[8:12] != b"avif"  # browsers show AVIF, but not HEIC and AVIF sequences
    if data[:4] == b"RIFF" and data[8:16] == b"WEBPVP8X":
        return bool(data[20] & 0x02) if len(data) > 20 else False
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        pixels = data.find(b"IDAT")
        return b"acTL" in data[: max(pixels, 0)]
    return False
