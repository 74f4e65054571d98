"""Descriptions in photos: read those of other programs, and copy XMP sidecars into JPEG files."""

from __future__ import annotations

import os
import re
import stat
import struct
import subprocess
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from itertools import zip_longest

from PIL import ExifTags, Image, ImageFile, IptcImagePlugin, TiffImagePlugin

from captioner.errors import CaptionerError, OutputError
from captioner.photos.open import exif_entries
from captioner.shared.files import IS_WINDOWS
from captioner_serving.batch.outputs.xmp import ALT_TEXT, DESCRIPTION, texts_in
from captioner_serving.batch.wording import Existing

_SECONDS = 120.0  # for one call, and 10 more for each photo
_OLDEST = 12.39  # the first version with AltTextAccessibility
_REMEDY = "install it (Debian: libimage-exiftool-perl; macOS: brew install exiftool; exiftool.org)"
_TAGS = {DESCRIPTION: "-XMP-dc:Description*", ALT_TEXT: "-XMP-iptcCore:AltTextAccessibility*"}
_END = "{end}"  # printed by exiftool after the messages about a photo
# What cameras write into ImageDescription.
_CAMERA = re.compile(
    r"[\w-]+ digital (still )?camera|(sony|minolta|konica minolta) dsc|exif_jpeg_picture"
    r"|dcim\\.*|dji.*|default|untitled|<[\w -]+>|cof|dav|edf|hdr|hdrpl|mde|oznor|rbt|rhdr|sdr",
    re.IGNORECASE,
)


def read_own_texts(path: str) -> dict[str, str]:
    """Read the owner's texts in a photo by property, without those that `embed` copied.

    A damaged file has none. A description in IPTC or EXIF comes before one in XMP.
    """
    texts = _read_texts(path)
    copies = _copies(path, texts)
    return {name: text for name, text in texts.items() if name not in copies}


def _copies(path: str, texts: dict[str, str]) -> list[str]:
    """Return the properties that are copies: new since exiftool's backup, equal to the alt text."""
    if not os.path.isfile(backup := f"{path}_original"):
        return []
    before, copied = _read_texts(backup), texts.get(ALT_TEXT)
    is_copied = copied is not None and ALT_TEXT not in before
    return [name for name in texts if is_copied and name not in before and texts[name] == copied]


def _read_texts(path: str) -> dict[str, str]:
    try:
        with Image.open(path) as image:
            texts = texts_in(image.info.get("xmp", b""))
            description = _old_description(image)
            return {**texts, DESCRIPTION: description} if description else texts
    except Exception:  # damaged metadata can raise almost anything
        return {}


def embed(
    sidecars: Mapping[str, str], counts: Counter[str], existing: Existing = "skip"
) -> dict[str, OutputError]:
    """Copy sidecars into their JPEG files, with one call of exiftool; return errors by photo.

    Only missing tags are written, and earlier copies unless `existing` is "skip". exiftool keeps
    the original as photo.jpg_original.

    Args:
        sidecars: by photo.jpg, the path of photo.xmp or photo.jpg.xmp.
        counts: counts photos that were changed ("embedded"), and that must not be ("left"): other
            formats than JPEG, read-only files, links, and photos described in IPTC or EXIF.
    """
    suited = {photo: path for photo, path in sidecars.items() if _may_change(photo)}
    counts["left"] += len(sidecars) - len(suited)
    if not suited:
        return {}
    command = ["exiftool", "-config", "", "-@", "-", "-common_args", "-P"]
    command += ["-charset", "filename=utf8"] if IS_WINDOWS else []
    copies = []
    for photo, sidecar in suited.items():
        path = os.path.abspath(photo)
        with suppress(OSError):  # of a call that was killed
            os.unlink(f"{path}_exiftool_tmp")
        # %f and %e are around the last dot.
        is_longer = sidecar == f"{photo}.xmp" and "." in os.path.basename(photo)
        pattern = "%d%f.%e.xmp" if is_longer else "%d%f.xmp"
        mode, tags = "cg", ["-XMP:all"]  # create only
        if existing != "skip" and (names := _copies(photo, _read_texts(photo))):
            mode, tags = "wcg", [_TAGS[name] for name in names]
        copies.append(("-wm", mode, "-tagsFromFile", pattern, *tags, path, "-echo4", _END))
    lines = "\n-execute\n".join(map("\n".join, copies)) + "\n"
    pipe = subprocess.PIPE
    with subprocess.Popen(  # in another session, because Ctrl-C must not end it
        command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
    ) as process:
        try:
            limit = _SECONDS + 10 * len(suited)
            said, messages = process.communicate(os.fsencode(lines), timeout=limit)
        except subprocess.TimeoutExpired:
            process.kill()
            return {photo: _failure(photo, "it took too long") for photo in suited}
        except KeyboardInterrupt:  # exiftool finishes: it may be replacing a photo
            process.communicate()
            raise
    counts["embedded"] += sum(map(int, re.findall(rb"(\d+) image files updated", said)))
    *reports, rest = os.fsdecode(messages.replace(b"\r\n", b"\n")).split(f"{_END}\n")
    errors = {}
    for photo, report in zip_longest(suited, reports, fillvalue=f"Error: {rest}"):
        if problem := re.search(r"^(?:Error|Warning(?=: Error opening)): (.*)$", report, re.M):
            reason = problem[1].removesuffix(f" - {os.path.abspath(photo)}").strip()
            errors[photo] = _failure(photo, reason or f"status {process.returncode}")
    return errors


