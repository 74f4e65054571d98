"""The corpus that a recipe asks for: read, or drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, islice, zip_longest
from pathlib import Path

from captioner.errors import DataError
from captioner.vocabulary import Vocabulary, has_no_spaces
from captioner_training.data.corpus import Corpus
from captioner_training.data.images import CaptionedImage
from captioner_training.data.reading import read_coco, read_dataset
from captioner_training.data.scenes import write_scenes
from captioner_training.recipe import ANY_STYLE, DataConfig, Recipe, Source, resolve

__all__ = ["read_corpus"]

_DRY_VALIDATION = 50  # images that a dry run looks at after each stage
_WITHOUT_WORDS = ", in a recipe whose words are those of your captions alone: flickr8k, say"
_LOOKED_AT = 1000  # images whose captions tell in which script they are written


def read_corpus(recipe: Recipe, *, out: Path, known: Vocabulary | None = None) -> Corpus:
    """Read the data sets of a recipe, or draw its scenes into `out`.

    Args:
        recipe: of the run; a dry run gets as many images as its steps take.
        out: the folder of the run.
        known: the vocabulary of the checkpoint that the run goes on from. Its words keep their
            numbers.

    Raises:
        ConfigError: the style of generation is not among those of the data.
        DataError: a data set cannot be read, or there is no word that could be learned.

    """
    data = recipe.data
    if data.scenes is None:
        train_sets = _read(data, data.train, "train")
        validation_sets = _read(data, data.validation, "val")
    else:
        folder = out / "scenes"
        splits = {"train": data.scenes.train, "val": data.scenes.validation}
        write_scenes(folder, splits=splits, seed=recipe.seed)
        train_sets = [read_dataset(folder, split="train")]
        validation_sets = [read_dataset(folder, split="val")]
    train, validation = list(chain(*train_sets)), list(chain(*validation_sets))
    found = Vocabulary.build(
        (words for image in train for words in image.words), minimum_count=data.minimum_count
    ).ordinary_words
    if data.tokenizer == "words" and has_no_spaces(_some_captions(train)):
        raise DataError(
            "most of the training captions are in a script without spaces between words, so that "
            "a whole sentence would count as one word: set --data.tokenizer characters"
            + (_WITHOUT_WORDS if known else "")
        )
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
    vocabulary = Vocabulary(
        list(dict.fromkeys((*words, *found))), tokenizer=data.tokenizer, styles=styles
    )
    vocabulary.start(recipe.generation.style)
    if recipe.max_steps is not None:
        most = recipe.max_steps * max(stage.batch_size for stage in recipe.stages)
        train, validation = _some(train_sets, most), _some(validation_sets, _DRY_VALIDATION)
    if data.any_style > 0:  # what nobody names a style for is what the checkpoint is judged by
        validation = [replace(image, style="") for image in validation]
    return Corpus(
        train=_styled(train, vocabulary, usual=recipe.generation.style),
        validation=_styled(validation, vocabulary, usual=recipe.generation.style),
        vocabulary=vocabulary,
    )


def _some_captions(images: Sequence[CaptionedImage]) -> list[str]:
    return [caption for image in images[:_LOOKED_AT] for caption in image.captions]


def _styled(
    images: Sequence[CaptionedImage], vocabulary: Vocabulary, *, usual: str
) -> list[CaptionedImage]:
    """Give images whose style the model does not have the one that its checkpoint will speak in."""
    return [
        image if image.style in vocabulary.styles else replace(image, style=usual)
        for image in images
    ]


def _some(sets: Sequence[Sequence[CaptionedImage]], most: int) -> list[CaptionedImage]:
    """Take so many images, of every set in turn."""
    turns = chain.from_iterable(zip_longest(*sets))
    return list(islice((image for image in turns if image is not None), most))


def _read(
    data: DataConfig, entries: Sequence[str | Source], split: str
) -> list[list[CaptionedImage]]:
    sets: list[list[CaptionedImage]] = []
    for entry in entries:
        if isinstance(entry, str):
            folder = resolve(data.root, entry)
            style = folder.absolute().name  # as recipe.py compares them
            found = read_dataset(folder, split=split, tokenizer=data.tokenizer)
        else:
            captions, files = resolve(data.root, entry.captions), resolve(data.root, entry.images)
            style = entry.style
            found = read_coco(captions, files, tokenizer=data.tokenizer)
        sets.append([replace(image, style=style if data.styles else "") for image in found])
    return sets
