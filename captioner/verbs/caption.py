"""`captioner caption PHOTO...`: sentences on standard output, pictures into files."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from captioner.device import add_machine_arguments
from captioner.drawing.overlay import COLORS, DEFAULT_COLORS
from captioner.drawing.saving import check_suffix, save_animation, save_image
from captioner.drawing.showing import open_picture, show_in_terminal
from captioner.errors import (
    CaptionerError,
    ConfigError,
    ImageError,
    ImageNotFoundError,
    OutputError,
)
from captioner.files import identity, writing
from captioner.generation.config import MAX_BEAM_SIZE
from captioner.paths import bundled_checkpoint, checkpoint_file, is_web_address
from captioner.terminal import in_a_line, json_line, probability
from captioner.vision.image import MAX_PIXELS

if TYPE_CHECKING:
    from captioner.caption import Caption

HELP = "Caption photos, and show for every word where the model looked."
EXAMPLES = """examples:
  captioner caption photo.jpg
  captioner caption photo.jpg --sheet sheet.png --animation words.gif --open
  captioner caption photo.jpg --overlay dog.png --word dog
  captioner caption *.jpg --json --attention > captions.jsonl
  captioner caption *.jpg --sheet 'sheets/{name}.png'

One photo: its caption is printed alone. Several: a line each, path, tab, caption.
A whole folder: captioner batch."""

_UNFAMILIAR = (
    "is unlike the photos that the model has learned from: the caption may be wrong altogether"
)
_PICTURES = ("--sheet", "--overlay", "--animation")
_DRAWING = (*(option[2:] for option in _PICTURES), "open", "show")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("photos", nargs="+", metavar="PHOTO", help="an image file; - reads standard input")
    add("--json", action="store_true", help="print one JSON record per photo")
    add("--attention", action="store_true", help="put each word's attention into the records")
    add("--check-attention", action="store_true",
        help="put into the records whether it mattered where the model looked")  # fmt: skip
    pictures = parser.add_argument_group(
        "pictures",
        "With several photos, {name} in FILE stands for each photo's name, {number} for its place "
        "in the list.",
    )
    add = pictures.add_argument
    add("--sheet", metavar="FILE", help="every word over the photo, on one sheet")
    add("--overlay", metavar="FILE", help="one word over the photo, in full size")
    add("--word", metavar="WORD", help="for --overlay and --show: a word of the caption, or its "
        "position from 1 (default: the one that drew most)")  # fmt: skip
    add("--animation", metavar="FILE", help="a .gif or .webp through the words")
    add("--open", action="store_true", help="open the sheet; without --sheet, a temporary one")
    add("--show", action="store_true", help="draw one word over the photo in this terminal")
    add("--head", type=int, metavar="N",
        help="one head's attention, from 1, of a model with several (all)")  # fmt: skip
    add("--colors", choices=COLORS, metavar="NAME", help=f"the usual {', '.join(COLORS)}")
    model = parser.add_argument_group("model")
    add = model.add_argument
    add("--beam-size", type=int, metavar="N",
        help=f"1 to {MAX_BEAM_SIZE}; default: the checkpoint's, 5 in the bundled one")  # fmt: skip
    add("--captions", type=int, default=1, metavar="N", help="the N best captions")
    add("--style", metavar="NAME", help="of a model with several; default: the checkpoint's")
    add("--checkpoint", metavar="MODEL",
        help="file, run folder or USER/MODEL (Hub); default: bundled")  # fmt: skip
    add("--max-pixels", type=int, default=MAX_PIXELS, metavar="N",
        help=f"larger photos are refused; default: {MAX_PIXELS:,}")  # fmt: skip
    add("--minimum-trust", type=probability, metavar="P",
        help="leave out captions less likely to be right, 0 to 1")  # fmt: skip
    add_machine_arguments(model)


def run(arguments: argparse.Namespace) -> int:
    """Caption the photos; 1 if any was not captioned or a picture not written."""
    _check(arguments)
    checkpoint = checkpoint_file(arguments.checkpoint or bundled_checkpoint())
    if arguments.open and not arguments.sheet:
        folder = tempfile.mkdtemp(prefix="captioner-")  # it is read when this has ended
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
            if result.unfamiliar:
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
    """Drop what decoders in C print to standard error: the error of the photo has the cause."""
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
        raise ConfigError("--attention puts weights into the records: it needs --json")
    if arguments.word is not None and not (arguments.overlay or arguments.show):
        raise ConfigError("--word chooses what --overlay draws: it needs --overlay FILE, or --show")
    if arguments.show and not sys.stdout.isatty():
        raise ConfigError("--show draws in a terminal, which standard output is not: use --overlay")
    drawn = any(getattr(arguments, name) for name in _DRAWING)
    for name in ("colors", "head"):
        if getattr(arguments, name) is not None and not drawn:
            raise ConfigError(f"--{name} is for pictures: it needs one of {', '.join(_PICTURES)}")
    if arguments.check_attention and not arguments.json:
        raise ConfigError("--check-attention puts numbers into the records: it needs --json")


def _captions(
    checkpoint: Path, arguments: argparse.Namespace
) -> Iterator[tuple[Any, Caption | CaptionerError]]:
    """Yield each photo as it was read, and its caption or error."""
    from captioner.predictor import BATCH, Captioner

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
    captioner.vocabulary.style(config.style)
    for start in range(0, len(arguments.photos), BATCH):
        batch = arguments.photos[start : start + BATCH]
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
                    f"{photo} is a folder; to caption all photos in it: "
                    f"captioner batch {shlex.quote(photo)} --output captions.jsonl"
                )
            yield source, result


def _source(photo: str) -> Any:
    """Return a path, the bytes of a download or of standard input, or the ImageError."""
    from captioner.sources import NamedBytes, as_source

    if photo == "-":
        piped = NamedBytes(sys.stdin.buffer.read())
        piped.name = "-"
        return piped
    if not is_web_address(photo):
        return photo
    try:
        return as_source(photo)  # once, for the caption and for its pictures
    except ImageError as error:
        return error.without_traceback()


def _print_record(record: dict[str, Any]) -> None:
    print(json_line(record, encoding=sys.stdout.encoding), flush=True)


def _print(caption: Caption, arguments: argparse.Namespace) -> None:
    if arguments.json:
        _print_record(caption.record(attention=arguments.attention))
        return
    # A program gets the name as it is, to open the photo by; a terminal must not be steered by it.
    name = in_a_line(str(caption.image)) if sys.stdout.isatty() else caption.image
    prefix = f"{name}\t" if len(arguments.photos) > 1 else ""
    for text in (caption.text, *(other.text for other in caption.alternatives)):
        print(f"{prefix}{in_a_line(text)}", flush=True)


def _draw(
    caption: Caption, source: Any, files: Mapping[str, str], arguments: argparse.Namespace
) -> None:
    """Write the pictures of one photo, which is opened once for all of them."""
    if not files and not arguments.show:
        return
    from captioner.sources import as_source
    from captioner.vision.image import open_image

    _make_folders(files)
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
        picture = caption.overlay(index, photo=photo, colors=colors, head=head)
        if arguments.show:
            show_in_terminal(picture)
        if file:
            save_image(picture, file)
        word, count = caption.words[index], len(caption.words)
        doubtful = ", doubtful" if word.doubtful else ""
        of_head = f", {word.shown(head)}" if word.heads is not None else ""
        shown = f"{word.text!r}, word {index + 1} of {count}{of_head}{doubtful}"
        print(f"{in_a_line(file or 'the picture')} shows {shown}", file=sys.stderr)


def _find_word(caption: Caption, word: str | None) -> int:
    """Return the index of a word given by itself, or by its position from 1.

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


