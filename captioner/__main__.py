"""The `captioner` command, also `python -m captioner` for a checkout that is not installed."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """Run the command and return its exit status; Ctrl-C during imports ends it silently."""
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from captioner.cli import main as command

    if is_default:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return command()


if __name__ == "__main__":
    sys.exit(main())
