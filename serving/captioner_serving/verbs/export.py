"""`captioner export [CHECKPOINT] --to DIR`: the model as a folder that needs no PyTorch."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from captioner.errors import ConfigError
from captioner.paths import bundled_checkpoint, checkpoint_file, expanded

HELP = "Export a model into a folder that captions without PyTorch, in a browser too."
EXAMPLES = """examples:
  captioner export --to captions
  captioner export model.safetensors --to captions --int8 --check ~/photos
  python captions/caption.py photo.jpg
  python -m http.server --directory captions

The folder holds two ONNX graphs, caption.py, which needs numpy, pillow and onnxruntime alone, and
index.html, a page for any static host. Needs: pip install 'captioner[onnx]'. docs/export.md has
the rest."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("checkpoint", nargs="?", metavar="CHECKPOINT", help="default: the bundled one")
    add("--to", required=True, metavar="DIR", help="a new folder")
    add("--int8", action="store_true", help="weights of 8 bits: a quarter of the size")
    add(
        "--check",
        metavar="DIR",
        help="say how many sentences of these photos --int8 leaves as they are",
    )


def run(arguments: argparse.Namespace) -> int:
    """Export, and see that the folder says what the checkpoint says."""
    if arguments.check and not arguments.int8:
        raise ConfigError("--check says what --int8 loses: it needs --int8")
    if arguments.check and not expanded(arguments.check).is_dir():
        raise ConfigError(f"--check {arguments.check} is not a folder")

    from captioner_serving.browser.page import add_page
    from captioner_serving.export.folder import new_folder, write_folder
    from captioner_serving.export.parity import check_parity

    checkpoint = checkpoint_file(arguments.checkpoint or bundled_checkpoint())
    with new_folder(arguments.to) as folder:
        write_folder(checkpoint, folder)
        pictures = check_parity(checkpoint, folder)
        print(
            f"captioner: onnxruntime says the same as torch of {pictures} pictures: "
            f"{_megabytes(folder)}",
            file=sys.stderr,
        )
        if arguments.int8:
            from captioner_serving.export.quantization import quantize

            with tempfile.TemporaryDirectory() as exact:
                shutil.copytree(folder, exact, dirs_exist_ok=True)
                quantize(folder)
                print(f"captioner: in int8: {_megabytes(folder)}", file=sys.stderr)
                if arguments.check:
                    _say_price(Path(exact), folder, expanded(arguments.check))
        add_page(folder)
    print(f"captioner: {arguments.to} is ready; its README.md says how to use it", file=sys.stderr)
    return 0


def _megabytes(folder: Path) -> str:
    size = sum(path.stat().st_size for path in folder.glob("*.onnx"))
    return f"{size / 1e6:.1f} MB"


def _say_price(exact: Path, folder: Path, photos: Path) -> None:
    from captioner_serving.export.price import measure_price

    print(f"captioner: {measure_price(exact, folder, photos)}", file=sys.stderr)
