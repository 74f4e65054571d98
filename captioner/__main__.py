"""The `captioner` command, also `python -m captioner` for a checkout that is not installed."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """Run the command and return its exit status; Ctrl-C ends even its imports in silence."""
    heard = signal.getsignal(signal.SIGINT)
    if heard is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from captioner.cli import main as command

    signal.signal(signal.SIGINT, heard)
    return command()


if __name__ == "__main__":
    sys.exit(main())
