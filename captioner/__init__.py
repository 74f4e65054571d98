"""Captions photos and shows, for every word, where the model looked.

>>> from captioner import Captioner
>>> caption = Captioner.from_pretrained().caption("photo.jpg")          # doctest: +SKIP
>>> caption.contact_sheet().save("sheet.png")                           # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from captioner import errors
from captioner.errors import *  # noqa: F403

if TYPE_CHECKING:
    __version__: str
    from captioner.caption import Alternative, Caption, Word
    from captioner.captioner import Captioner
    from captioner.generation.config import GenerationConfig

__all__ = ["Alternative", "Caption", "Captioner", "GenerationConfig", "Word", "__version__"]
__all__ += errors.__all__

# Imported on first use, because torch takes seconds to import.
_LAZY = {
    "Alternative": "captioner.caption",
    "Caption": "captioner.caption",
    "Captioner": "captioner.captioner",
    "GenerationConfig": "captioner.generation.config",
    "Word": "captioner.caption",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        globals()[name] = _version()
        return globals()[name]
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'captioner' has no attribute {name!r}")


def _version() -> str:
    # Imported here, because decoding processes do not need it.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("captioner")
    except PackageNotFoundError:  # a bare checkout on PYTHONPATH
        return "0.2.0"


def __dir__() -> list[str]:
    return __all__
