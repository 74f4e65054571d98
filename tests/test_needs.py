"""What a machine lacks: a test that needs it is skipped and says so, and in CI fails."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROGRAMS, ROOT

LACKING = """
import pytest

@pytest.fixture(scope="session")
def server():
    raise RuntimeError("nothing is started for a test that cannot run")

def test_of_the_browser(server, browser): ...

@pytest.mark.needs("java")
def test_of_java(server): ...

@pytest.mark.needs("exiftool")
def test_of_exiftool(server): ...
"""


@pytest.mark.parametrize(
    ("ci", "status", "ends"), [("", 0, "3 skipped"), ("true", 1, "3 errors"), ("1", 1, "3 errors")]
)
def test_what_is_missing_is_skipped_with_its_reason_and_in_ci_an_error(
    tmp_path: Path, ci: str, status: int, ends: str
) -> None:
    (tmp_path / "test_lacking.py").write_text(LACKING)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-q", "-rsE", "-c", ROOT / "pyproject.toml", "test_lacking.py"],
        cwd=tmp_path,
        env={**os.environ, "PATH": str(tmp_path), "CI": ci, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (status, ""), done.stdout
    assert done.stdout.splitlines()[-1].startswith(ends)
    for program, (_, package) in PROGRAMS.items():
        assert f"{program} is not installed (on Debian: the package {package})" in done.stdout


def test_programs_are_looked_for_in_one_place() -> None:
    for path in (ROOT / "tests").rglob("test_*.py"):
        if path != Path(__file__):
            found = re.search(r"importorskip|executable_path|shutil\.which", path.read_text())
            assert not found, f"{path}: {found}"


def test_ci_installs_them() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    for names, package in PROGRAMS.values():
        assert re.search(rf"command -v {names[0]} .*{package}", script)
