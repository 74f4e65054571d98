"""The record of a caption as HTTP gives it, and takes it back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, Field

from captioner.caption import Caption
from captioner.errors import ConfigError
from captioner.record import CaptionRecord, SentenceRecord, WordRecord
from captioner_serving.server.problems import RefusedError

__all__ = [
    "FailedRecord",
    "ServedRecord",
    "needs_preview",
    "read_posted",
    "served_record",
]


class ServedWord(WordRecord):
    """A word; `doubtful` where it is rather wrong than right."""

    doubtful: bool | None = None


class ServedSentence(SentenceRecord):
    """A sentence; `doubt` says in a line that it may be wrong."""

    words: list[ServedWord] | None = None  # type: ignore[assignment]
    doubt: str | None = None


class Preview(BaseModel):
    """A small JPEG, as a data URL, of a photo that browsers do not show."""

    width: int
    height: int
    image: str


class ServedRecord(CaptionRecord):
    """What is known of one photo: its caption, or the error in place of it."""

    words: list[ServedWord]  # type: ignore[assignment]
    alternatives: list[ServedSentence] = Field(default_factory=list)  # type: ignore[assignment]
    doubt: str | None = None
    unfamiliar: bool | None = None
    review: bool | None = None
    preview: Preview | None = None


class PhotoError(BaseModel):
    """What went wrong with one photo: `type` for programs, the others for people."""

    type: str
    title: str
    detail: str


class FailedRecord(BaseModel):
    """A photo that was not captioned."""

    image: str | None
    error: PhotoError


# Of a posted record: a panel or a frame for each word, and the letters of a word and of all.
_MOST_WORDS, _LONGEST_WORD, _LONGEST_TEXT = 64, 40, 3000


def served_record(
    caption: Caption,
    *,
    name: str | None,
    attention: bool,
    minimum_trust: float | None = None,
    preview: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Give a caption's record, with what is doubtful marked in it.

    Doubtful words have `doubtful`, sentences that may well be wrong a `doubt` that says so, and a
    caption of a photo that is unlike those of the training has `unfamiliar`.

    Args:
        caption: what to tell.
        name: of the photo, as its owner calls it.
        attention: whether the words carry their weights.
        minimum_trust: a caption with less has `review`.
        preview: of a photo that browsers do not show.
    """
    own = caption.record(attention=attention, minimum_trust=minimum_trust)
    record = {**own, "image": name}
    for number, part in enumerate((record, *record["alternatives"])):
        sentence = caption.choose(number)
        for word, said in zip(sentence.words, part["words"], strict=True):
            if word.doubtful:
                said["doubtful"] = True
        if sentence.doubt:
            part["doubt"] = sentence.doubt
    if caption.unfamiliar:
        record["unfamiliar"] = True
    if preview is not None:
        record["preview"] = preview
    return record


def needs_preview(data: bytes) -> bool:
    """Whether browsers would show nothing of a photo, or more than the frame that is captioned."""
    if data[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+") or data[:4] == b"GIF8":
        return True
    if data[4:8] == b"ftyp":
        return data[8:12] != b"avif"  # of these containers browsers show AVIF, if it is no film
    if data[:4] == b"RIFF" and data[8:16] == b"WEBPVP8X":
        return bool(data[20] & 0x02) if len(data) > 20 else False
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        pixels = data.find(b"IDAT")
        return b"acTL" in data[: max(pixels, 0)]
    return False


def read_posted(text: str) -> Caption:
    """Make a caption of a posted record; its photo is not opened.

    Raises:
        RefusedError: it is not the JSON of a record.
        ConfigError: a number of it is out of range.
    """
    if not text:
        raise RefusedError(
            "bad-request", "there is no record: send one, as curl -F 'record=<file.json' does"
        )
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RefusedError(
            "bad-request", "the record is not JSON: send one of the `records` of /api/caption"
        ) from error
    if not isinstance(record, dict) or not {"caption", "words"} <= record.keys():
        raise RefusedError(
            "bad-request",
            "the record has no caption with words: send one of the `records` of /api/caption",
        )
    caption = replace(Caption.from_record(record), image=None)  # its path is the sender's
    if len(caption.words) > _MOST_WORDS:
        raise ConfigError(f"the record has more than {_MOST_WORDS} words")
    for word in caption.words:
        if len(word.text) > _LONGEST_WORD:
            raise ConfigError(
                f"a word of the record has {len(word.text)} letters; {_LONGEST_WORD} are the most"
            )
    if len(caption.text) > _LONGEST_TEXT:
        raise ConfigError(f"the record's caption has more than {_LONGEST_TEXT} letters")
    return caption
