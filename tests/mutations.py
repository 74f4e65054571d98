"""Break the code on purpose, one mutation at a time, and check that a test fails.

    make mutations
    python tests/mutations.py EMA gate    # those alone with one of these words in what they break

The table is tests/mutations.yaml: what a mistake breaks, the file, a text that occurs there once,
its replacement, and the tests that must all fail. An entry is skipped with a note if its text or a
test of it no longer exists. The exit status is 0 if every mistake was detected. Each one is made
in a copy of the tree. Its tests run in a fork of a process that has imported the libraries, because
importing them takes longer than most tests. A mistake that makes a test hang counts as detected.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import shutil
import signal
import sys
import tempfile
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
PROCESSES = 2
TIMEOUT = 300  # seconds for the tests of one mistake
PASSING_TIMEOUT = 3600  # seconds for all tests without a mistake
OPTIONS = ("-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", "-p", "timeout")
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["torch._dynamo", "torchvision", "gradio", "nltk", "hypothesis"])


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


def run_tests(tests: Collection[str], tree: Path, report: Path) -> None:
    """Run tests on a tree, and exit with pytest's status."""
    for stream in (1, 2):
        os.dup2(os.open(report, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    os.setsid()  # a group that can be killed with the processes of its tests
    FORKS.set_forkserver_preload([])  # for the fork servers that tests start
    os.chdir(tree)
    folders = [str(tree / name) for name in (".", "training", "serving")]
    sys.path[:0] = folders
    os.environ["PYTHONPATH"] = os.pathsep.join(folders)  # for the processes of the tests
    # No bytecode: a file that changes twice in a second may have the one of before.
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    os.environ["COLUMNS"] = "500"
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # they want to be imported first
    sys.exit(pytest.main([*OPTIONS, *tests]))


def end_group(process: BaseProcess) -> None:
    """Kill a process of tests, and the processes that these started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid or 0, signal.SIGKILL)
    process.join()


def unnoticed(tests: Collection[str], tree: Path, timeout: float = TIMEOUT) -> list[str]:
    """Run tests on a tree, and name those that do not fail there; none if they hang."""
    report = tree / "report.txt"
    report.unlink(missing_ok=True)
    process = FORKS.Process(target=run_tests, args=(tests, tree, report))
    process.start()
    process.join(timeout)
    if process.is_alive():
        end_group(process)
        return []
    if process.exitcode not in (0, 1):  # nothing was tested
        raise RuntimeError(report.read_text() if report.exists() else f"{tests} did not start")
    # An error of a fixture is noticed too.
    lines = [line.split(" ", 1) for line in report.read_text().splitlines() if " " in line]
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
        with ThreadPoolExecutor(PROCESSES) as pool:
            shares = [every[number::PROCESSES] for number in range(min(PROCESSES, len(every)))]
            limits = [PASSING_TIMEOUT] * PROCESSES
            passing = pool.map(unnoticed, shares, list(trees.queue), limits)
            if failing := set(every).difference(*passing):
                raise SystemExit(f"these fail without a mistake: {' '.join(sorted(failing))}")
            passed = 0
            for mutation, blind in zip(chosen, pool.map(broken, chosen), strict=True):
                passed += bool(blind)
                print(f"{'PASSED' if blind else 'caught'}  {mutation.breaks}", *blind, flush=True)
    print(f"{len(chosen) - passed} caught, {passed} passed")
    return int(passed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
