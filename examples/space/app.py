"""Captioner as a Space of Hugging Face; its card is README.md beside this file."""

from __future__ import annotations

import sys

from captioner.cli import main

# A Space listens on all addresses, behind a proxy of a private network, inside a frame.
OPTIONS = [
    *("--host", "0.0.0.0", "--trusted-proxy", "10.0.0.0/8"),
    *("--frame-ancestor", "https://huggingface.co"),
]

sys.exit(main(["serve", *OPTIONS, *sys.argv[1:]]))
