"""The structure in docs/design.md: imports, public names."""

from __future__ import annotations

import ast
import graphlib
import importlib
import pkgutil
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path

import pytest

import captioner
import captioner_serving
import captioner_training

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {
    "captioner": ROOT / "captioner",
    "captioner_training": ROOT / "training" / "captioner_training",
    "captioner_serving": ROOT / "serving" / "captioner_serving",
}
MODULES = [
    name
    for package in (captioner, captioner_training, captioner_serving)
    for _, name, _ in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if not name.endswith("__main__")
]
FILES = [path for folder in FOLDERS.values() for path in folder.rglob("*.py")]


@cache
def import_nodes(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """Return the import statements of a file; those inside functions count too."""
    tree = ast.walk(ast.parse(path.read_text()))
    return [node for node in tree if isinstance(node, ast.Import | ast.ImportFrom)]


@pytest.mark.parametrize("package", FOLDERS)
def test_imports_run_one_way(package: str) -> None:
    allowed = {package, "captioner"}
    for path in FOLDERS[package].rglob("*.py"):
        for node in import_nodes(path):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                assert node.level == 0, f"{path}: relative import"
                names = [node.module or ""]
            for name in names:
                top = name.split(".")[0]
                assert top not in FOLDERS or top in allowed, f"{path} imports {name}"


def imports(*packages: str) -> dict[str, set[str]]:
    """Name what each module imports of ours; inside functions and for type checking counts too."""
    known = {name.removesuffix(".__init__") for name in [*MODULES, *FOLDERS]}
    graph: dict[str, set[str]] = {}
    for package in packages:
        for path in FOLDERS[package].rglob("*.py"):
            parts = path.relative_to(FOLDERS[package]).with_suffix("").parts
            name = ".".join((package, *parts)).removesuffix(".__init__")
            imported = set()
            for node in import_nodes(path):
                if isinstance(node, ast.Import):
                    imported |= {alias.name for alias in node.names}
                else:
                    whole = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
                    # "from package import module" imports the module; anything else its home.
                    imported |= {
                        full if full in known else str(node.module) for full in whole.values()
                    }
            graph[name] = (imported & known) - {name}
    return graph


def test_the_paper_imports_nothing_that_only_saves_time() -> None:
    for module, imported in imports("captioner").items():
        if module.startswith(("captioner.model", "captioner.generation")):
            fast = {name for name in imported if name.startswith("captioner.inference")}
            assert not fast, f"{module} imports {fast}"


def test_imports_have_no_cycles() -> None:
    try:
        graphlib.TopologicalSorter(imports(*FOLDERS)).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_what_is_imported_is_named_among_the_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    wanted = [*project["dependencies"], *chain.from_iterable(extras)]
    named = {re.split(r"[^\w.-]", line)[0].lower().replace("_", "-") for line in wanted}
    homes = packages_distributions()
    for path in FILES:
        for node in import_nodes(path):
            is_plain = isinstance(node, ast.Import)
            names = [alias.name for alias in node.names] if is_plain else [node.module or ""]
            for top in {name.split(".")[0] for name in names} - sys.stdlib_module_names:
                known = {home.lower().replace("_", "-") for home in homes.get(top, [top])}
                assert top in FOLDERS or known & named, f"{path} imports {top}"


def test_everything_public_is_there() -> None:
    assert len(captioner.__all__) == len({*captioner.__all__})
    for name in captioner.__all__:
        assert getattr(captioner, name) is not None
    assert set(captioner.__all__) <= set(dir(captioner))
    with pytest.raises(AttributeError, match="nonsense"):
        _ = captioner.nonsense


def test_modules_that_docs_name_say_what_is_public() -> None:
    documents = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    text = "\n".join(path.read_text() for path in documents)
    lines = re.findall(r"^from (captioner[\w.]*) import (.+)$", text, re.M)
    assert len(lines) > 3
    for name, imported in lines:
        names = {part.split(" as ")[0].strip() for part in imported.split(",")}
        assert names <= {*importlib.import_module(name).__all__}, name
    for name in MODULES:
        module = importlib.import_module(name)
        public = getattr(module, "__all__", [])
        assert [item for item in public if not hasattr(module, item)] == [], name


def test_every_exception_is_public() -> None:
    for name, value in vars(captioner.errors).items():
        if isinstance(value, type) and issubclass(value, Exception):
            assert name in captioner.__all__
            assert value.type and value.title
