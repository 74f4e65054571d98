"""The folder of an exported model: graphs, captioner.json, caption.py and README."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from captioner.checkpoint import Checkpoint, load_checkpoint
from captioner.drawing.overlay import drawing_constants
from captioner.errors import ConfigError
from captioner.shared.files import writing
from captioner.shared.paths import expanded
from captioner.trust.familiarity import UNFAMILIAR
from captioner.trust.trust import DOUBTFUL, DOUBTFUL_SUBJECT, Trust, trust_file
from captioner_serving.export.graphs import export_graphs
from captioner_serving.server import limits_of

_APP = Path(__file__).parent / "app"

_LICENCES = {"bundled": "weights for research only, like their data (Flickr8k); program MIT"}
_UNKNOWN = "weights by the checkpoint's author, who sets their licence; program MIT"

# Below these numbers words are doubtful, and photos unfamiliar.
_TRUST = {"doubtful": DOUBTFUL, "doubtful_subject": DOUBTFUL_SUBJECT, "unfamiliar": UNFAMILIAR}


@contextmanager
def new_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Make a folder that appears complete when the block ends without an error.

    Raises:
        ConfigError: the path is a file or a folder that is not empty.
        OutputError: the folder cannot be written.
    """
    target = expanded(path).absolute()
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise ConfigError(f"--to {path} is not an empty folder: name another one")
    with writing(path):
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".captioner-", dir=target.parent) as temporary:
            inside = Path(temporary) / target.name
            inside.mkdir()
            yield inside
            inside.replace(target)


def write_folder(checkpoint: str | os.PathLike[str], folder: Path) -> None:
    """Export a checkpoint into an existing folder.

    Raises CheckpointError: the checkpoint cannot be used, or a part of it cannot be exported.
    """
    loaded = load_checkpoint(checkpoint)
    graphs = export_graphs(loaded, folder)
    if has_trust := Trust.for_checkpoint(checkpoint) is not None:
        shutil.copyfile(trust_file(checkpoint), folder / "trust.safetensors")
    about = {**_describe(loaded, has_trust=has_trust), **graphs}
    text = json.dumps(about, indent=1, ensure_ascii=False)
    (folder / "captioner.json").write_text(text + "\n", encoding="utf-8")
    shutil.copy(_APP / "caption.py", folder)
    readme = (_APP / "README.md").read_text(encoding="utf-8")
    (folder / "README.md").write_text(readme.format_map(about), encoding="utf-8")


def _describe(checkpoint: Checkpoint, *, has_trust: bool) -> dict[str, Any]:
    vocabulary = checkpoint.vocabulary
    return {
        "format": 2,
        "name": checkpoint.name,
        "version": checkpoint.version,
        "licence": _LICENCES.get(checkpoint.name, _UNKNOWN),
        "limits": limits_of([checkpoint.name]),
        "transform": asdict(checkpoint.transform),
        "generation": asdict(checkpoint.generation),
        "tokenizer": vocabulary.tokenizer,
        "styles": list(vocabulary.styles),
        "silent": list(vocabulary.never_generated),
        "drawing": drawing_constants(),
        "vocabulary": list(vocabulary.words),
        "trust": _TRUST if has_trust else None,
    }
