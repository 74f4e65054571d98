"""`captioner export [CHECKPOINT] --to DIR`: export a model to a folder that needs no PyTorch."""

from __future__ import annotations

import argparse
import sys

from captioner.shared.paths import bundled_checkpoint, checkpoint_file

HELP = "Export a model to a folder that captions without PyTorch, also in a browser."
EXAMPLES = """examples:
  captioner export --to captions
  captioner export model.safetensors --to captions
  python captions/caption.py photo.jpg
  python -m http.server --directory captions

The folder has two ONNX graphs, caption.py, which needs only numpy, pillow and onnxruntime, and
index.html, a page for any static host. Needs: pip install 'captioner[onnx]'. See docs/export.md."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("checkpoint", nargs="?", metavar="CHECKPOINT",
        help="file, run folder or USER/MODEL (Hub); default: bundled")  # fmt: skip
    add("--to", required=True, metavar="DIR", help="a new folder")


def run(arguments: argparse.Namespace) -> int:
    """Export a model, and compare its captions with those of the checkpoint."""
    from captioner_serving.browser.page import add_page
    from captioner_serving.export.folder import new_folder, write_folder
    from captioner_serving.export.parity import check_parity

    checkpoint = checkpoint_file(arguments.checkpoint or bundled_checkpoint())
    with new_folder(arguments.to) as folder:
        _say("exporting the encoder and the decoder ...")
        write_folder(checkpoint, folder)
        _say("comparing captions of onnxruntime and PyTorch ...")
        photos = check_parity(checkpoint, folder)
        _say(f"onnxruntime and PyTorch give the same captions for {photos} photos")
        add_page(folder)
    _say(f"{arguments.to} is ready; its README.md describes it")
    return 0


def _say(text: str) -> None:
    print(f"captioner: {text}", file=sys.stderr, flush=True)
