"""Pictures on the screen: in the program that opens them here, and in a terminal."""

from __future__ import annotations

import webbrowser
from os import PathLike
from pathlib import Path

from PIL import Image

from captioner.errors import MissingExtraError, OutputError

__all__ = ["open_picture", "show_in_terminal"]


def open_picture(path: str | PathLike[str]) -> None:
    """Open the file of a picture as a double click does; OutputError: nothing here opens it."""
    if not webbrowser.open(Path(path).resolve().as_uri()):
        raise OutputError(f"no program was found that opens {path}")


def show_in_terminal(picture: Image.Image) -> None:
    """Draw a picture in the terminal: as it is where that can, else in coloured halves of cells.

    Raises MissingExtraError: the library that knows terminals is not installed.
    """
    try:
        from rich.console import Console
        from textual_image.renderable import Image as Picture  # asks the terminal what it can
    except ImportError as error:
        raise MissingExtraError("--show", "terminal") from error
    Console().print(Picture(picture, width="auto", height="auto"))  # as large as there is room
