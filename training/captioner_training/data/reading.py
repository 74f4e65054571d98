"""Read captioned images from a prepared data set, from COCO's format, or for a whole recipe."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from captioner.errors import DataError
from captioner.shared.paths import there_is_no
from captioner.shared.tables import read_json
from captioner.vocabulary import Vocabulary, has_no_spaces, tokenize
from captioner_training.data.captions import Corpus
from captioner_training.data.images import CaptionedImage, ImageStore, Member
from captioner_training.data.manifest import IndexRow, Manifest, is_prepared, is_unfinished
from captioner_training.data.scenes import write_scenes
from captioner_training.recipe import ANY_STYLE, DataConfig, Recipe, resolve

Words = Callable[[str], list[str]]

_DRY_VALIDATION = 50  # validation images of a dry run
_SAMPLE = 1000  # images whose captions decide whether words have spaces between them


def read_dataset(folder: Path, *, split: str, words: Words = tokenize) -> list[CaptionedImage]:
    """Read a split of a folder that `captioner prepare` wrote, or of one in COCO's format.

    COCO's format is captions_SPLIT.json, and the images in SPLIT*.tar or in a folder SPLIT. `words`
    splits captions into words. Raises DataError.
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
    return captioned_images(rows, store, words)


def captioned_images(
    rows: Sequence[IndexRow | CocoImage], store: ImageStore, words: Words
) -> list[CaptionedImage]:
    """Split the captions of images into words; the images are in a store."""
    return [
        CaptionedImage(
            name=row.file_name,
            id=row.id,
            store=store,
            captions=row.captions,
            # Interned to save memory, because most words occur many times.
            words=tuple(tuple(map(sys.intern, words(text))) for text in row.captions),
        )
        for row in rows
    ]


def read_coco(
    captions: Path, images: Path | str, *, words: Words = tokenize
) -> list[CaptionedImage]:
    """Read a data set in COCO's captions format; `images` is a pattern of ImageStore."""
    listed = read_captions(captions)
    store = ImageStore(images)
    counts = Counter(image.id for image in listed)
    checks: dict[str, Callable[[CocoImage], bool]] = {
        "without a caption": lambda image: not image.captions,
        "with an empty caption": lambda image: not all(map(_has_word, image.captions)),
        "with the id of another image": lambda image: counts[image.id] > 1,
        f"outside {images}": lambda image: store.leads_outside(image.file_name),
        f"not found in {images}": lambda image: image.file_name not in store,
    }
    for problem, is_wrong in checks.items():
        if names := [image.file_name for image in listed if is_wrong(image)]:
            raise DataError(
                f"{captions}: images {problem}: {len(names)} (first: {names[0]}); `captioner "
                "prepare coco-json --skip-bad` leaves them out"
            )
    return captioned_images(listed, store, words)


class CocoImage(NamedTuple):
    """An entry of `images` with the captions of its annotations."""

    id: int | str
    file_name: str
    captions: tuple[str, ...]
    split: str = ""
    licence: str | None = None


def read_captions(path: Path) -> list[CocoImage]:
    """Read the images of a file in COCO's captions format, in order. Raises DataError."""
    images = parse_captions(read_json(path, name=str(path)), name=str(path))
    if not images:
        raise DataError(f"{path} has no images")
    return images


def parse_captions(
    content: Any, *, name: str, report: Callable[[str, str], None] | None = None
) -> list[CocoImage]:
    """Parse COCO's captions format. An id may be a number in one list and a string in the other.

    `report` receives the kind and an example of each annotation that cannot be used. If it is None,
    captions of unknown images are ignored, and captions that are not text are errors.

    Raises DataError: the content has another format.
    """
    try:
        return _parse(content, name, report)
    except KeyError as error:
        raise DataError(f"{name} is not in COCO's captions format: there is no {error}") from error
    except (TypeError, AttributeError) as error:
        raise DataError(f"{name} is not in COCO's captions format: {error}") from error


def _parse(content: Any, name: str, report: Callable[[str, str], None] | None) -> list[CocoImage]:
    if not isinstance(content, dict):
        raise TypeError(
            "it has no object with images and annotations; `captioner prepare jsonl` reads lists"
        )
    for part in ("images", "annotations"):
        entries = content[part]
        if not isinstance(entries, list) or any(not isinstance(entry, dict) for entry in entries):
            raise TypeError(f"{part} is not a list of objects")
    captions: dict[str, list[str]] = {}
    for image in content["images"]:
        if not isinstance(image["id"], int | str):
            raise TypeError(f"the id {image['id']!r} is neither a number nor text")
        captions[str(image["id"])] = []
    for annotation in content["annotations"]:
        key, caption = annotation["image_id"], annotation["caption"]
        if str(key) not in captions:
            if report is not None:
                report("caption of an unknown image", f"image {key} in {name}")
        elif isinstance(caption, str):
            captions[str(key)].append(caption)
        elif report is not None:
            report("caption that is not text", f"{caption!r:.40} for image {key} in {name}")
        else:
            raise TypeError(f"image {key} has the caption {caption!r:.40}, which is not text")
    licences = {entry["id"]: entry.get("name") for entry in content.get("licenses") or []}
    return [
        CocoImage(
            id=image["id"],
            file_name=str(image["file_name"]),
            captions=(*captions[str(image["id"])],),
            split=image.get("split") or "",
            licence=licences.get(image.get("license")),
        )
        for image in content["images"]
    ]


