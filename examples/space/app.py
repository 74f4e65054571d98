"""Captioner as a Space of Hugging Face; its card is README.md beside this file."""

from __future__ import annotations

import sys

from captioner.cli import main

sys.exit(main(["serve", "--space", *sys.argv[1:]]))
