"""The `captioner` command: a table of verbs; the module of a verb is imported when it is called.

A verb's module has `HELP` (one line), `EXAMPLES`, `add_arguments(parser)` and `run(arguments)`.
`run` returns the exit status. torch is imported only in `run`.
"""

from __future__ import annotations

import argparse
import codecs
import errno
import io
import os
import re
import sys
import warnings
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import NamedTuple, NoReturn

from captioner import __version__
from captioner.errors import CaptionerError, ConfigError
from captioner.shared.text import printable


class Verb(NamedTuple):
    """A verb, which is a module of PACKAGE.commands: its package and its line in the help."""

    package: str
    summary: str
    takes_fields: bool = False  # accepts `--any.field value`


VERBS = {
    "caption": Verb("captioner", "caption photos and show where the model looked"),
    "serve": Verb("captioner_serving", "serve the web page and the HTTP API"),
    "batch": Verb("captioner_serving", "caption many photos; resumes after an interruption"),
    "convert": Verb("captioner_serving", "convert the records of a batch to other formats"),
    "export": Verb("captioner_serving", "export a model to a folder that needs no PyTorch"),
    "prepare": Verb("captioner_training", "prepare a data set for training"),
    "train": Verb("captioner_training", "train a model from a recipe", takes_fields=True),
    "evaluate": Verb("captioner_training", "score a checkpoint on a captioned split"),
    "average": Verb("captioner_training", "average the weights of checkpoints"),
    "trust": Verb("captioner_training", "fit the trust of a checkpoint"),
    "push": Verb("captioner_training", "upload a checkpoint to the Hugging Face Hub"),
}


class _Parser(argparse.ArgumentParser):
    """A parser that suggests the closest option or verb."""

    def error(self, message: str) -> NoReturn:
        """Add a suggestion to the error of ArgumentParser."""
        option = re.search(r"unrecognized arguments: .*?(--[\w.-]+)", message)
        verb = re.search(r"argument VERB: invalid choice: '([^']*)'", message)
        if misspelled := option or verb:
            names = self._option_string_actions if option else VERBS
            near = get_close_matches(misspelled[1], names, 1)
            message += f"; did you mean {near[0]}?" if near else ""
        super().error(message)


_EPILOG = """Run 'captioner VERB --help' for the options of a verb, with examples.

Exit status: 0 success; 1 something failed, see standard error; 2 wrong usage."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # file names may be invalid UTF-8
            stream.reconfigure(errors="captioner")
    # Pillow warns about odd metadata that does not matter here.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    try:
        status = _dispatch(arguments)
        if sys.stdout is not None:  # closed by the shell (`>&-`)
            sys.stdout.flush()
        return status
    except CaptionerError as error:
        print(f"captioner: {printable(str(error))}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except OSError as error:
        is_full = error.errno == errno.ENOSPC
        if not is_full and not isinstance(error, BrokenPipeError):
            raise
        # The flush at exit must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if is_full:
            print("captioner: standard output cannot be written: the disk is full", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _encode_anything(error: UnicodeError) -> tuple[str | bytes, int]:
    """Write invalid file names unchanged; escape characters that the console cannot show."""
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeEncodeError:
        return codecs.backslashreplace_errors(error)


codecs.register_error("captioner", _encode_anything)


def _dispatch(arguments: list[str]) -> int:
    if arguments and arguments[0] in VERBS:
        return _run(*arguments)
    width = max(map(len, VERBS))
    table = "\n".join(f"  {name:<{width}}  {verb.summary}" for name, verb in VERBS.items())
    parser = _Parser(
        prog="captioner",
        usage="captioner [--version] VERB ...",
        description=f"Caption photos, and show where each word comes from.\n\n{table}",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"captioner {__version__}")
    parser.add_argument("verb", choices=VERBS, metavar="VERB", help=argparse.SUPPRESS)
    if arguments:
        parser.parse_args(arguments)  # exits
    parser.print_help(sys.stderr)
    return 2


def _run(name: str, *arguments: str) -> int:
    verb = import_module(f"{VERBS[name].package}.commands.{name}")
    parser = _Parser(
        prog=f"captioner {name}",
        description=verb.HELP,
        epilog=verb.EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    verb.add_arguments(parser)
    fields = _add_fields(parser, arguments) if VERBS[name].takes_fields else {}
    parsed = parser.parse_args(arguments)
    parsed.fields = {field: getattr(parsed, place) for place, field in fields.items()}
    status: int = verb.run(parsed)
    return status


def _add_fields(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> dict[str, str]:
    """Add an option for every `--a.b` in the arguments; return the fields by their `dest`."""
    fields = {}
    for argument in arguments:
        option = argument.partition("=")[0]
        if option == "--":
            break
        if option.startswith("--") and option not in parser._option_string_actions:
            place = f"field {option}"
            parser.add_argument(option, dest=place, help=argparse.SUPPRESS, metavar="VALUE")
            fields[place] = option.removeprefix("--").replace("-", "_")
    return fields
