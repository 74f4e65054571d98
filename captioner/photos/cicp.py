"""Colours that a file describes by numbers instead of a profile.

AVIF and HEIC have the numbers of ITU-T H.273 in a box `nclx`, PNG in a chunk cICP. Older PNGs have
an exponent in a chunk gAMA.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_HEAD = 1 << 16  # bytes of the file that are searched
_WHITE = 203.0  # nits of the reference white (ITU-R BT.2408)
_PQ, _HLG = 16, 18
TRANSFERS = (1, 6, 13, _PQ, _HLG)
"""The transfer functions that are known; 1 and 6 are taken for sRGB's, 13."""
PRIMARIES = {  # x and y of red, green and blue; their white is D65
    1: (0.64, 0.33, 0.30, 0.60, 0.15, 0.06),  # sRGB
    9: (0.708, 0.292, 0.170, 0.797, 0.131, 0.046),  # BT.2020
    12: (0.680, 0.320, 0.265, 0.690, 0.150, 0.060),  # Display P3
}
_ROWS = 1 << 18  # pixels that are converted at once
_Floats = NDArray[np.float32]


def read_nclx(data: bytes) -> tuple[int, int] | None:
    """Return the primaries and the transfer function of the primary item of an AVIF or HEIC.

    None: it has none, or has an ICC profile, which wins.
    """
    meta = _boxes(_body(_boxes(data[:_HEAD]), b"meta")[4:])
    properties = _boxes(_body(meta, b"iprp"))
    own = _associations(_body(meta, b"pitm"), _body(properties, b"ipma"))
    numbered = enumerate(_boxes(_body(properties, b"ipco")), 1)
    colours = [body for number, (kind, body) in numbered if kind == b"colr" and number in own]
    if any(body[:4] in (b"prof", b"rICC") for body in colours):
        return None
    for body in colours:
        if body[:4] == b"nclx" and len(body) >= 8:
            return int.from_bytes(body[4:6]), int.from_bytes(body[6:8])
    return None


def _associations(pitm: bytes, ipma: bytes) -> set[int]:
    """Return the numbers, from 1, of the primary item's properties (ISO 23008-12, 9.3)."""
    item_size, size = (4 if ipma[:1] > b"\0" else 2), 1 + (int.from_bytes(ipma[1:4]) & 1)
    place, is_essential = 8, 1 << (8 * size - 1)  # the first bit of a number
    while place < len(ipma):
        start = place + item_size + 1
        item, count = (
            int.from_bytes(part) for part in (ipma[place : start - 1], ipma[start - 1 : start])
        )
        place = start + size * count
        if item == int.from_bytes(pitm[4:]):
            parts = (ipma[at : at + size] for at in range(start, place, size))
            return {int.from_bytes(part) & ~is_essential for part in parts}
    return set()


def _boxes(data: bytes) -> list[tuple[bytes, bytes]]:
    """Return the kinds and contents of the boxes in a part of a file."""
    boxes, place = [], 0
    while place + 8 <= len(data):
        length = int.from_bytes(data[place : place + 4])
        if length < 8:
            break
        boxes.append((data[place + 4 : place + 8], data[place + 8 : place + length]))
        place += length
    return boxes


def _body(boxes: list[tuple[bytes, bytes]], kind: bytes) -> bytes:
    """Return the content of the first box of a kind; empty if there is none."""
    return next((body for name, body in boxes if name == kind), b"")


def from_gamma(image: Image.Image, gamma: float) -> Image.Image:
    """Convert an RGB or grey image to sRGB; `gamma` is the exponent from light to levels."""
    light = np.linspace(0, 1, 256, dtype=np.float32) ** (1 / gamma)
    return image.point([*_levels(light)] * len(image.getbands()))


def from_cicp(image: Image.Image, primaries: int, transfer: int) -> Image.Image:
    """Convert an RGB image to sRGB; light above the reference white is clipped.

    Unknown primaries and transfer functions are taken for those of sRGB.
    """
    described = PRIMARIES.get(primaries, PRIMARIES[1])
    if described == PRIMARIES[1] and transfer not in (_PQ, _HLG):
        return image
    levels = _linear(np.linspace(0, 1, 256, dtype=np.float32), transfer)
    ours, theirs = _to_xyz(PRIMARIES[1]), _to_xyz(described)
    matrix = (np.linalg.inv(ours) @ theirs).T.astype(np.float32)
    pixels = np.array(image).reshape(-1, 3)
    for start in range(0, len(pixels), _ROWS):
        light = levels[pixels[start : start + _ROWS]]
        if transfer == _HLG:  # BT.2100's OOTF of a display of 1,000 nits
            luminance = light @ np.array([0.2627, 0.6780, 0.0593], dtype=np.float32)
            light = light * (luminance[:, None] ** 0.2) * (1000 / _WHITE)
        pixels[start : start + _ROWS] = _levels(np.clip(light @ matrix, 0, 1))
    return Image.fromarray(pixels.reshape(image.height, image.width, 3))


def _linear(signal: _Floats, transfer: int) -> _Floats:
    """Return the light of a signal; with PQ and sRGB, 1 is the reference white."""
    if transfer == _PQ:  # SMPTE ST 2084
        root = signal.astype(np.float64) ** (32 / 2523)  # 1 / m2
        light = np.maximum(root - 0.8359375, 0) / (18.8515625 - 18.6875 * root)
        return (light ** (16384 / 2610) * (10_000 / _WHITE)).astype(np.float32)
    if transfer == _HLG:  # BT.2100
        high = (np.exp((signal - 0.55991073) / 0.17883277) + 0.28466892) / 12
        return np.where(signal <= 0.5, signal**2 / 3, high).astype(np.float32)
    high = ((signal + 0.055) / 1.055) ** 2.4
    return np.where(signal <= 0.04045, signal / 12.92, high).astype(np.float32)


def _levels(light: _Floats) -> NDArray[np.uint8]:
    """Return the levels of light from 0 to 1 in sRGB (IEC 61966-2-1)."""
    shown = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
    return (shown * 255 + 0.5).astype(np.uint8)


def _to_xyz(primaries: tuple[float, ...]) -> NDArray[np.float64]:
    """Return the matrix from linear RGB to XYZ."""
    x, y = np.array(primaries).reshape(3, 2).T
    columns = np.stack([x / y, np.ones(3), (1 - x - y) / y])
    white = np.array([0.3127 / 0.3290, 1, (1 - 0.3127 - 0.3290) / 0.3290])
    result: NDArray[np.float64] = columns * np.linalg.solve(columns, white)
    return result
