"""Break the code on purpose, one mutation at a time, and check that a test fails.

    make mutations
    python tests/mutations.py EMA gate    # those alone with one of these words in what they break

The table is tests/mutations.yaml: what a mistake breaks, the file, what stands there exactly once,
what stands there instead, and the tests that fail then, every one of them. The exit status is 0
where all do. Each mistake is made in a copy of the tree.
"""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
PROCESSES = 2
TIMEOUT = 3600  # seconds: a mistake may let a test wait for ever


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


def table() -> list[Mutation]:
    """Read the table."""
    entries = yaml.safe_load((ROOT / "tests" / "mutations.yaml").read_text())
    return [Mutation(**entry) for entry in entries]


def unnoticed(tests: Collection[str], tree: Path) -> list[str]:
    """Run tests on a tree, and name those that do not fail there."""
    folders = os.pathsep.join(str(tree / name) for name in (".", "training", "serving"))
    # No bytecode: a file that changes twice in a second may have the one of before.
    own = {"PYTHONPATH": folders, "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "500"}
    options = ["-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=tree,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    if done.returncode not in (0, 1):  # nothing was tested
        raise RuntimeError(done.stdout + done.stderr)
    # An error of a fixture is noticed too.
    lines = [line.split(" ", 1) for line in done.stdout.splitlines() if " " in line]
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
    with tempfile.TemporaryDirectory() as folder:
        trees: queue.Queue[Path] = queue.Queue()
        for number in range(PROCESSES):
            trees.put(Path(shutil.copytree(ROOT, Path(folder) / str(number), ignore=skipped)))

        def broken(mutation: Mutation) -> list[str]:
            tree = trees.get()
            whole = (tree / mutation.file).read_text()
            try:
                (tree / mutation.file).write_text(mutation.made(whole))
                return unnoticed(mutation.tests, tree)
            finally:
                (tree / mutation.file).write_text(whole)
                trees.put(tree)

        every = sorted({test for mutation in chosen for test in mutation.tests})
        if len(unnoticed(every, Path(folder) / "0")) < len(every):
            raise SystemExit("without a mistake some of the tests fail already")
        passed = 0
        with ThreadPoolExecutor(PROCESSES) as pool:
            for mutation, blind in zip(chosen, pool.map(broken, chosen), strict=True):
                passed += bool(blind)
                print(f"{'PASSED' if blind else 'caught'}  {mutation.breaks}", *blind, flush=True)
    print(f"{len(chosen) - passed} caught, {passed} passed")
    return int(passed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
