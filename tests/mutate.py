"""Mutation testing: change the code by rules, one change at a time, and count what tests notice.

    make mutate MODULE=captioner/model SAMPLE=40
    python tests/mutate.py captioner/model --sample 40 [--again] [--scores]

tests/mutate.yaml says which tests run for which module; tests of 20 seconds and more do not. Python
functions are changed by mutmut's operators, scripts of the page by the rules of tests/mutants.py.
Mutants are drawn with a fixed seed. Results are kept in .mutate/results.jsonl: the next call
resumes, --again repeats what survived. No file is changed: tests are collected once, and each
mutant is a fork in which the functions have the mutant's code, also in commands that it starts,
or in which the browser is given the mutant's script.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import yaml
from _pytest.main import pytest_runtestloop as run_loop

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)

from tests import launcher  # noqa: E402
from tests.conftest import SLOWEST  # noqa: E402
from tests.mutants import (  # noqa: E402
    Mutant,
    Row,
    choose,
    loaded_functions,
    paired_codes,
    replace_code,
)

KEPT = ROOT / ".mutate"
RESULTS = KEPT / "results.jsonl"
UNNOTICED = ("survived", "not called")  # by any of the row's tests
OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")


class Calls:
    """Which functions of some files each test calls, and which ones fixtures call."""

    def __init__(self, files: set[str]) -> None:
        self.files = files
        self.tests: defaultdict[str, set[str]] = defaultdict(set)
        self.fixtures: set[str] = set()
        self._now = self.fixtures

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename in self.files:
            self._now.add(place_of(frame.f_code))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Any:
        self._now = self.tests[item.nodeid]
        try:
            return (yield)
        finally:
            self._now = self.fixtures

    def save(self, path: Path) -> None:
        tests = {name: sorted(places) for name, places in self.tests.items()}
        path.write_text(json.dumps([tests, sorted(self.fixtures)]))


def place_of(code: CodeType) -> str:
    return f"{code.co_filename}:{code.co_firstlineno}:{code.co_qualname}"


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[parts[0] in ("training", "serving") :]).removesuffix(".__init__")


class Mutator:
    """Runs the mutants of a row in place of a session's tests."""

    def __init__(self, row: Row, mutants: Sequence[Mutant], say: Callable[[str], None]) -> None:
        self.row, self.mutants, self.say = row, mutants, say

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.name.partition("[")[0] not in SLOWEST]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        # Modules that the product imports late must be here before their functions are changed.
        for name in self.row.imports:
            import_module(name)
        for file in self.row.files():
            if file.suffix == ".py":
                import_module(module_name(file))
        functions = loaded_functions()
        tests, fixtures, seconds = self._record(session)
        self.say(f"{self.row.module}: {len(session.items)} tests take {seconds:.0f} s")
        for mutant in self.mutants:
            items = list(session.items)
            pairs: dict[CodeType, CodeType] = {}
            if mutant.file.suffix == ".py":
                pairs = paired_codes(mutant)
                places = set(map(place_of, pairs))
                items = [item for item in items if places & tests.get(item.nodeid, set())]
                if places & fixtures or self.row.processes:
                    items += [item for item in session.items if item not in items]

            def work(mutant: Mutant = mutant, pairs: Any = pairs, items: Any = items) -> int:
                replace_code(functions, pairs)
                (KEPT / "mutant").write_text(mutant.text())
                if pairs:
                    os.environ["CAPTIONER_MUTANT"] = f"{mutant.file}={KEPT}/mutant"
                else:
                    os.environ["CAPTIONER_PAGE_SCRIPT"] = f"{mutant.file.name}={KEPT}/mutant"
                return run_items(session, items)

            outcome = fork(work, seconds=30 + 4 * seconds) if items else "not called"
            with RESULTS.open("a") as file:
                record = {"key": mutant.key(), "outcome": outcome, "mutant": mutant.name}
                file.write(json.dumps(record) + "\n")
            if outcome in UNNOTICED:
                self.say(f"  {outcome}  {mutant.name}")
        return True

    def _record(self, session: pytest.Session) -> tuple[dict[str, set[str]], set[str], float]:
        """Run all tests without a mutant, and record the functions that they call."""
        path, started = KEPT / "calls.json", time.monotonic()
        calls = Calls({str(file) for file in self.row.files()})

        def work() -> int:
            session.config.pluginmanager.register(calls)
            threading.setprofile(calls._note)  # servers run in threads
            sys.setprofile(calls._note)
            failed = run_items(session, session.items)
            sys.setprofile(None)
            calls.save(path)
            return failed

        if fork(work, seconds=3600) != "survived":
            raise SystemExit(f"{self.row.module}: tests fail without a mutant: {KEPT}/output.txt")
        tests, fixtures = json.loads(path.read_text())
        known = {name: set(places) for name, places in tests.items()}
        return known, set(fixtures), time.monotonic() - started


