"""The options of all verbs, one a line; `python -m tests.write_help` writes tests/help.txt."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from captioner.cli import VERBS
from tests.launcher import environment

FILE = Path(__file__).with_name("help.txt")

_SCRIPT = """
import sys
from captioner.cli import main
for verb in sys.argv[1:]:
    try:
        main([verb, "--help"])
    except SystemExit as stop:
        print(f"{stop.code} {'torch' in sys.modules}", end="\\f")
"""


def read_help() -> dict[str, tuple[str, str]]:
    """Run --help of all verbs in one process.

    Returns the text by verb, and after it the exit status and whether torch was imported.
    """
    command = [sys.executable, "-c", _SCRIPT, *VERBS]
    fixed = environment() | {"COLUMNS": "80", "NO_COLOR": "1"}
    result = subprocess.run(command, capture_output=True, text=True, env=fixed, check=True)
    outputs = (output.rpartition("\n") for output in result.stdout.split("\f"))
    return {verb: (text, state) for verb, (text, _, state) in zip(VERBS, outputs, strict=False)}


def list_options(texts: dict[str, tuple[str, str]]) -> str:
    """Return verb, option and value of each option, one a line."""
    pairs = ((verb, re.findall(r"^  (--.*?)(?:  |$)", texts[verb][0], re.M)) for verb in VERBS)
    return "".join(f"{verb} {option}\n" for verb, options in pairs for option in options)


if __name__ == "__main__":
    FILE.write_text(list_options(read_help()))
