"""JavaScript for tests: packages from npm, and modules that import them."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

import pytest
from filelock import FileLock

from tests.conftest import need

_OFFLINE = re.compile(
    r"ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|ERR_SOCKET_TIMEOUT"
    r"|ENOTCACHED|E403|E50\d|CERT|network"
)
_NPM = ("install", "--no-audit", "--no-fund", "--loglevel=error", "--fetch-retries=1")


def install(config: pytest.Config, *packages: str) -> Path:
    """Return a folder with npm packages, such as "@gradio/client@2.7.0"; skip without a network.

    pytest's cache keeps it, or a folder of temporary files.
    """
    cache = getattr(config, "cache", None)  # of a plugin that can be turned off
    shared = Path(tempfile.gettempdir(), "captioner-npm")
    name = re.sub(r"[^\w.-]+", "_", "-".join(sorted(packages)))
    folder = (shared if cache is None else cache.mkdir("npm")) / name
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):  # workers share it
        if (folder / "node_modules").is_dir():
            return folder
        command = [need("npm"), *_NPM, *packages]
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if run.returncode != 0:
        said = run.stdout + run.stderr
        if _OFFLINE.search(said):
            pytest.skip(f"npm has no network for {', '.join(packages)}")
        pytest.fail(said, pytrace=False)
    return folder


def run_module(source: str, folder: Path, *arguments: str) -> str:
    """Run the source of a module beside the packages of a folder; return its standard output."""
    command = [need("node"), "--input-type=module", "--eval", source, "--", *arguments]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    return run.stdout
