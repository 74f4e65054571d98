"""File names as different systems write them: macOS decomposes `ü` into two characters."""

from __future__ import annotations

import unicodedata
from pathlib import PurePosixPath

from captioner.readers import IMAGE_SUFFIXES

__all__ = ["base_name", "composed", "folded", "folders_of", "image_suffix", "stem"]


def composed(name: str) -> str:
    r"""Give a name in the form in which names that look the same are the same: NFC.

    >>> composed("Bu\u0308ck.jpg")
    'Bück.jpg'
    """
    return unicodedata.normalize("NFC", name)


def folded(name: str) -> str:
    """Give a name in small letters, composed."""
    return composed(composed(name).casefold())


def image_suffix(name: str) -> str:
    """Give the suffix of an image's name; "" where it has another one, or none.

    >>> image_suffix("a/b.JPG"), image_suffix("a/b.v2")
    ('.JPG', '')
    """
    suffix = PurePosixPath(name).suffix
    return suffix if suffix.lower() in IMAGE_SUFFIXES else ""


def stem(name: str) -> str:
    """Give a path in small letters, composed, without the suffix of an image.

    >>> stem("a/B.JPG"), stem("a/b.v2")
    ('a/b', 'a/b.v2')
    """
    return folded(name.removesuffix(image_suffix(name)))


def base_name(path: str) -> str:
    """Cut the folders off; they may be Windows's."""
    return path.replace("\\", "/").rpartition("/")[2]


def folders_of(path: str) -> str:
    r"""Give the folders before the base name, in small letters; "" where there are none.

    >>> folders_of("A\\b\\1.jpg"), folders_of("./1.jpg")
    ('a/b', '')
    """
    return folded(path).replace("\\", "/").removeprefix("./").rpartition("/")[0]
