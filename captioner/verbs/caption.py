"""`captioner caption PHOTO...`: captions to standard output, pictures to files."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner.drawing.overlay import COLORS, DEFAULT_COLORS
from captioner.drawing.planning import make_folders, plan_pictures
from captioner.drawing.saving import save_animation, save_image
from captioner.drawing.showing import open_picture, show_in_terminal
from captioner.errors import CaptionerError, ConfigError, ImageError, ImageNotFoundError
from captioner.generation.config import MAX_BEAM_SIZE
from captioner.inference.device import add_machine_arguments
from captioner.paths import bundled_checkpoint, checkpoint_file, is_web_address
from captioner.terminal import add_keywords, in_a_line, json_line, probability
from captioner.vision.image import MAX_PIXELS

if TYPE_CHECKING:
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

_UNFAMILIAR = "looks unlike the training photos; check its caption"
_PICTURES = ("--sheet", "--overlay", "--animation")
_DRAWING = (*(option[2:] for option in _PICTURES), "open", "show")


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
    add(
        "--colors",
        choices=COLORS,
        metavar="NAME",
        help=f"{', '.join(COLORS)}; default: {DEFAULT_COLORS}",
    )
    model = parser.add_argument_group("model")
    add = model.add_argument
    add("--beam-size", type=int, metavar="N",
        help=f"1 to {MAX_BEAM_SIZE}; default: the checkpoint's, 5 in the bundled one")  # fmt: skip
    add("--captions", type=int, default=1, metavar="N", help="the N best captions")
    add(
        "--style",
        metavar="NAME",
        help="caption style, for models with several; default: the checkpoint's",
    )
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
        folder = tempfile.mkdtemp(prefix="captioner-")  # not removed: a viewer opens it
        arguments.sheet = f"{folder}/{{number}}-{{name}}.png"
    patterns = {option: file for option in _PICTURES if (file := getattr(arguments, option[2:]))}
    plan = plan_pictures(patterns, arguments.photos, inputs=[checkpoint])
    results = _captions(checkpoint, arguments)
    status = 0
    for photo, files, (source, result) in zip(arguments.photos, plan, results, strict=True):
        try:
            if isinstance(result, CaptionerError):
                if arguments.json:
                    _print_record({"image": photo, "error": result.record()})
                raise result
            _print(result, arguments)
            if result.is_unfamiliar:
                _say(f"{in_a_line(photo)} {_UNFAMILIAR}")
            if result.doubt:
                _say(in_a_line(f"{photo}: {result.doubt}"))
            _draw(result, source, files, arguments)
        except CaptionerError as error:
            _say(in_a_line(str(error)))
            status = 1
    return status


@contextmanager
def _silenced() -> Iterator[None]:
    """Suppress messages of image libraries on standard error; exceptions name the cause anyway."""
    try:
        standard_error = os.dup(2)
    except OSError:  # it is closed
        yield
        return
    sys.stderr.flush()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)
    try:
        yield
    finally:
        os.dup2(standard_error, 2)
        os.close(standard_error)


def _say(text: str) -> None:
    print(f"captioner: {text}", file=sys.stderr)


def _check(arguments: argparse.Namespace) -> None:
    if arguments.attention and not arguments.json:
        raise ConfigError("--attention needs --json")
    if arguments.word is not None and not (arguments.overlay or arguments.show):
        raise ConfigError("--word needs --overlay or --show")
    if arguments.show and not sys.stdout.isatty():
        raise ConfigError("--show needs a terminal as standard output: use --overlay")
    drawn = any(getattr(arguments, name) for name in _DRAWING)
    for name in ("colors", "head"):
        if getattr(arguments, name) is not None and not drawn:
            raise ConfigError(f"--{name} needs one of {', '.join(_PICTURES)}")
    if arguments.keywords is not None and not arguments.json:
        raise ConfigError("--keywords needs --json")
    if arguments.check_attention and not arguments.json:
        raise ConfigError("--check-attention needs --json")


def _captions(
    checkpoint: Path, arguments: argparse.Namespace
) -> Iterator[tuple[Any, Caption | CaptionerError]]:
    """Yield the source of each photo, and its caption or error."""
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
    captioner.check_head(arguments.head)
    captioner.check_trust(arguments.keywords, setting="keywords")
    captioner.vocabulary.style(config.style)
    size = captioner.batch_size
    for start in range(0, len(arguments.photos), size):
        batch = arguments.photos[start : start + size]
        sources = [_source(photo) for photo in batch]
        with _silenced():
            captions = iter(
                captioner.caption(
                    [source for source in sources if not isinstance(source, ImageError)],
                    config,
                    errors="return",
                    check_attention=arguments.check_attention,
                    minimum_trust=arguments.minimum_trust,
                )
            )
        for photo, source in zip(batch, sources, strict=True):
            result: Caption | CaptionerError = (
                source if isinstance(source, ImageError) else next(captions)
            )
            if isinstance(result, ImageError) and Path(photo).is_dir():
                result = ImageNotFoundError(
                    f"{photo} is a folder: use captioner batch {shlex.quote(photo)} --output "
                    "captions.jsonl"
                )
            yield source, result


def _source(photo: str) -> Any:
    """Return a path, the bytes of a download or of standard input, or an ImageError."""
    from captioner.sources import NamedBytes, as_source

    if photo == "-":
        data = NamedBytes(sys.stdin.buffer.read())
        data.name = "-"
        return data
    if not is_web_address(photo):
        return photo
    try:
        return as_source(photo)  # downloaded once
    except ImageError as error:
        return error.without_traceback()


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
    for text in (caption.text, *(sentence.text for sentence in caption.alternatives)):
        print(f"{prefix}{in_a_line(text)}", flush=True)


def _draw(
    caption: Caption, source: Any, files: Mapping[str, str], arguments: argparse.Namespace
) -> None:
    """Draw the pictures of one photo."""
    if not files and not arguments.show:
        return
    from captioner.sources import as_source
    from captioner.vision.image import open_image

    make_folders(files)
    photo = open_image(as_source(source), max_pixels=arguments.max_pixels)
    colors, head = arguments.colors or DEFAULT_COLORS, arguments.head
    if file := files.get("--sheet"):
        save_image(caption.contact_sheet(photo=photo, colors=colors, head=head), file)
        if arguments.open:
            open_picture(file)
    if file := files.get("--animation"):
        save_animation(caption.animation(photo=photo, colors=colors, head=head), file)
    file = files.get("--overlay")
    if file or arguments.show:
        index = _find_word(caption, arguments.word)
        picture = caption.overlay(index, photo=photo, colors=colors, head=head, labelled=True)
        if arguments.show:
            show_in_terminal(picture)
        if file:
            save_image(picture, file)
        word, count = caption.words[index], len(caption.words)
        doubtful = ", doubtful" if word.doubtful else ""
        label = f", {word.head_label(head)}" if word.heads is not None else ""
        description = f"{word.text!r}, word {index + 1} of {count}{label}{doubtful}"
        print(f"{in_a_line(file or 'the picture')} shows {description}", file=sys.stderr)


def _find_word(caption: Caption, word: str | None) -> int:
    """Return the index of a word, which is given as text or as a position from 1.

    Raises ConfigError: there is no such word.
    """
    count = len(caption.words)
    try:
        return caption.find_word(word)
    except ConfigError as error:
        with suppress(TypeError, ValueError):
            position = int(word or "")
            if 1 <= abs(position) <= count:
                return position - 1 if position > 0 else position + count
        raise ConfigError(
            f"{caption.image}: --word {word}: there is no such word in {caption.text!r}; "
            f"use one of its words, or a position from 1 to {count}"
        ) from error
