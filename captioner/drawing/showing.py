"""Showing pictures: in the default viewer and in the terminal."""

from __future__ import annotations

import webbrowser
from os import PathLike
from pathlib import Path

from PIL import Image

from captioner.errors import MissingExtraError, OutputError


def open_picture(path: str | PathLike[str]) -> None:
    """Open a picture in the default viewer. Raises OutputError: there is no viewer."""
    if not webbrowser.open(Path(path).resolve().as_uri()):
        raise OutputError(f"no program was found that opens {path}")


def show_in_terminal(picture: Image.Image) -> None:
    """Draw a picture in the terminal: as an image if supported, else in coloured blocks.

    Raises MissingExtraError: textual-image is not installed.
    """
    try:
        from rich.console import Console
        from textual_image.renderable import Image as Picture  # queries the terminal
    except ImportError as error:
        raise MissingExtraError("--show", "terminal") from error
    Console().print(Picture(picture, width="auto", height="auto"))
