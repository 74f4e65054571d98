"""On what a command computes, and how exactly: the same options for every command."""

from __future__ import annotations

from argparse import ArgumentParser, _ArgumentGroup

__all__ = ["add_machine_arguments"]


def add_machine_arguments(parser: ArgumentParser | _ArgumentGroup, *, dtype: bool = True) -> None:
    """Declare `--device`, and `--dtype` unless the command has its own way with that."""
    parser.add_argument(
        "--device", default="auto", metavar="NAME", help="auto, cpu or cuda; default: auto"
    )
    if dtype:
        parser.add_argument(
            "--dtype",
            default="auto",
            metavar="NAME",
            help="auto (bfloat16 where it is fast), float32, bfloat16",
        )
