"""The README's Python runs as it stands, beside the sample photos."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from captioner import Caption, ImageNotFoundError

ROOT = Path(__file__).resolve().parent.parent


def test_the_python_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "assets").symlink_to(ROOT / "assets")
    monkeypatch.chdir(tmp_path)
    (snippet,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(snippet, names)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == str(names["caption"])
    assert len(lines) == 1 + len(names["caption"].words)
    assert (tmp_path / "cup.png").exists() and (tmp_path / "sheet.png").exists()
    good, bad = names["results"]
    assert isinstance(good, Caption) and len(good.alternatives) == 2
    assert isinstance(bad, ImageNotFoundError)
