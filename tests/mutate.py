"""Mutation testing: change the code by rules, one change at a time, and count what tests notice.

    make mutate MODULE=captioner/attention SAMPLE=40
    python tests/mutate.py captioner/attention --sample 40 [--again]

tests/mutate.yaml says which tests run for which module. Python is mutated by mutmut's operators,
JavaScript by the rules below; texts of messages stay. Mutants are drawn with a fixed seed and made
in a copy of the tree. Results are kept in .mutate/results.jsonl: the next call resumes, and
--again repeats what survived. Each mutant is a fork of a process that has imported PyTorch.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / ".mutate"
PRELOADED = ("torch", "torchvision", "pytest", "hypothesis", "numpy", "PIL.Image", "pandas", "lxml")
OPTIONS = ("-x", "-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A module, the tests that run for it, and mutants that change nothing, with the reason."""

    module: str
    tests: list[str]
    equivalent: dict[str, str] = field(default_factory=dict)

    def files(self) -> list[Path]:
        path = ROOT / self.module
        found = [path] if path.is_file() else sorted(path.rglob("*"))
        return [file for file in found if file.suffix in (".py", ".js")]


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A change of a file."""

    file: Path
    number: int  # among those of the file
    change: str  # "old -> new"
    text: Callable[[], str] = field(repr=False)  # of the changed file

    @property
    def name(self) -> str:
        return f"{self.file.relative_to(ROOT)}: {self.change}"

    def key(self) -> str:
        """Identify the mutant as long as its file does not change."""
        source = hashlib.sha256(self.file.read_bytes()).hexdigest()[:16]
        return f"{self.file.relative_to(ROOT)}:{source}:{self.number}"


def python_mutants(file: Path) -> Iterator[Mutant]:
    """Give mutmut's mutants, but those of texts."""
    from libcst import BaseString, Module
    from mutmut.mutation.file_mutation import create_mutations

    module, mutations, _, _ = create_mutations(str(file), file.read_text())
    code = Module(body=[]).code_for_node
    for number, mutation in enumerate(mutations):
        old, new = mutation.original_node, mutation.mutated_node
        if isinstance(old, BaseString):
            continue

        def text(old: object = old, new: object = new) -> str:
            changed = module.deep_replace(old, new)
            return str(changed.code)

        change = " -> ".join(" ".join(code(node).split()) for node in (old, new))
        yield Mutant(file=file, number=number, change=change, text=text)


# Comments, strings, templates and regular expressions stay.
_LITERALS = re.compile(
    r"""//[^\n]*|/\*.*?\*/|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"|`(?:\\.|[^`\\])*`"""
    r"""|(?<=[=(,:] )/(?:\\.|[^/\\\n])+/|(?<=[(])/(?:\\.|[^/\\\n])+/""",
    re.DOTALL,
)
_SWAPS = {
    "===": "!==", "!==": "===", "<=": "<", ">=": ">", "<": "<=", ">": ">=", "&&": "||",
    "||": "&&", "??": "&&", "+": "-", "-": "+", "*": "/", "/": "*", "+=": "-=", "-=": "+=",
    "true": "false", "false": "true", "min": "max", "max": "min", "!": "",
}  # fmt: skip
_TOKENS = re.compile(
    r"(?<= )(?:===|!==|<=|>=|&&|\|\||\?\?|\+=|-=|[<>+*/-])(?= )"
    r"|\b(?:true|false)\b|(?<=Math\.)(?:min|max)\b|!(?=[\w(])|(?<![\w.#])\d+(?![\w.])"
)


def script_mutants(file: Path) -> Iterator[Mutant]:
    """Give mutants of operators, conditions and constants of a script."""
    source = file.read_text()
    code = _LITERALS.sub(lambda literal: re.sub(r"[^\n]", " ", literal[0]), source)
    for number, token in enumerate(_TOKENS.finditer(code)):
        old = token[0]
        new = str(int(old) + 1) if old.isdigit() else _SWAPS[old]
        start, end = token.span()
        line = source[source.rfind("\n", 0, start) + 1 : start].strip()
        rest = source[end:].split("\n", 1)[0]
        yield Mutant(
            file=file,
            number=number,
            change=f"{line}{old}{rest} -> {line}{new}{rest}",
            text=lambda start=start, end=end, new=new: source[:start] + new + source[end:],
        )


def mutants(row: Row, sample: int) -> list[Mutant]:
    """Draw mutants of a row, always the same."""
    every = [
        mutant
        for file in row.files()
        for mutant in (python_mutants if file.suffix == ".py" else script_mutants)(file)
        if mutant.name not in row.equivalent
    ]
    random.Random(0).shuffle(every)
    return every[:sample]


