"""Snapshots of `captioner VERB --help` in tests/help; `python -m tests.write_help` writes them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from captioner.cli import VERBS
from tests.launcher import environment

FOLDER = Path(__file__).parent / "help"

_SCRIPT = """
import sys
from captioner.cli import main
for verb in sys.argv[1:]:
    try:
        main([verb, "--help"] if verb != "captioner" else ["--help"])
    except SystemExit as stop:
        print(f"{stop.code} {'torch' in sys.modules}", end="\\f")
"""


def read_help() -> dict[str, tuple[str, str]]:
    """Run --help of all verbs in one process.

    Returns the text by verb, and after it the exit status and whether torch was imported. Usage is
    one line, because argparse breaks it differently from version to version.
    """
    verbs = ["captioner", *VERBS]
    command = [sys.executable, "-c", _SCRIPT, *verbs]
    fixed = environment() | {"COLUMNS": "80", "NO_COLOR": "1"}
    result = subprocess.run(command, capture_output=True, text=True, env=fixed, check=True)
    texts = {}
    for verb, output in zip(verbs, result.stdout.split("\f"), strict=False):
        text, _, state = output.rpartition("\n")
        usage, _, rest = text.partition("\n\n")
        texts[verb] = (f"{' '.join(usage.split())}\n\n{rest}\n", state)
    return texts


def main() -> None:
    """Write the snapshots."""
    for file in FOLDER.glob("*.txt"):
        file.unlink()
    for verb, (text, _) in read_help().items():
        (FOLDER / f"{verb}.txt").write_text(text)


if __name__ == "__main__":
    main()
