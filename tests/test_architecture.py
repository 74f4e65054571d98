"""The plan of docs/design.md: no circle of imports, few floors, files of one noun."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {
    "captioner": ROOT / "captioner",
    "captioner_training": ROOT / "training" / "captioner_training",
    "captioner_serving": ROOT / "serving" / "captioner_serving",
}
FILES = [path for folder in FOLDERS.values() for path in folder.rglob("*.py")]


def graph(package: str) -> dict[str, set[str]]:
    """Name what each module imports of its own package, for type checking too."""
    folder = FOLDERS[package]
    paths = {
        ".".join((package, *path.relative_to(folder).with_suffix("").parts)): path
        for path in folder.rglob("*.py")
        if path.name != "__init__.py"  # a room's own file only describes it
    }
    uses: dict[str, set[str]] = {}
    for module, path in paths.items():
        names: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        uses[module] = names & paths.keys()
    return uses


def longest_way_down(uses: dict[str, set[str]], module: str, above: tuple[str, ...]) -> int:
    assert module not in above, " -> ".join((*above, module))
    return 1 + max(
        (longest_way_down(uses, lower, (*above, module)) for lower in uses[module]), default=0
    )


@pytest.mark.parametrize("package", FOLDERS)
def test_no_imports_run_in_a_circle(package: str) -> None:
    uses = graph(package)
    for module in uses:
        longest_way_down(uses, module, ())


def test_training_has_at_most_eight_floors() -> None:
    uses = graph("captioner_training")
    floors = {module: longest_way_down(uses, module, ()) for module in uses}
    assert max(floors.values()) <= 8, max(floors, key=lambda module: floors[module])


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_is_one_noun_of_at_most_300_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 300
