"""The record of a caption as HTTP gives it: with what a page need not work out for itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from captioner.caption import Alternative, Caption

__all__ = ["served_record"]


def served_record(
    caption: Caption,
    *,
    name: str | None,
    attention: bool,
    preview: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Give a caption's record, with what is doubtful marked in it.

    Words that are drawn as guessed have `guessed`, sentences with such words a `note` that explains
    it, and a caption of a photo that is unlike those of the training has `unfamiliar`.

    Args:
        caption: what to tell.
        name: of the photo, as its owner calls it.
        attention: whether the words carry their weights.
        preview: of a photo that browsers do not show.

    """
    record = {**caption.record(attention=attention), "image": name}
    sentences = [Alternative(text=caption.text, score=caption.score, words=caption.words)]
    sentences += caption.alternatives
    for sentence, part in zip(sentences, (record, *record["alternatives"]), strict=True):
        for word, said in zip(sentence.words, part["words"], strict=True):
            if word.guessed:
                said["guessed"] = True
        if note := replace(caption, words=sentence.words).note:
            part["note"] = note
    if caption.unfamiliar:
        record["unfamiliar"] = True
    if preview is not None:
        record["preview"] = preview
    return record