# --- which file each picture goes to: never onto an input, and never two into one ---


def plan_pictures(
    patterns: Mapping[str, str], photos: Sequence[str], *, inputs: Iterable[str | os.PathLike[str]]
) -> list[dict[str, str]]:
    """Give each photo's files, by option, before any work is done.

    Args:
        patterns: by option ("--sheet"), the file as it was typed. `{name}` in it stands for the
            photo's name without folder and suffix, `{number}` for its place in the list, from 1.
        photos: paths and addresses, as they were typed.
        inputs: other files that the run reads.

    Raises ConfigError: the kind of file or a field is not known, or a picture would overwrite an
    input or another picture of this run. Other files are overwritten.
    """
    plan = [
        {option: _fill(option, pattern, photo, number) for option, pattern in patterns.items()}
        for number, photo in enumerate(photos, 1)
    ]
    read = {key: path for path in (*inputs, *photos) for key in identity(path)}
    taken: dict[object, str] = {}
    for photo, files in zip(photos, plan, strict=True):
        for option, file in files.items():
            keys = identity(file)
            for key in keys & read.keys():
                raise ConfigError(
                    f"{option} {patterns[option]} would overwrite {read[key]}, "
                    "which this command reads: name another file"
                )
            label = f"{option} of {photo}"
            for key in keys & taken.keys():
                raise ConfigError(
                    f"{taken[key]} and {label} would both be written to {file}: "
                    "give them different names; {number} is different for every photo"
                )
            taken.update(dict.fromkeys(keys, label))
    return plan


def _make_folders(files: Mapping[str, str]) -> None:
    for folder in {Path(file).parent for file in files.values()}:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)


def _fill(option: str, pattern: str, photo: str, number: int) -> str:
    path = urlsplit(photo).path if is_web_address(photo) else photo
    name = "" if path == "-" else Path(path).stem
    try:
        check_suffix(pattern, moving=option == "--animation")
        return pattern.format(name=name or "photo", number=number)
    except OutputError as error:
        raise ConfigError(f"{option}: {error}") from error
    except (ValueError, LookupError, AttributeError) as error:
        raise ConfigError(
            f"{option} {pattern} cannot be filled in ({error}): {{name}} and {{number}} are known"
        ) from error
