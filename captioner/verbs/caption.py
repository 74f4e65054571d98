"""`captioner caption PHOTO...`: sentences on standard output, pictures into files."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from captioner.errors import CaptionerError, ConfigError, ImageError

if TYPE_CHECKING:
    from captioner.caption import Caption
    from captioner.generation.config import GenerationConfig
    from captioner.predictor import Captioner

HELP = "Caption photos, and show for every word where the model looked."
EXAMPLES = """examples:
  captioner caption photo.jpg
  captioner caption photo.jpg --sheet sheet.png --animation words.gif
  captioner caption photo.jpg --overlay dog.png --word dog
  captioner caption *.jpg --json --attention > captions.jsonl
  captioner caption *.jpg --sheet 'sheets/{name}.png'

One photo: its caption is printed alone. Several: a line each, path, tab, caption."""

_BATCH = 16  # photos decoded together: most of the speed of a large batch, little of its memory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("photos", nargs="+", metavar="PHOTO", help="an image file")
    parser.add_argument("--json", action="store_true", help="print one JSON record a photo")
    parser.add_argument(
        "--attention", action="store_true", help="put each word's attention into the records"
    )
    output = parser.add_argument_group(
        "pictures", "with several photos, {name} in FILE stands for each photo's name"
    )
    output.add_argument("--sheet", metavar="FILE", help="every word over the photo, on one sheet")
    output.add_argument("--overlay", metavar="FILE", help="one word over the photo, in full size")
    output.add_argument(
        "--word",
        metavar="WORD",
        help="for --overlay: a word of the caption or its position from 1 "
        "(default: the word that drew most on the photo)",
    )
    output.add_argument("--animation", metavar="FILE", help="a .gif or .webp through the words")
    model = parser.add_argument_group("model")
    model.add_argument(
        "--beam-size",
        type=int,
        metavar="N",
        help="1 to 20; default: the checkpoint's; the bundled one's is 5",
    )
    model.add_argument("--captions", type=int, default=1, metavar="N", help="the N best captions")
    model.add_argument("--checkpoint", metavar="FILE", help="default: the bundled one")
    model.add_argument("--device", default="auto", metavar="auto|cpu|cuda", help="default: auto")


def run(arguments: argparse.Namespace) -> int:
    """Caption the photos; 1 if any was not captioned or a picture not written."""
    _check(arguments)
    from captioner.predictor import Captioner

    captioner = Captioner.from_pretrained(arguments.checkpoint, device=arguments.device)
    config = captioner.generation.asked(beam_size=arguments.beam_size, captions=arguments.captions)
    status = 0
    for photo, result in _results(captioner, arguments.photos, config):
        try:
            if isinstance(result, ImageError):
                raise result
            _print(result, arguments)
            _draw(result, arguments)
        except CaptionerError as error:
            if isinstance(error, ImageError) and arguments.json:
                print(json.dumps({"image": photo, "error": error.record()}))
            print(f"captioner: {error}", file=sys.stderr)
            status = 1
    return status


def _check(arguments: argparse.Namespace) -> None:
    """Refuse before the model is loaded what cannot work."""
    if arguments.attention and not arguments.json:
        raise ConfigError("--attention puts weights into the records: it needs --json")
    if arguments.word and not arguments.overlay:
        raise ConfigError("--word chooses what --overlay draws: it needs --overlay FILE")
    for option in ("sheet", "overlay", "animation"):
        target = getattr(arguments, option)
        if target and len(arguments.photos) > 1 and "{name}" not in target:
            raise ConfigError(
                f"--{option} {target} would be overwritten by each of the "
                f"{len(arguments.photos)} photos: put {{name}} into it"
            )


def _results(
    captioner: Captioner, photos: list[str], config: GenerationConfig
) -> Iterator[tuple[str, Caption | ImageError]]:
    for start in range(0, len(photos), _BATCH):
        batch = photos[start : start + _BATCH]
        yield from zip(batch, captioner.caption_each(batch, config), strict=True)


def _print(caption: Caption, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print(json.dumps(caption.record(attention=arguments.attention)), flush=True)
        return
    prefix = f"{caption.image}\t" if len(arguments.photos) > 1 else ""
    for text in (caption.text, *(other.text for other in caption.alternatives)):
        print(f"{prefix}{text}", flush=True)


def _draw(caption: Caption, arguments: argparse.Namespace) -> None:
    from captioner.drawing.saving import save_animation, save_image

    name = Path(caption.image or "photo").stem
    if arguments.sheet:
        save_image(caption.contact_sheet(), arguments.sheet.replace("{name}", name))
    if arguments.overlay:
        word = _find_word(caption, arguments.word)
        save_image(caption.overlay(word=word), arguments.overlay.replace("{name}", name))
    if arguments.animation:
        save_animation(caption.animation(), arguments.animation.replace("{name}", name))


def _find_word(caption: Caption, wanted: str | None) -> int:
    """Turn a word, a position from 1, or nothing into a position from 0."""
    if wanted is None:
        return caption.find_word()
    texts = [word.text for word in caption.words]
    if wanted in texts:
        return texts.index(wanted)
    if wanted.isdigit() and 1 <= int(wanted) <= len(texts):
        return int(wanted) - 1
    raise ConfigError(f"--word {wanted}: it is neither a word nor a position of {caption.text!r}")