def check_exiftool() -> None:
    """Raise CaptionerError if exiftool is not installed, or too old to write alt texts."""
    version, answer = 0.0, "it does not run"
    with suppress(OSError, ValueError):
        done = subprocess.run(["exiftool", "-ver"], capture_output=True, text=True, check=False)
        answer = (done.stdout or done.stderr).strip()
        version = float(done.stdout)
    if version < _OLDEST:
        raise CaptionerError(f"embed needs exiftool {_OLDEST} or newer ({answer}): {_REMEDY}")


def _may_change(photo: str) -> bool:
    """Return whether a photo is a writable JPEG file with one name and no older description."""
    try:
        status = os.lstat(photo)
        is_plain = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
        # Line ends separate exiftool's arguments.
        if not is_plain or not status.st_mode & stat.S_IWUSR or re.search(r"[\r\n]", photo):
            return False
        with Image.open(photo) as image:
            return image.format in ("JPEG", "MPO") and not _old_description(image)
    except Exception:  # damaged metadata can raise almost anything
        return False


def _failure(photo: str, reason: str) -> OutputError:
    return OutputError(f"exiftool cannot write {photo} ({reason}): its sidecar has the texts")


def _old_description(image: ImageFile.ImageFile) -> str:
    """Return the description in IPTC or EXIF, or ""."""
    return _iptc_caption(image) or _exif_description(image)


def _iptc_caption(image: ImageFile.ImageFile) -> str:
    """Return the caption in IPTC: record 2, dataset 120; "" if the block is damaged."""
    try:
        caption = (IptcImagePlugin.getiptcinfo(image) or {}).get((2, 120), b"")
    except Exception:  # damaged metadata can raise almost anything
        return ""
    return _decoded(caption if isinstance(caption, bytes) else caption[0])


def _exif_description(image: Image.Image) -> str:
    """Return ImageDescription; "" if it is missing, or the name of a camera."""
    tag, data = ExifTags.Base.ImageDescription, b""
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        value = image.tag_v2.get(tag, "")
        data = value if isinstance(value, bytes) else str(value).encode("latin-1")
    for entry in exif_entries(image.info.get("exif", b"")):
        if entry.tag == tag:
            data = entry.value
            if entry.number > len(data):  # the value is the place of the text
                (start,) = struct.unpack(entry.order + "I", data)
                data = entry.block[start:]
            data = data[: entry.number]
    text = _decoded(data.partition(b"\0")[0])
    return "" if _CAMERA.fullmatch(text) else text


def _decoded(data: bytes) -> str:
    try:
        return data.decode().strip()
    except UnicodeDecodeError:
        return data.decode("cp1252", "replace").strip()
