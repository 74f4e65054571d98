"""`captioner push CHECKPOINT USER/MODEL`: upload a checkpoint to the Hugging Face Hub."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from captioner.hub import CARD, CHECKPOINT, TRUST, push_files, repository_name
from captioner.shared.paths import checkpoint_file
from captioner.shared.text import printable

HELP = "Upload a checkpoint, its trust and a model card to the Hugging Face Hub."
EXAMPLES = """examples:
  captioner push runs/coco user/model --license cc-by-4.0 --data "COCO 2017"
  captioner push runs/coco user/model --private
  captioner push runs/coco user/model --dry-run > card.md

Needs a token with write access: `hf auth login`, or the variable HF_TOKEN. The address of the model
is printed. An existing model card is kept, unless --replace-card is used."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("checkpoint", metavar="CHECKPOINT", help="a run folder or a file")
    add("repository", metavar="USER/MODEL",
        help="name of the repository, created if it does not exist")  # fmt: skip
    add("--private", action="store_true", help="make a private repository")
    add("--revision", metavar="BRANCH", help="upload to this branch; default: main")
    add("--dry-run", action="store_true", help="print the card and list the files, upload nothing")
    card = parser.add_argument_group("model card")
    add = card.add_argument
    add("--license", metavar="ID", help="licence, as the Hub writes it: mit, cc-by-4.0, other")
    add("--data", metavar="TEXT", help="names of the training data; default: the recipe's folders")
    add("--replace-card", action="store_true", help="replace an existing card")


def run(arguments: argparse.Namespace) -> int:
    """Upload, and print the address of the model."""
    from captioner.checkpoint import load_checkpoint
    from captioner.trust.trust import Trust, trust_file
    from captioner_training.report.card import write_card

    name = repository_name(arguments.repository, arguments.revision)
    path = checkpoint_file(arguments.checkpoint)
    checkpoint = load_checkpoint(path)
    trust = trust_file(path)
    has_trust = Trust.for_checkpoint(path) is not None
    if trust.exists() and not has_trust:
        _say(f"{trust} belongs to other weights and is not uploaded")
    card, missing = write_card(
        checkpoint,
        path.parent,
        repository=arguments.repository,
        has_trust=has_trust,
        license=arguments.license,
        data=arguments.data,
    )
    for part in missing:
        _say(f"the model card has no {part}; --{part} adds it")
    files: dict[str, Path | bytes] = {CHECKPOINT: path}
    files |= {TRUST: trust} if has_trust else {}
    files[CARD] = card.encode(errors="backslashreplace")
    if arguments.dry_run:
        for file, content in files.items():
            size = len(content) if isinstance(content, bytes) else content.stat().st_size
            _say(f"would upload {file} ({size:,} bytes) to {name}")
        print(card, end="")
        return 0
    address, kept = push_files(
        name, files, private=arguments.private, replace_card=arguments.replace_card
    )
    if kept:
        _say(f"{CARD} of {name} is kept; --replace-card replaces it")
    print(address)
    return 0


def _say(text: str) -> None:
    print(f"captioner: {printable(text)}", file=sys.stderr)
