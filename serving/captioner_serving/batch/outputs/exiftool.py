"""A running exiftool process, which reads the texts of a JPEG file or writes a changed copy.

It works on copies in a temporary folder, and never sees the name of a photo.
"""

from __future__ import annotations

import html
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from captioner.closing import Closing
from captioner.errors import CaptionerError

_SECONDS = 120.0  # for one photo
_OLDEST = 12.39  # the first version with AltTextAccessibility
_REMEDY = "install it (Debian: libimage-exiftool-perl; macOS: brew install exiftool; exiftool.org)"
_STAY = ("-stay_open", "True", "-@", "-")
_READ = ("-XMP-dc:all", "-XMP-iptcCore:all", "-IPTC:Keywords", "-IPTC:Caption-Abstract")
# exiftool ignores the end of its input, so it would outlive a run that is killed. This process
# forwards the input to exiftool, and kills it at the end of the input.
_RELAY = """
import os, subprocess, sys
tool = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
os.dup2(1, 2)
try:
    for line in sys.stdin.buffer:
        tool.stdin.write(line)
        tool.stdin.flush()
    tool.communicate(b"-stay_open\\nFalse\\n", timeout=2)
except (OSError, subprocess.TimeoutExpired):
    pass
tool.kill()
"""
_READY = "{ready1}"  # with a number, because -q suppresses it without one


class ExifToolError(Exception):
    """exiftool refused a photo, or exited."""


class ExifTool(Closing):
    """An exiftool process, started at its first use, and again after it has exited.

    -stay_open keeps it running, because starting Perl takes longer than processing a photo.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = TemporaryDirectory(prefix="captioner-")
        self._photo = Path(self._folder.name, "photo.jpg")
        self._changed = Path(self._folder.name, "changed.jpg")

    def close(self) -> None:
        """Stop the process and delete its folder."""
        self._end()
        self._folder.cleanup()

    def read(self, photo: bytes) -> dict[str, Any]:
        """Return the texts of a JPEG file by tag; a tag may have a list of texts.

        Raises ExifToolError: the file cannot be read.
        """
        self._photo.write_bytes(photo)
        answer = self._execute("-q", "-q", "-j", "-G1", *_READ)
        try:
            (tags,) = json.loads(answer, parse_int=str, parse_float=str)
        except ValueError:
            raise ExifToolError(_reason(answer)) from None
        return dict(tags)

    def write(self, photo: bytes, changes: Sequence[tuple[str, str]]) -> bytes:
        """Return a JPEG file with changed texts.

        changes: pairs of tag with operator and value, such as ("XMP-dc:Subject+=", "dog").

        Raises ExifToolError: the file cannot be written.
        """
        self._photo.write_bytes(photo)
        self._changed.unlink(missing_ok=True)
        assigned = (f"-{tag}{_escape(value)}" for tag, value in changes)
        answer = self._execute("-E", "-o", str(self._changed), *assigned)
        if not self._changed.exists():
            raise ExifToolError(_reason(answer))
        return self._changed.read_bytes()

    def _execute(self, *arguments: str) -> bytes:
        """Run a command on the photo in the folder, and return its output."""
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                # An empty -config, which must come first, disables the user's configuration.
                [sys.executable, "-I", "-c", _RELAY, _program(), "-config", "", *_STAY],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C must not reach it
            )
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        timer = threading.Timer(_SECONDS, process.stdin.close)
        timer.start()
        answer: list[bytes] = []
        try:
            lines = "\n".join((*arguments, str(self._photo), "-execute1", ""))
            process.stdin.write(lines.encode())
            process.stdin.flush()
            for line in process.stdout:
                if line.strip() == _READY.encode():
                    return b"".join(answer)
                answer.append(line)
        except (OSError, ValueError):  # it has exited, or its input was closed
            answer.clear()
        finally:
            timer.cancel()
        self._end()
        raise ExifToolError(_reason(b"".join(answer)))

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(OSError):
            process.communicate()  # closes its input first


def check_exiftool() -> None:
    """Raise CaptionerError if exiftool is not installed, or too old to write alt texts."""
    done = subprocess.run([_program(), "-ver"], capture_output=True, text=True, check=False)
    try:
        version = float(done.stdout)
    except ValueError:
        raise CaptionerError(
            f"exiftool does not run ({done.stderr.strip() or done.returncode}): {_REMEDY}"
        ) from None
    if version < _OLDEST:
        raise CaptionerError(
            f"exiftool is version {done.stdout.strip()}; embed needs {_OLDEST} or newer: {_REMEDY}"
        )


def _program() -> str:
    if path := shutil.which("exiftool"):
        return path
    raise CaptionerError(f"embed needs exiftool, which is not installed: {_REMEDY}")


def _escape(value: str) -> str:
    """Escape a value for exiftool's option -E, on one line."""
    return html.escape(value).replace("\r", "&#xd;").replace("\n", "&#xa;")


def _reason(answer: bytes) -> str:
    """Return the first line of an answer, without the names of temporary files."""
    lines = answer.decode("utf-8", "replace").strip().splitlines()
    return lines[0].partition(" - ")[0] if lines else "exiftool exited or took too long"
