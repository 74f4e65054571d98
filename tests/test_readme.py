"""The documents' Python runs as it stands, beside the sample photos."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from captioner import Caption, ImageNotFoundError

ROOT = Path(__file__).resolve().parent.parent


def test_the_python_of_the_documents_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "assets").symlink_to(ROOT / "assets")
    monkeypatch.chdir(tmp_path)
    first, second = (run(name) for name in ("README.md", "docs/records.md"))
    assert capsys.readouterr().out.startswith(str(first["caption"]))
    assert (tmp_path / "cup.png").exists() and (tmp_path / "sheet.png").exists()
    good, bad = second["results"]
    assert isinstance(good, Caption) and len(good.alternatives) == 2
    assert isinstance(bad, ImageNotFoundError)


def run(document: str) -> dict[str, Any]:
    (snippet,) = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(snippet, names)
    return names
