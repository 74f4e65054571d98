"""README.md of an exported folder: how to run it, its files, and the graphs' inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

_TEXT = """# {name} {version}, exported from Captioner

Captions photos and shows, for every word, where the model looked. It needs neither PyTorch nor
Captioner.

    pip install numpy pillow onnxruntime
    python caption.py photo.jpg
    python caption.py photo.jpg --overlay dog.png --word dog
    python caption.py *.jpg --json --attention > captions.jsonl

To use it in a browser, run this command here, or copy this folder to any static web host. Photos
stay on the visitor's device.

    python -m http.server

| file | what it is |
| --- | --- |
| `encoder.onnx` | the encoder: turns square photos into the initial state of the decoder |
| `step.onnx` | one step of beam search for B images with K hypotheses each |
| `captioner.json` | vocabulary, transform, generation settings, colours, name and licence |
| `trust.safetensors` | statistics for trust, familiarity and consensus, if available |
| `index.html`, `browser/` | the web page |
| `caption.py` | a program in one file: opens photos, runs the search, writes records and overlays |

## Graphs

B is the number of images. K is the number of hypotheses per image before a step, and K' the number
after it, which the input `beam` sets. F is the length of the longest list of forbidden words.

{tables}

Licence: {licence}.
"""
# The outputs of the step that belong to the K hypotheses before it.
_BEFORE = {"end_logs", "attention", "gate", "heads"}


def write_readme(folder: Path, about: dict[str, Any]) -> None:
    """Write the README.md of an exported folder; `about`: the content of captioner.json."""
    tables = "\n\n".join(_tables(folder))
    names = ("name", "version", "licence")
    text = _TEXT.format(**{name: about[name] for name in names}, tables=tables)
    (folder / "README.md").write_text(text, encoding="utf-8")


def _tables(folder: Path) -> Iterator[str]:
    import onnxruntime

    for graph in ("encoder", "step"):
        session = onnxruntime.InferenceSession(folder / f"{graph}.onnx")
        inputs = [_row(node) for node in session.get_inputs()]
        outputs = [_row(node, extended=graph == "step") for node in session.get_outputs()]
        for kind, rows in (("input", inputs), ("output", outputs)):
            yield "\n".join(
                [f"| {kind} of {graph}.onnx | shape | type |", "| --- | --- | --- |", *rows]
            )


def _row(node: Any, *, extended: bool = False) -> str:
    """Return the table row of an input or output; `extended`: it is an output of the step."""
    names = ["B", "K'" if extended and node.name not in _BEFORE else "K", "F"]
    sizes = [
        str(size) if isinstance(size, int) else names[at] for at, size in enumerate(node.shape)
    ]
    kind = node.type.removeprefix("tensor(").removesuffix(")").replace("float", "float32")
    return f"| `{node.name}` | ({', '.join(sizes)}) | {kind} |"
