"""The folder of an exported model: graphs, captioner.json, caption.py and README."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from captioner.checkpoint import Checkpoint, load_checkpoint
from captioner.drawing.tables import drawing_tables
from captioner.errors import ConfigError
from captioner.files import writing
from captioner.paths import expanded
from captioner.trust.consensus import Consensus
from captioner.trust.trust import Trust
from captioner_serving.export.graphs import Graphs, export_graphs

__all__ = ["new_folder", "write_folder"]

_APP = Path(__file__).parent / "app" / "caption.py"

_LICENCES = {
    "bundled": "weights: for research, as Flickr8k is, of which they are made; program: MIT"
}
_UNKNOWN = "weights: see the checkpoint's author; program: MIT"

_README = """# {name} {version}, exported from Captioner

A photo in, a sentence out, and for every word the place where the model looked. Neither PyTorch nor
Captioner is needed.

    pip install numpy pillow onnxruntime
    python caption.py photo.jpg
    python caption.py photo.jpg --overlay dog.png --word dog
    python caption.py *.jpg --json --attention > captions.jsonl

In a browser, from any static host; the photo never leaves the device:

    python -m http.server

| file | what it is |
| --- | --- |
| `encoder.onnx` | squares `pixels`, uint8 (B, 3, {size}, {size}) -> {state} |
| `step.onnx` | a step of beam search for B images with K hypotheses |
| `captioner.json` | vocabulary, transform, settings of generation, colours, name and licence |
| `consensus.i8` | coefficients that rank the sentences of a beam, if the checkpoint has them |
| `index.html`, `browser/` | the page |
| `caption.py` | everything between a photo and its record, in one file |

Licence: {licence}.
"""


@contextmanager
def new_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Make a folder that appears complete when the block ends without an error.

    Raises:
        ConfigError: the path is a file or a folder that is not empty.
        OutputError: it cannot be written.
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


def write_folder(
    checkpoint: str | os.PathLike[str],
    folder: Path,
    *,
    report: Callable[[str], None] = lambda _: None,
) -> None:
    """Export a checkpoint into an existing folder.

    Args:
        checkpoint: its file.
        folder: for the exported files.
        report: called with the name of each step before it.

    Raises:
        CheckpointError: the checkpoint cannot be used, or a part of it cannot be exported.
        MissingExtraError: the extra `onnx` is not installed.
    """
    loaded = load_checkpoint(checkpoint)
    graphs = export_graphs(loaded, folder, report=report)
    trust = Trust.beside(checkpoint)
    consensus = None if trust is None else trust.consensus
    if consensus is not None:
        consensus.slopes.tofile(folder / "consensus.i8")
    about = _describe(loaded, graphs, consensus)
    text = json.dumps(about, indent=1, ensure_ascii=False)
    (folder / "captioner.json").write_text(text + "\n", encoding="utf-8")
    shutil.copy(_APP, folder)
    readme = _README.format(
        name=about["name"],
        version=about["version"],
        size=loaded.transform.size,
        state=", ".join(f"`{name}`" for name in about["state"]),
        licence=about["licence"],
    )
    (folder / "README.md").write_text(readme, encoding="utf-8")


def _describe(
    checkpoint: Checkpoint, graphs: Graphs, consensus: Consensus | None
) -> dict[str, Any]:
    vocabulary = checkpoint.vocabulary
    return {
        "format": 1,
        "name": checkpoint.name,
        "version": checkpoint.version,
        "licence": _LICENCES.get(checkpoint.name, _UNKNOWN),
        "state": list(graphs.state),
        "grid": {"rows": graphs.rows, "columns": graphs.columns},
        "transform": asdict(checkpoint.transform),
        "generation": asdict(checkpoint.generation),
        "tokenizer": vocabulary.tokenizer,
        "styles": list(vocabulary.styles),
        "silent": list(vocabulary.silent),
        "drawing": drawing_tables(),
        "vocabulary": list(vocabulary.words),
        "consensus": None if consensus is None else _describe_consensus(consensus),
    }


def _describe_consensus(consensus: Consensus) -> dict[str, Any]:
    """Return everything but the slopes."""
    numbers = {
        name: [float(f"{value:.7g}") for value in getattr(consensus, name)]
        for name in ("rarity", "usual", "scales", "middle")
    }
    return {"grams": [*consensus.rows], **numbers}
