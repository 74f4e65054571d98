"""`captioner caption PHOTO...`: captions to standard output, pictures to files."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
import webbrowser
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from captioner.drawing.overlay import COLORS, DEFAULT_COLORS
from captioner.drawing.saving import check_suffix, save_animation, save_image
from captioner.errors import (
    CaptionerError,
    ConfigError,
    ImageError,
    ImageNotFoundError,
    MissingExtraError,
    OutputError,
)
from captioner.generation.config import MAX_BEAM_SIZE
from captioner.inference.device import add_machine_arguments
from captioner.photos.open import MAX_PIXELS
from captioner.shared.files import identity, writing
from captioner.shared.paths import bundled_checkpoint, checkpoint_file, is_web_address
from captioner.shared.text import add_keywords, in_a_line, json_line, probability

if TYPE_CHECKING:
    from PIL import Image

    from captioner.caption import Caption

HELP = "Caption photos, and show where the model looked for every word."
EXAMPLES = """examples:
  captioner caption photo.jpg
  captioner caption photo.jpg --sheet sheet.png --animation words.gif --open
  captioner caption photo.jpg --overlay dog.png --word dog
  captioner caption *.jpg --json --attention > captions.jsonl
  captioner caption *.jpg --sheet 'sheets/{name}.png'

One photo: the caption is printed. Several: one line each, path, tab, caption.
Folders: captioner batch."""

_PICTURES = ("--sheet", "--overlay", "--animation")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("photos", nargs="+", metavar="PHOTO", help="image file or address; - is standard input")
    add("--json", action="store_true", help="print one JSON record per photo")
    add("--attention", action="store_true", help="add each word's attention to the records")
    add("--check-attention", action="store_true",
        help="add the effect of each word's attention to the records (slower)")  # fmt: skip
    add_keywords(parser)
    pictures = parser.add_argument_group(
        "pictures",
        "With several photos use {name} or {number} in FILE: the photo's name, or its position.",
    )
    add = pictures.add_argument
    add("--sheet", metavar="FILE", help="the attention of every word on one sheet")
    add("--overlay", metavar="FILE", help="the attention of one word, at the photo's size")
    add("--word", metavar="WORD", help="word to draw with --overlay or --show, or its "
        "position from 1; default: the word that depends most on the photo")  # fmt: skip
    add("--animation", metavar="FILE", help="the attention of the words in turn: .gif or .webp")
    add("--open", action="store_true", help="open the sheet in the default viewer")
    add("--show", action="store_true", help="draw one word's attention in the terminal")
    add("--head", type=int, metavar="N",
        help="attention head, from 1; default: the mean of all")  # fmt: skip
    add("--colors", choices=COLORS, metavar="NAME",
        help=f"{', '.join(COLORS)}; default: {DEFAULT_COLORS}")  # fmt: skip
    model = parser.add_argument_group("model")
    add = model.add_argument
    add("--beam-size", type=int, metavar="N",
        help=f"1 to {MAX_BEAM_SIZE}; default: the checkpoint's, 5 in the bundled one")  # fmt: skip
    add("--captions", type=int, default=1, metavar="N", help="the N best captions")
    add("--style", metavar="NAME",
        help="caption style, for models with several; default: the checkpoint's")  # fmt: skip
    add("--checkpoint", metavar="MODEL",
        help="file, run folder or USER/MODEL (Hub); default: bundled")  # fmt: skip
    add("--max-pixels", type=int, default=MAX_PIXELS, metavar="N",
        help=f"larger photos are refused; default: {MAX_PIXELS:,}")  # fmt: skip
    add("--minimum-trust", type=probability, metavar="P",
        help="drop captions with a trust below P (0 to 1)")  # fmt: skip
    add_machine_arguments(model)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return 1 if a photo was not captioned or a picture not written."""
    _check(arguments)
    checkpoint = checkpoint_file(arguments.checkpoint or bundled_checkpoint())
    if arguments.open and not arguments.sheet:
        folder = tempfile.mkdtemp(prefix="captioner-")  # a viewer needs it after the command
        arguments.sheet = f"{folder}/{{number}}-{{name}}.png"
    patterns = {option: file for option in _PICTURES if (file := getattr(arguments, option[2:]))}
    plan = plan_pictures(patterns, arguments.photos, inputs=[checkpoint])
    is_drawn = bool(patterns or arguments.show)
    sources = [_source(photo, is_drawn=is_drawn) for photo in arguments.photos]
    results = _captions(checkpoint, sources, arguments)
    status = 0
    for photo, source, files, result in zip(arguments.photos, sources, plan, results, strict=True):
        try:
            if isinstance(result, CaptionerError):
                if arguments.json:
                    _print_record({"image": photo, "error": result.record()})
                raise result
            _print(result, arguments)
            if result.is_unfamiliar:
                _say(f"{photo} looks unlike the training photos; check its caption")
            if result.doubt:
                _say(f"{photo}: {result.doubt}")
            if is_drawn:
                _draw(result, source, files, arguments)
        except CaptionerError as error:
            _say(str(error))
            status = 1
        if isinstance(source, SimpleNamespace):
            source.read.cache_clear()  # photos of all addresses may not fit into memory
    return status


