"""Files and links in the documentation exist, and its Python code runs."""

from __future__ import annotations

import doctest
import json
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from captioner import Caption, ImageNotFoundError, errors
from captioner.cli import main
from captioner.errors import CaptionerError
from captioner_serving.server import errors as server_errors
from captioner_serving.server.app import Application
from tests.launcher import Run
from tests.training.runs import write_own

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(ROOT / "docs").glob("*.md"),
    ROOT / "assets" / "MODEL_CARD.md",
]
_OURS = re.compile(r"`((?:captioner|training|serving|tests|assets|docs|examples)/[\w./-]*[\w/])`")
_LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_named_files_and_links_are_there(document: Path) -> None:
    text = document.read_text()
    named = [ROOT / name for name in _OURS.findall(text)]
    named += [document.parent / link for link in _LINK.findall(text)]
    assert not [str(path) for path in named if not path.exists()]


def test_examples_in_docstrings_are_true() -> None:
    attempted = 0
    for package in ("captioner", "training/captioner_training", "serving/captioner_serving"):
        base = (ROOT / package).parent
        for path in (ROOT / package).rglob("*.py"):
            if ">>> " in path.read_text():
                name = ".".join(path.relative_to(base).with_suffix("").parts)
                result = doctest.testmod(import_module(name.removesuffix(".__init__")))
                assert result.failed == 0, name
                attempted += result.attempted
    assert attempted > 20


def _kinds(root: type[CaptionerError]) -> Iterator[type[CaptionerError]]:
    yield root
    for kind in root.__subclasses__():
        yield from _kinds(kind)


def test_every_error_that_the_server_answers_with_is_listed() -> None:
    assert Application  # all of the server has been imported, and its errors with it
    table = re.findall(
        r"^\| (\d{3}[\d, ]*) \| (`.*?`) \|", (ROOT / "docs/api.md").read_text(), re.M
    )
    listed = {
        kind: {int(status) for status in statuses.split(",")}
        for statuses, kinds in table
        for kind in re.findall("`(.*?)`", kinds)
    }
    # Of any Python object, the root of all, of a caption that server and batch give with `review`,
    # and of nobody who could read it.
    elsewhere = {"image-type", "image-error", "untrusted", "client-gone"}
    answered = {kind: status for kind, (status, _) in server_errors.PROBLEMS.items()} | {
        kind.type: server_errors.status_of(kind)
        for kind in _kinds(CaptionerError)
        if issubclass(kind, (errors.ImageError, errors.ConfigError))
    }
    assert listed.keys() == answered.keys() - elsewhere
    assert all(status in listed[kind] for kind, status in answered.items() if kind in listed)


def test_every_error_of_a_photo_is_listed() -> None:
    text = (ROOT / "docs/batch.md").read_text()
    photos = {kind.type for kind in _kinds(errors.ImageError) if kind.__module__ == errors.__name__}
    assert all(f"`{kind}`" in text for kind in photos - {"image-type", "image-error", "untrusted"})


def test_the_python_of_the_documents_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "assets").symlink_to(ROOT / "assets")
    monkeypatch.chdir(tmp_path)
    run("README.md")
    printed = capsys.readouterr().out.splitlines()[0]
    assert main(["caption", "assets/samples/coffee.jpg"]) == 0  # what `make demo` runs
    assert capsys.readouterr().out.strip() == printed == "a cup of coffee sitting on a red plate"
    assert (tmp_path / "cup.png").exists()
    second = run("docs/records.md")
    good, bad = second["results"]
    assert isinstance(good, Caption) and len(good.alternatives) == 2
    assert isinstance(bad, ImageNotFoundError)
    assert "missing.jpg" in capsys.readouterr().out.splitlines()[-1]


def run(document: str) -> dict[str, Any]:
    (snippet,) = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(snippet, names)
    return names


def test_the_score_and_the_loss_of_contributing_train(
    run_captioner: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    (tmp_path / "my_parts.py").write_text("\n".join(snippets))
    write_own(tmp_path, train=20, val=5)
    monkeypatch.chdir(tmp_path)
    parts = ("--decoder.score", "my_parts:Bilinear")
    loss = ("--stages.1.objectives.my_parts:ShortAttention", "0.1")
    done = run_captioner("train", "own.yaml", "--out", "run", *parts, *loss)
    assert done.returncode == 0, done.stderr
    log = (tmp_path / "run/log.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in log]
    # The squares of the weights of 4 cells, which sum to 1, have a sum between 1/4 and 1.
    name = "loss/my_parts:ShortAttention"
    losses = [row[name] for row in rows if name in row]
    assert len(losses) >= 2 and all(-0.1001 <= loss <= -0.0249 for loss in losses)


@pytest.mark.parametrize(
    "document", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name
)
def test_pages_and_table_cells_are_short(document: Path) -> None:
    lines = document.read_text().splitlines()
    assert len(lines) <= 100
    cells = [cell for line in lines if line.startswith("|") for cell in line.split(" | ")]
    assert [cell for cell in cells if len(cell.split()) > 25] == []
