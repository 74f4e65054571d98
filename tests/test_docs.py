"""What the documents name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "assets" / "MODEL_CARD.md"]
_OURS = re.compile(r"`((?:captioner|training|serving|tests|assets|docs|examples)/[\w./-]*[\w/])`")
_LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_named_files_and_links_are_there(document: Path) -> None:
    text = document.read_text()
    named = [ROOT / name for name in _OURS.findall(text)]
    named += [document.parent / link for link in _LINK.findall(text)]
    assert not [str(path) for path in named if not path.exists()]
