"""Break the code on purpose, one mutation at a time, and check that a test fails.

    make mutations
    python tests/mutations.py EMA gate    # those alone with one of these words in what they break

The table is tests/mutations.yaml: what a mistake breaks, the file, a text that occurs there once,
its replacement, and the tests that must all fail. An entry is skipped with a note if its text or a
test of it no longer exists. The exit status is 0 if every mistake was detected. Each one is made
in a copy of the tree. A mistake that makes a test hang counts as detected.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT = 300  # seconds for the tests of one mistake
PASSING_TIMEOUT = 3600  # seconds for all tests without a mistake
OPTIONS = ("-q", "-rfE", "--tb=no", "-p", "no:cacheprovider")


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """A mistake, and the tests that must fail: files, or tests as pytest names them."""

    breaks: str
    file: str
    stands: str
    instead: str
    tests: list[str]

    def made(self, text: str) -> str:
        """Give the file's text with the mistake."""
        if (found := text.count(self.stands)) != 1:
            raise ValueError(f"{self.breaks}: {self.file} has the text {found} times, not once")
        return text.replace(self.stands, self.instead)

    def outdated(self) -> str:
        """Return why the tree no longer fits the entry, or an empty string."""
        try:
            self.made((ROOT / self.file).read_text())
            for test in self.tests:
                file, _, name = test.partition("::")
                if f"def {name.partition('[')[0]}" not in (ROOT / file).read_text():
                    return f"{self.breaks}: {file} has no {name}"
        except (OSError, ValueError) as error:
            return str(error)
        return ""


def table() -> list[Mutation]:
    """Read the entries that fit the tree; print a note about the others."""
    entries = yaml.safe_load((ROOT / "tests" / "mutations.yaml").read_text())
    fitting = []
    for mutation in (Mutation(**entry) for entry in entries):
        if reason := mutation.outdated():
            print(f"skipped  {reason}", flush=True)
        else:
            fitting.append(mutation)
    return fitting


def unnoticed(tests: Collection[str], tree: Path, timeout: float = TIMEOUT) -> list[str]:
    """Run tests on a tree, and name those that do not fail there; none if they hang."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(str(tree / name) for name in (".", "training", "serving")),
        # A file that changes twice in a second may have the bytecode of before.
        "PYTHONDONTWRITEBYTECODE": "1",
        "COLUMNS": "500",
    }
    command = [sys.executable, "-m", "pytest", *OPTIONS, *tests]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=tree, env=environment, stdout=pipe, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            report, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the processes of the tests
            return []
    if process.returncode not in (0, 1):  # nothing was tested
        raise RuntimeError(report)
    # An error of a fixture is noticed too.
    lines = [line.split(" ", 1) for line in report.splitlines() if " " in line]
    names = [text.partition(" - ")[0] for kind, text in lines if kind in ("FAILED", "ERROR")]
    failed = {
        part for name in names for part in (name, name.partition("[")[0], name.partition("::")[0])
    }
    return [test for test in tests if test not in failed]


def main(words: list[str]) -> int:
    """Run every mutation, and report which were detected."""
    chosen = [
        mutation
        for mutation in table()
        if not words or any(word in mutation.breaks for word in words)
    ]
    skipped = shutil.ignore_patterns(".*", "__pycache__", "demo-output")
    passed = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(shutil.copytree(ROOT, Path(folder) / "tree", ignore=skipped))
        every = sorted({test for mutation in chosen for test in mutation.tests})
        if failing := set(every).difference(unnoticed(every, tree, PASSING_TIMEOUT)):
            raise SystemExit(f"these fail without a mistake: {' '.join(sorted(failing))}")
        for mutation in chosen:
            file = tree / mutation.file
            whole = file.read_text()
            file.write_text(mutation.made(whole))
            blind = unnoticed(mutation.tests, tree)
            file.write_text(whole)
            passed += bool(blind)
            print(f"{'PASSED' if blind else 'caught'}  {mutation.breaks}", *blind, flush=True)
    print(f"{len(chosen) - passed} caught, {passed} passed")
    return int(passed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
