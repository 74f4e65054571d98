"""Captioned images: of a prepared data set, of files in COCO's captions format, of a recipe."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, islice, zip_longest
from pathlib import Path

from captioner.errors import DataError
from captioner.paths import there_is_no
from captioner.vocabulary import Vocabulary, has_no_spaces, tokenize
from captioner_training.data.coco import CocoImage, read_captions
from captioner_training.data.corpus import Corpus
from captioner_training.data.images import CaptionedImage, ImageStore, Member
from captioner_training.data.manifest import (
    MANIFEST,
    IndexRow,
    Manifest,
    is_prepared,
    is_unfinished,
)
from captioner_training.data.scenes import write_scenes
from captioner_training.recipe import ANY_STYLE, DataConfig, Recipe, Source, resolve

__all__ = ["read_coco", "read_corpus", "read_dataset", "read_test"]

Words = Callable[[str], list[str]]

_DRY_VALIDATION = 50  # images that a dry run looks at after each stage
_WITHOUT_WORDS = ", in a recipe whose words are those of your captions alone: flickr8k, say"
_SAMPLE = 1000  # images whose captions tell in which script they are written


def read_dataset(folder: Path, *, split: str, words: Words = tokenize) -> list[CaptionedImage]:
    """Read a split of a data set that is one folder.

    The folder is a data set that `captioner prepare` made; or it holds captions_SPLIT.json in
    COCO's captions format, beside the images in SPLIT*.tar or in a folder SPLIT. `words` splits the
    captions into words.

    Raises DataError: it is neither, it has no such split, or files are missing or damaged.
    """
    if is_unfinished(folder):
        raise DataError(f"{folder} is not finished: run the same `captioner prepare` again")
    if not is_prepared(folder):
        plain = folder / f"captions_{split}.json"
        if not plain.exists():
            raise DataError(_unprepared(folder, split))
        return read_coco(plain, folder / f"{split}*", words=words)
    manifest = Manifest.load(folder)
    rows = list(manifest.rows(folder, split))
    shards = [folder / shard.file for shard in manifest.splits[split].shards]
    store = ImageStore.from_members(
        ((row.file_name, Member(shards[row.shard], row.offset, row.size)) for row in rows),
        pattern=folder,
        identity=manifest.identity,
    )
    return _captioned(rows, store, words)


def _captioned(
    rows: Sequence[IndexRow | CocoImage], store: ImageStore, words: Words
) -> list[CaptionedImage]:
    return [
        CaptionedImage(
            name=row.file_name,
            id=row.id,
            store=store,
            captions=row.captions,
            # Interned: COCO's six million words are thirty thousand different ones.
            words=tuple(tuple(map(sys.intern, words(text))) for text in row.captions),
        )
        for row in rows
    ]


def read_coco(
    captions: Path, images: Path | str, *, words: Words = tokenize
) -> list[CaptionedImage]:
    """Read a data set in COCO's captions format.

    Args:
        captions: the json file with `images` and `annotations`.
        images: a folder or tar file (or a glob of them) that holds every `file_name`.
        words: splits captions into words.

    Raises DataError: a file is missing or of another format, or an image or caption is unusable.
    """
    found = read_captions(captions)
    store = ImageStore(images)
    counts = Counter(image.id for image in found)
    checks: dict[str, Callable[[CocoImage], bool]] = {
        "images without a caption": lambda one: not one.captions,
        "images with an empty caption": lambda one: not all(map(_has_word, one.captions)),
        "images whose id comes twice": lambda one: counts[one.id] > 1,
        f"images that lie outside of {images}": lambda one: store.leads_outside(one.file_name),
        f"images that are not in {images}": lambda one: one.file_name not in store,
    }
    for problem, is_wrong in checks.items():
        if names := [image.file_name for image in found if is_wrong(image)]:
            raise DataError(
                f"{captions} has {problem}: {len(names)}, {names[0]} the first; `captioner prepare "
                "coco-json` with --skip-bad leaves out what cannot be used"
            )
    return _captioned(found, store, words)


def _has_word(text: str) -> bool:
    return any(map(str.isalnum, text))


def _unprepared(folder: Path, split: str) -> str:
    """Return the error message for a folder without this split."""
    if not folder.exists():
        return there_is_no("folder", folder)
    if list(folder.glob("*.index.jsonl")):
        return f"{folder} has no {MANIFEST}: copy it again, or prepare it again"
    if inside := sorted(path.parent for path in folder.glob(f"*/{MANIFEST}")):
        return f"{folder} is not a prepared data set, but has one in it: name {inside[0]}"
    if files := sorted(folder.glob("captions_*.json")):
        splits = ", ".join(path.stem.removeprefix("captions_") for path in files)
        return f"{folder} has no split {split!r}; it has {splits}"
    return (
        f"{folder} is not a prepared data set; prepare it first:\n"
        f"  captioner prepare folder {shlex.quote(str(folder))} --to DIR\n"
        "and name DIR in place of it (`captioner prepare --help` lists other kinds of data)"
    )


def read_corpus(recipe: Recipe, *, out: Path, known: Vocabulary | None = None) -> Corpus:
    """Read the data sets of a recipe, or draw its scenes into `out`.

    Args:
        recipe: of the run; a dry run gets as many images as its steps take.
        out: the folder of the run.
        known: the vocabulary of the checkpoint that the run goes on from. Its words keep their
            numbers.

    Raises:
        ConfigError: the style of generation is not among those of the data.
        DataError: a data set cannot be read, has one photo to train on, or has no word that could
            be learned.
    """
    data = recipe.data
    if data.scenes is None:
        train_sets = _read(data, data.train, "train")
        validation_sets = _read(data, data.validation, "val")
    else:
        folder = out / "scenes"
        splits = {"train": data.scenes.train, "val": data.scenes.validation}
        write_scenes(folder, splits=splits, seed=recipe.seed)
        train_sets, validation_sets = ([read_dataset(folder, split=one)] for one in splits)
    train, validation = list(chain(*train_sets)), list(chain(*validation_sets))
    if len(train) == 1:
        raise DataError(
            f"there is one photo to train on, {train[0].name}: a hundred are a beginning"
        )
    most = None
    if recipe.max_steps is not None:
        most = recipe.max_steps * max(stage.batch_size for stage in recipe.stages)
    vocabulary = _vocabulary(data, train, known=known)
    vocabulary.start(recipe.generation.style)
    if most is not None:
        train, validation = _some(train_sets, most), _some(validation_sets, _DRY_VALIDATION)
    if data.any_style > 0:  # what nobody names a style for is what the checkpoint is judged by
        validation = [replace(image, style="") for image in validation]
    return Corpus(
        train=_styled(train, vocabulary, usual=recipe.generation.style),
        validation=_styled(validation, vocabulary, usual=recipe.generation.style),
        vocabulary=vocabulary,
    )


def _vocabulary(
    data: DataConfig,
    train: Sequence[CaptionedImage],
    *,
    known: Vocabulary | None,
) -> Vocabulary:
    """Choose words and styles, those that are `known` first; see read_corpus for what it raises."""
    some = (caption for image in train[:_SAMPLE] for caption in image.captions)
    if data.tokenizer == "words" and has_no_spaces(some):
        raise DataError(
            "most of the training captions are in a script without spaces between words, so that "
            "a whole sentence would count as one word: set --data.tokenizer characters"
            + (_WITHOUT_WORDS if known else "")
        )
    captions = [words for image in train for words in image.words]
    found = Vocabulary.build(captions, minimum_count=data.minimum_count).ordinary_words
    if not found and not known:
        longest = max((len(image.captions) for image in train), default=0)
        raise DataError(
            f"no word occurs {data.minimum_count} times in the training captions "
            f"({len(train)} images with up to {longest} captions): lower --data.minimum_count, or "
            "add images"
        )
    words, styles = (known.ordinary_words, known.styles) if known else ((), ())
    # Captions of nobody's style are no more of the first style of the model that is gone on from.
    learned = (image.style for image in train)
    usual = (ANY_STYLE,) if data.any_style > 0 else ()
    styles = tuple(dict.fromkeys((*usual, *styles, *learned))) if data.styles else ()
    return Vocabulary(
        list(dict.fromkeys((*words, *found))),
        tokenizer=data.tokenizer,
        lowercase=data.lowercase,
        styles=styles,
    )


def read_test(recipe: Recipe, vocabulary: Vocabulary) -> list[CaptionedImage]:
    """Read the split `test` of those data sets of the validation that have one.

    Raises DataError: it cannot be read.
    """
    data = recipe.data
    folders = [(one, resolve(data.root, one)) for one in data.validation if isinstance(one, str)]
    entries: list[str | Source] = [
        one
        for one, folder in folders
        if (is_prepared(folder) and "test" in Manifest.load(folder).splits)
        or (folder / "captions_test.json").is_file()
    ]
    images = list(chain(*_read(data, entries, "test")))
    return _styled(images, vocabulary, usual=recipe.generation.style)


def _styled(
    images: Sequence[CaptionedImage], vocabulary: Vocabulary, *, usual: str
) -> list[CaptionedImage]:
    """Give images of a style that the model does not have the one that its checkpoint speaks in."""
    return [
        image if image.style in vocabulary.styles else replace(image, style=usual)
        for image in images
    ]


def _some(sets: Sequence[Sequence[CaptionedImage]], most: int) -> list[CaptionedImage]:
    """Take so many images, of every set in turn."""
    return list(islice(filter(None, chain.from_iterable(zip_longest(*sets))), most))


def _read(
    data: DataConfig, entries: Sequence[str | Source], split: str
) -> list[list[CaptionedImage]]:
    sets: list[list[CaptionedImage]] = []
    for entry in entries:
        if isinstance(entry, str):
            folder = resolve(data.root, entry)
            found = read_dataset(folder, split=split, words=data.tokenize)
        else:
            captions, files = resolve(data.root, entry.captions), resolve(data.root, entry.images)
            found = read_coco(captions, files, words=data.tokenize)
        style = data.style_of(entry) if data.styles else ""
        sets.append([replace(image, style=style) for image in found])
    return sets
