"""Run the PTB tokenizer and METEOR 1.5, two Java programs of pycocoevalcap.

pycocoevalcap's own classes are not used: its tokenizer writes into the installation folder, which
may be read-only, and its METEOR deadlocks if Java dies.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from captioner.errors import DataError, MissingExtraError
from captioner_training.evaluation.bootstrap import Floats, Table

Words = Sequence[str]

_TOKENIZER = "tokenizer/stanford-corenlp-3.4.1.jar"
_METEOR = "meteor/meteor-1.5.jar"
# Columns of METEOR's statistics.
_TEST_LENGTH, _REFERENCE_LENGTH, _CHUNKS, _TEST_MATCHES, _REFERENCE_MATCHES = 0, 1, 20, 21, 22
_SECONDS = 1800  # timeout
# METEOR prints and reads numbers in the format of the locale.
_OPTIONS = ("-Dfile.encoding=UTF-8", "-Duser.language=en", "-Duser.country=US")


def check_java() -> None:
    """Check that the Java programs can run. Raises MissingExtraError, or DataError without Java."""
    _jar(_TOKENIZER)
    if shutil.which("java") is None:
        raise DataError("--official needs Java: install a Java runtime, or omit --official")


def tokenize_ptb(texts: Sequence[str]) -> list[list[str]]:
    """Split captions into COCO's tokens: PTB tokens in lower case without punctuation."""
    check_java()
    from pycocoevalcap.tokenizer.ptbtokenizer import PUNCTUATIONS

    program = ["-cp", _jar(_TOKENIZER), "edu.stanford.nlp.process.PTBTokenizer"]
    lines = [" ".join(text.split()) for text in texts]  # one line per caption
    split = _run([*program, "-preserveLines", "-lowerCase"], lines, count=len(lines))
    return [[word for word in line.split() if word not in PUNCTUATIONS] for line in split]


def meteor_table(references: Sequence[Sequence[Words]], captions: Sequence[Words]) -> Table:
    """Return the table of METEOR 1.5 in percent, from tokens."""
    check_java()
    requests = []
    for texts, caption in zip(references, captions, strict=True):
        parts = (" ".join(words).replace("|||", " ") for words in (*texts, caption))
        requests.append(" ||| ".join(["SCORE", *parts]))
    rows = _numbers(_meteor(requests, count=len(requests)))
    # When METEOR sums statistics, a caption that equals its reference has no chunk.
    equal = rows[:, _CHUNKS] == 1
    equal &= rows[:, _TEST_LENGTH] == rows[:, _REFERENCE_LENGTH]
    equal &= rows[:, _TEST_MATCHES] == rows[:, _TEST_LENGTH]
    equal &= rows[:, _REFERENCE_MATCHES] == rows[:, _REFERENCE_LENGTH]
    rows[equal, _CHUNKS] = 0
    return Table(rows, _meteor_of_sums)


def _meteor_of_sums(sums: Floats) -> Floats:
    """Return METEOR (...) in percent from sums (..., 23) of its statistics."""
    flat = sums.reshape(-1, sums.shape[-1])
    requests = [" ||| ".join(["EVAL", " ".join(map(str, row))]) for row in flat]
    # METEOR prints the score of the segment and then the same score for the whole.
    scores = _numbers(_meteor(requests, count=2 * len(requests))[::2])
    return 100 * scores.reshape(sums.shape[:-1])


def _numbers(lines: Sequence[str]) -> Floats:
    """Return the numbers of lines as rows. Raises DataError."""
    try:
        return np.array([[float(number) for number in line.split()] for line in lines])
    except ValueError as error:
        raise DataError(f"METEOR returned an invalid line: {error}") from error


def _meteor(lines: Sequence[str], *, count: int) -> list[str]:
    options = ["-", "-", "-stdio", "-l", "en", "-norm"]
    return _run(["-Xmx2G", "-jar", _jar(_METEOR), *options], lines, count=count)


def _jar(name: str) -> str:
    spec = find_spec("pycocoevalcap")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError("scoring with METEOR and on PTB tokens", "eval")
    return str(Path(spec.submodule_search_locations[0]) / name)


def _run(arguments: Sequence[str], lines: Sequence[str], *, count: int) -> list[str]:
    """Write lines to a Java program and return the `count` lines that it prints.

    Raises DataError: the program cannot be started, fails, or prints another number of lines.
    """
    name = Path(next(argument for argument in arguments if argument.endswith(".jar"))).name
    try:
        result = subprocess.run(
            ["java", *_OPTIONS, *arguments],
            input="".join(f"{line}\n" for line in lines).encode(),
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DataError(f"Java ({name}) failed: {error}") from error
    answer = result.stdout.decode(errors="replace").split("\n")[:-1]
    if result.returncode or len(answer) != count:
        errors = result.stderr.decode(errors="replace").strip().splitlines()
        raise DataError(
            f"Java ({name}) ended with exit status {result.returncode} after {len(answer):,} of "
            f"{count:,} lines{': ' + errors[-1] if errors else ''}"
        )
    return answer
