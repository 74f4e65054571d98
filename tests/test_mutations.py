"""The table of mistakes moves with the tree; `make mutations` makes them."""

from __future__ import annotations

from tests.mutations import ROOT, table


def test_what_a_mistake_replaces_stands_there_once_and_its_tests_exist() -> None:
    problems = []
    for mutation in table():
        try:
            mutation.made((ROOT / mutation.file).read_text())
            for test in mutation.tests:
                file, _, name = test.partition("::")
                if f"def {name}" not in (ROOT / file).read_text():
                    problems.append(f"{mutation.breaks}: {file} has no {name}")
        except (OSError, ValueError) as error:
            problems.append(str(error))
    assert problems == []