def _say(text: str) -> None:
    print(f"captioner: {in_a_line(text)}", file=sys.stderr)


def _check(arguments: argparse.Namespace) -> None:
    for name in ("attention", "check_attention", "keywords"):
        if getattr(arguments, name) not in (None, False) and not arguments.json:
            raise ConfigError(f"--{name.replace('_', '-')} needs --json")
    if arguments.word is not None and not (arguments.overlay or arguments.show):
        raise ConfigError("--word needs --overlay or --show")
    if arguments.show and not sys.stdout.isatty():
        raise ConfigError("--show needs a terminal as standard output: use --overlay")
    is_drawn = any(getattr(arguments, option[2:]) for option in (*_PICTURES, "--open", "--show"))
    for name in ("colors", "head"):
        if getattr(arguments, name) is not None and not is_drawn:
            raise ConfigError(f"--{name} needs one of {', '.join(_PICTURES)}")


def plan_pictures(
    patterns: Mapping[str, str], photos: Sequence[str], *, inputs: Iterable[str | os.PathLike[str]]
) -> list[dict[str, str]]:
    """Return each photo's picture files by option, before any picture is drawn.

    Patterns are as typed: `{name}` is the photo's name without folder and suffix, `{number}` its
    position from 1. `inputs` are other files that the command reads.

    Raises ConfigError: unknown suffix or field, or a picture would overwrite an input or another
    picture of the command. Other existing files are overwritten.
    """
    plan = []
    taken: dict[object, str] = {
        key: f"the input {path}" for path in (*inputs, *photos) for key in identity(path)
    }
    for number, photo in enumerate(photos, 1):
        path = urlsplit(photo).path if is_web_address(photo) else photo
        name = "" if path == "-" else Path(path).stem
        files = {}
        for option, pattern in patterns.items():
            try:
                check_suffix(pattern, moving=option == "--animation")
                file = files[option] = pattern.format(name=name or "photo", number=number)
            except OutputError as error:
                raise ConfigError(f"{option}: {error}") from error
            except (ValueError, LookupError, AttributeError) as error:
                raise ConfigError(
                    f"{option} {pattern} is invalid ({error}): use the fields {{name}} and "
                    "{number}"
                ) from error
            keys = identity(file)
            for key in keys & taken.keys():
                raise ConfigError(
                    f"{option} of {photo} would overwrite {taken[key]}: name another file, or use "
                    "{number}, which is different for every photo"
                )
            taken.update(dict.fromkeys(keys, f"{option} of {photo}"))
        plan.append(files)
    return plan


def _source(photo: str, *, is_drawn: bool) -> Any:
    from captioner.images import NamedBytes, as_source

    if photo == "-":
        data = NamedBytes(sys.stdin.buffer.read())
        data.name = "-"
        return data
    if is_drawn and is_web_address(photo):
        # A file that is downloaded once, for its caption and its pictures.
        return SimpleNamespace(name=photo, read=cache(partial(as_source, photo)))
    return photo