def run_items(session: pytest.Session, items: Sequence[pytest.Item]) -> int:
    """Run tests up to the first that fails; how many failed."""
    session.items[:] = items
    try:
        with suppress(session.Failed, session.Interrupted):
            run_loop(session)
    finally:
        session._setupstate.teardown_exact(None)
    return session.testsfailed


def fork(work: Callable[[], int], *, seconds: float) -> str:
    """Run work in a fork: "survived" if it returns 0, else "killed", or "timeout"."""
    started = time.monotonic()
    if (pid := os.fork()) == 0:
        status = 1
        try:
            os.setsid()
            status = min(work(), 1)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    while not (done := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() - started > seconds:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return "timeout"
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # processes that its tests have left behind
    return "killed" if done[1] else "survived"


def run_row(row: Row, mutants: Sequence[Mutant]) -> None:
    """Run mutants in a process of the row's own."""
    if os.fork():
        os.wait()
        return
    try:
        terminal = os.fdopen(os.dup(1), "w", buffering=1)
        log = os.open(KEPT / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if row.processes or mutants[0].file.suffix == ".js":
            launcher.prepare()  # one nursery for all

        def say(line: str) -> None:
            print(line, file=terminal)

        os.chdir(ROOT)
        status = pytest.main([*OPTIONS, *row.tests], plugins=[Mutator(row, mutants, say)])
        if status:
            say(f"{row.module}: pytest ended with {status!r}: {KEPT}/output.txt")
    finally:
        os._exit(0)


def read_results(*, again: bool = False) -> dict[str, str]:
    """Read the results of mutants; with `again`, only of those that were detected."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    results = {entry["key"]: entry["outcome"] for entry in map(json.loads, lines)}
    return {key: end for key, end in results.items() if not (again and end in UNNOTICED)}


def main() -> None:
    """Run the rows of the table whose module is named, and print a score for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("module", nargs="*", help="the beginning of modules' paths; default: all")
    parser.add_argument("--sample", type=int, default=40, help="mutants a module (default 40)")
    parser.add_argument("--again", action="store_true", help="repeat what survived")
    parser.add_argument("--scores", action="store_true", help="print known results, run nothing")
    options = parser.parse_args()
    table = yaml.safe_load((ROOT / "tests" / "mutate.yaml").read_text())
    KEPT.mkdir(exist_ok=True)
    for row in (Row(**entry) for entry in table):
        if options.module and not any(row.module.startswith(part) for part in options.module):
            continue
        mutants = choose(row, options.sample)
        known = read_results(again=options.again)
        left = [mutant for mutant in mutants if mutant.key() not in known]
        if left and not options.scores:
            run_row(row, left)
        known = read_results()
        outcomes = Counter(known.get(mutant.key(), "not run") for mutant in mutants)
        noticed = outcomes["killed"] + outcomes["timeout"]
        run = noticed + sum(outcomes[outcome] for outcome in UNNOTICED)
        print(f"{row.module}: {noticed} of {run} killed", flush=True)
        for mutant in mutants if options.scores else ():
            if (outcome := known.get(mutant.key())) in UNNOTICED:
                print(f"  {outcome}  {mutant.name}")


if __name__ == "__main__":
    main()