def _has_word(text: str) -> bool:
    return any(map(str.isalnum, text))


def _unprepared(folder: Path, split: str) -> str:
    """Return the error message for a folder without this split."""
    if not folder.exists():
        return there_is_no("folder", folder)
    if files := sorted(folder.glob("captions_*.json")):
        splits = ", ".join(path.stem.removeprefix("captions_") for path in files)
        return f"{folder} has no split {split!r}; it has {splits}"
    return (
        f"{folder} is not a prepared data set; prepare it first, and use DIR in its place:\n"
        f"  captioner prepare folder {shlex.quote(str(folder))} --to DIR\n"
        "(`captioner prepare --help` lists other kinds of data)"
    )


def read_corpus(
    recipe: Recipe,
    *,
    out: Path,
    origin: Vocabulary | None = None,
    drawn: bool = False,
    quiet: bool = False,
) -> Corpus:
    """Read the data sets of a recipe, or draw its scenes into `out`.

    A dry run uses only as many images as its steps take. The words of `origin`, the vocabulary of
    the checkpoint that the run starts from, keep their numbers. `drawn`: the scenes exist.
    """
    data = recipe.data
    if data.scenes is None:
        train, validation = _read(data, data.train, "train"), _read(data, data.validation, "val")
    else:
        folder = out / "scenes"
        splits = {"train": data.scenes.train, "val": data.scenes.validation}
        if not drawn:
            write_scenes(folder, splits=splits, seed=recipe.seed, quiet=quiet)
        train, validation = (read_dataset(folder, split=name) for name in splits)
    if len(train) == 1:
        raise DataError(f"{train[0].name} is the only training photo: use at least about 100")
    vocabulary = _vocabulary(data, train, origin=origin)
    vocabulary.start(recipe.generation.style)  # raises ConfigError
    if recipe.max_steps is not None:
        most = recipe.max_steps * max(stage.batch_size for stage in recipe.stages)
        train, validation = _spread(train, most), _spread(validation, _DRY_VALIDATION)
    if data.any_style > 0:  # validate in the default style
        validation = [replace(image, style="") for image in validation]
    return Corpus(
        train=_with_style(train, vocabulary, recipe.generation.style),
        validation=_with_style(validation, vocabulary, recipe.generation.style),
        vocabulary=vocabulary,
    )


def _vocabulary(
    data: DataConfig, train: Sequence[CaptionedImage], *, origin: Vocabulary | None
) -> Vocabulary:
    """Return the words and styles of `origin`, followed by new ones of the data."""
    sample = (caption for image in train[:_SAMPLE] for caption in image.captions)
    if data.tokenizer == "words" and has_no_spaces(sample):
        remedy = "set --data.tokenizer characters"
        if origin:
            remedy = "use `captioner train new-language --data.tokenizer characters`"
        raise DataError(f"most training captions have no spaces between words: {remedy}")
    captions = [words for image in train for words in image.words]
    words = Vocabulary.build(captions, minimum_count=data.minimum_count).ordinary_words
    if not words and not origin:
        raise DataError(
            f"no word occurs {data.minimum_count} times in the captions of {len(train)} training "
            "images: lower --data.minimum_count, or add images"
        )
    styles: tuple[str, ...] = ()
    if data.styles:
        default = (ANY_STYLE,) if data.any_style > 0 else ()
        earlier = origin.styles if origin else ()
        styles = tuple(dict.fromkeys((*default, *earlier, *(image.style for image in train))))
    return Vocabulary(
        list(dict.fromkeys((*(origin.ordinary_words if origin else ()), *words))),
        tokenizer=data.tokenizer,
        lowercase=data.lowercase,
        styles=styles,
    )


def read_test(recipe: Recipe, vocabulary: Vocabulary) -> list[CaptionedImage]:
    """Read the split `test` of the validation sets that have one."""
    data = recipe.data

    def has_test(folder: Path) -> bool:
        if is_prepared(folder):
            return "test" in Manifest.load(folder).splits
        return (folder / "captions_test.json").is_file()

    folders = [name for name in data.validation if has_test(resolve(data.root, name))]
    return _with_style(_read(data, folders, "test"), vocabulary, recipe.generation.style)


def _with_style(
    images: Sequence[CaptionedImage], vocabulary: Vocabulary, default: str
) -> list[CaptionedImage]:
    """Give the default style to images whose style is not in the vocabulary."""
    return [
        image if image.style in vocabulary.styles else replace(image, style=default)
        for image in images
    ]


def _spread(images: list[CaptionedImage], most: int) -> list[CaptionedImage]:
    """Return `most` images or fewer, of all data sets."""
    count = min(most, len(images))
    return [images[place * len(images) // count] for place in range(count)]


def _read(data: DataConfig, folders: Sequence[str], split: str) -> list[CaptionedImage]:
    return [
        replace(image, style=data.style_of(name) if data.styles else "")
        for name in folders
        for image in read_dataset(resolve(data.root, name), split=split, words=data.tokenize)
    ]
