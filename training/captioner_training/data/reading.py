"""Captioned images from a prepared data set, or from files in COCO's captions format."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from captioner.errors import DataError
from captioner.vocabulary import Tokenizer, tokenize
from captioner_training.data.images import CaptionedImage, ImageStore, Member
from captioner_training.data.unprepared import check_readable
from captioner_training.prepare.coco_json import coco_images
from captioner_training.prepare.images import ListedImage
from captioner_training.prepare.manifest import IndexRow, Manifest, is_prepared
from captioner_training.prepare.problems import Problems
from captioner_training.prepare.texts import has_word, read_json

__all__ = ["read_coco", "read_dataset"]


def read_dataset(
    folder: Path, *, split: str, tokenizer: Tokenizer = "words"
) -> list[CaptionedImage]:
    """Read a split of a data set that is one folder.

    The folder is a data set that `captioner prepare` made; or it holds captions_SPLIT.json in
    COCO's captions format, beside the images in SPLIT*.tar or in a folder SPLIT. `tokenizer` splits
    the captions into words.

    Raises:
        DataError: it is neither, it has no such split, or files are missing or damaged.

    """
    check_readable(folder, split)
    if not is_prepared(folder):
        plain = folder / f"captions_{split}.json"
        return read_coco(plain, folder / f"{split}*", tokenizer=tokenizer)
    manifest = Manifest.load(folder)
    rows = list(manifest.rows(folder, split))
    shards = [folder / shard.file for shard in manifest.splits[split].shards]
    store = ImageStore.from_members(
        ((row.file_name, Member(shards[row.shard], row.offset, row.size)) for row in rows),
        pattern=folder,
        identity=manifest.identity,
    )
    return _captioned(rows, store, tokenizer)


def _captioned(
    rows: Sequence[IndexRow | ListedImage], store: ImageStore, tokenizer: Tokenizer
) -> list[CaptionedImage]:
    return [
        CaptionedImage(
            name=row.file_name,
            id=row.id,
            store=store,
            captions=row.captions,
            words=_words(row.captions, tokenizer),
        )
        for row in rows
    ]


def _words(captions: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[str, ...], ...]:
    # Interned: COCO's six million words are thirty thousand different ones.
    return tuple(tuple(map(sys.intern, tokenize(text, tokenizer))) for text in captions)


def read_coco(
    captions: Path, images: Path | str, *, tokenizer: Tokenizer = "words"
) -> list[CaptionedImage]:
    """Read a data set in COCO's captions format.

    Args:
        captions: the json file with `images` and `annotations`.
        images: a folder or tar file (or a glob of them) that holds every `file_name`.
        tokenizer: how captions are split into words.

    Raises:
        DataError: a file is missing or not of that format; images that come twice, or without
            captions or files; captions without a word.

    """
    problems = Problems()
    found = coco_images(read_json(captions, problems), problems, name=str(captions))
    if not found:
        raise DataError(f"{captions} has no images: it is not in COCO's captions format")
    problems.refuse("caption that is no text", str(captions))
    store = ImageStore(images)
    bare = [image.file_name for image in found if not image.captions]
    _refuse(captions, "images without a caption", bare)
    blank = [image.file_name for image in found if not all(map(has_word, image.captions))]
    _refuse(captions, "images with an empty caption", blank)
    counts = Counter(image.id for image in found)
    twice = [image.file_name for image in found if counts[image.id] > 1]
    _refuse(captions, "images whose id comes twice", twice)
    absent = [image.file_name for image in found if image.file_name not in store]
    _refuse(captions, f"images that are not in {images}", absent)
    return _captioned(found, store, tokenizer)


def _refuse(captions: Path, problem: str, names: Sequence[str]) -> None:
    if names:
        raise DataError(
            f"{captions} has {problem}: {len(names)}, {names[0]} the first; `captioner prepare "
            "coco-json` with --skip-bad leaves out what cannot be used"
        )