def run_tests(row: Row, tree: Path, *, seconds: float, keep_bytecode: bool = False) -> str:
    """Run a row's tests on a tree, in a fork: "survived", "killed" or "timeout"."""
    started = time.monotonic()
    if (pid := os.fork()) == 0:
        status = 70
        try:
            os.setsid()
            log = os.open(tree.parent / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.chdir(tree)
            sys.dont_write_bytecode = not keep_bytecode
            folders = [str(tree / part) for part in (".", "training", "serving")]
            sys.path[:0] = folders
            os.environ["PYTHONPATH"] = os.pathsep.join(folders)
            import pytest

            status = int(pytest.main([*OPTIONS, *row.tests]))
        finally:
            os._exit(status)
    while not (done := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() - started > seconds:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return "timeout"
        time.sleep(0.05)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # processes that its tests have left behind
    return "killed" if done[1] else "survived"


def run_row(row: Row, chosen: list[Mutant], tree: Path, results: dict[str, str]) -> None:
    """Run the mutants of a row that have no result, and write their results down."""
    if any(mutant.file.suffix == ".js" for mutant in chosen):  # Python stays: one nursery for all
        sys.path.insert(0, str(tree))
        import_module("tests.launcher").prepare()
    started = time.monotonic()
    if run_tests(row, tree, seconds=1800, keep_bytecode=True) != "survived":
        text = (tree.parent / "output.txt").read_text()
        raise SystemExit(f"{row.module}: its tests fail without a mutant\n{text[-3000:]}")
    limit = 30 + 4 * (time.monotonic() - started)
    print(f"{row.module}: its tests take {time.monotonic() - started:.0f} s", flush=True)
    for mutant in chosen:
        if mutant.key() in results:
            continue
        copy = tree / mutant.file.relative_to(ROOT)
        whole, times = copy.read_bytes(), copy.stat()
        try:
            copy.write_text(mutant.text())
            outcome = run_tests(row, tree, seconds=limit)
        finally:
            copy.write_bytes(whole)
            os.utime(copy, ns=(times.st_atime_ns, times.st_mtime_ns))  # its bytecode is right again
        with (KEPT / "results.jsonl").open("a") as file:
            record = {"key": mutant.key(), "outcome": outcome, "mutant": mutant.name}
            file.write(json.dumps(record) + "\n")
        if outcome == "survived":
            print(f"  survived  {mutant.name}", flush=True)


def read_results(*, again: bool) -> dict[str, str]:
    """Read what is known of mutants; with again, of those that did not survive."""
    path = KEPT / "results.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    results = {entry["key"]: entry["outcome"] for entry in map(json.loads, lines)}
    return {key: end for key, end in results.items() if not (again and end == "survived")}


def main() -> None:
    """Run the rows of the table whose module is named, and print a score for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("module", nargs="*", help="the beginning of modules' paths; default: all")
    parser.add_argument("--sample", type=int, default=40, help="mutants a module (default 40)")
    parser.add_argument("--again", action="store_true", help="repeat what survived")
    parser.add_argument("--scores", action="store_true", help="print known results, run nothing")
    options = parser.parse_args()
    table = [Row(**row) for row in yaml.safe_load((ROOT / "tests" / "mutate.yaml").read_text())]
    rows = [
        row
        for row in table
        if not options.module or any(row.module.startswith(part) for part in options.module)
    ]
    KEPT.mkdir(exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != ROOT / "tests"]
    if not options.scores:
        shutil.rmtree(KEPT / "tree", ignore_errors=True)
        skipped = shutil.ignore_patterns(".*", "__pycache__", "demo-output")
        tree = Path(shutil.copytree(ROOT, KEPT / "tree", ignore=skipped))
        for name in PRELOADED:
            import_module(name)
    for row in rows:
        chosen = mutants(row, options.sample)
        results = read_results(again=options.again)
        if not options.scores and any(mutant.key() not in results for mutant in chosen):
            if (pid := os.fork()) == 0:  # a row's modules are its own
                try:
                    run_row(row, chosen, tree, results)
                except BaseException as error:
                    print(error if isinstance(error, SystemExit) else repr(error), flush=True)
                finally:
                    os._exit(0)
            os.waitpid(pid, 0)
        results = read_results(again=False)
        count = Counter(results.get(mutant.key(), "not run") for mutant in chosen)
        noticed = count["killed"] + count["timeout"]
        print(f"{row.module}: {noticed} of {noticed + count['survived']} killed", flush=True)
        for mutant in chosen:
            if options.scores and results.get(mutant.key()) == "survived":
                print(f"  survived  {mutant.name}")


if __name__ == "__main__":
    main()