def _captions(
    checkpoint: Path, sources: Sequence[Any], arguments: argparse.Namespace
) -> Iterator[Caption | CaptionerError]:
    """Yield the caption or the error of each photo."""
    from captioner.captioner import Captioner

    captioner = Captioner.from_pretrained(
        checkpoint,
        device=arguments.device,
        dtype=arguments.dtype,
        max_pixels=arguments.max_pixels,
    )
    config = captioner.generation.for_request(
        beam_size=arguments.beam_size, captions=arguments.captions, style=arguments.style
    )
    if arguments.head is not None and not 1 <= arguments.head <= captioner.heads:
        has = "one head" if captioner.heads == 1 else f"the heads 1 to {captioner.heads}"
        raise ConfigError(f"head {arguments.head}: the model {captioner.name} has {has}")
    captioner.check_trust(arguments.keywords, setting="keywords")
    results = captioner.caption_iter(
        sources,
        config,
        errors="return",
        check_attention=arguments.check_attention,
        minimum_trust=arguments.minimum_trust,
    )
    for photo, result in zip(arguments.photos, results, strict=True):
        if isinstance(result, ImageError) and Path(photo).is_dir():
            remedy = f"use captioner batch {shlex.quote(photo)} --output captions.jsonl"
            yield ImageNotFoundError(f"{photo} is a folder: {remedy}")
        else:
            yield result


def _print_record(record: dict[str, Any]) -> None:
    print(json_line(record, encoding=sys.stdout.encoding), flush=True)


def _print(caption: Caption, arguments: argparse.Namespace) -> None:
    if arguments.json:
        record = caption.record(attention=arguments.attention, keywords=arguments.keywords)
        _print_record(record)
        return
    # Names are escaped only on a terminal, because other programs open photos by them.
    name = in_a_line(str(caption.image)) if sys.stdout.isatty() else caption.image
    prefix = f"{name}\t" if len(arguments.photos) > 1 else ""
    for sentence in caption.sentences:
        print(f"{prefix}{in_a_line(sentence.text)}", flush=True)


def _draw(
    caption: Caption, source: Any, files: Mapping[str, str], arguments: argparse.Namespace
) -> None:
    """Draw the pictures of one photo."""
    from captioner.images import as_source
    from captioner.photos.open import open_image

    for folder in {Path(file).parent for file in files.values()}:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
    photo = open_image(as_source(source), max_pixels=arguments.max_pixels)
    style = {"colors": arguments.colors or DEFAULT_COLORS, "head": arguments.head}
    if file := files.get("--sheet"):
        save_image(caption.contact_sheet(photo=photo, **style), file)
        if arguments.open and not webbrowser.open(Path(file).resolve().as_uri()):
            raise OutputError(f"no program was found that opens {file}")
    if file := files.get("--animation"):
        save_animation(caption.animation(photo=photo, **style), file)
    file = files.get("--overlay")
    if file or arguments.show:
        index = _find_word(caption, arguments.word)
        picture = caption.overlay(index, photo=photo, labelled=True, **style)
        if arguments.show:
            _show(picture)
        if file:
            save_image(picture, file)
        word, head = caption.words[index], caption.head_label(arguments.head)
        shown = f"{word.text!r}, word {index + 1} of {len(caption.words)} {head}".strip()
        doubtful = ", doubtful" if word.doubtful else ""
        print(in_a_line(f"{file or 'the picture'} shows {shown}{doubtful}"), file=sys.stderr)


def _show(picture: Image.Image) -> None:
    """Draw a picture in the terminal: as an image if supported, else in coloured blocks."""
    try:
        from rich.console import Console
        from textual_image.renderable import Image as Picture  # queries the terminal
    except ImportError as error:
        raise MissingExtraError("--show", "terminal") from error
    Console().print(Picture(picture, width="auto", height="auto"))


def _find_word(caption: Caption, word: str | None) -> int:
    """Return the index of a word, which is given as text or as a position from 1."""
    texts = [candidate.text for candidate in caption.words]
    if word is None or word in texts:
        return caption.find_word(word)
    if word.isdecimal() and 1 <= int(word) <= len(texts):
        return int(word) - 1
    raise ConfigError(
        f"{caption.image}: there is no word {word!r} in {caption.text!r}: use one of its words, or "
        f"a position from 1 to {len(texts)}"
    )
