"""The two Java programs in pycocoevalcap's wheel: the PTB tokenizer and METEOR 1.5.

They are started here and not through pycocoevalcap's classes: its tokenizer writes a file into the
installation, which may be read-only, and its METEOR waits for itself for ever where Java has died.
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

__all__ = ["check_java", "meteor_table", "tokenize_ptb"]

Words = Sequence[str]

_TOKENIZER = "tokenizer/stanford-corenlp-3.4.1.jar"
_METEOR = "meteor/meteor-1.5.jar"
_CHUNKS = 20  # of METEOR's numbers; words of caption and reference are 0 and 1, matched 21 and 22
_SECONDS = 1800  # METEOR takes a minute for COCO's 5,000 images


def check_java() -> None:
    """Say before any work whether the Java programs can run.

    Raises:
        MissingExtraError: pycocoevalcap is not installed.
        DataError: there is no Java.
    """
    _jar(_TOKENIZER)
    if shutil.which("java") is None:
        raise DataError(
            "pycocoevalcap's tokenizer and METEOR run on Java: install a Java runtime, or leave "
            "out --official"
        )


def tokenize_ptb(texts: Sequence[str]) -> list[list[str]]:
    """Split captions into COCO's tokens: PTB's, in lower case, without punctuation.

    Raises MissingExtraError, DataError: see check_java; or Java died.
    """
    check_java()
    from pycocoevalcap.tokenizer.ptbtokenizer import PUNCTUATIONS

    program = ["-cp", _jar(_TOKENIZER), "edu.stanford.nlp.process.PTBTokenizer"]
    lines = [" ".join(text.split()) for text in texts]  # a caption is a line, whatever is in it
    split = _run([*program, "-preserveLines", "-lowerCase"], lines, count=len(lines))
    return [[word for word in line.split() if word not in PUNCTUATIONS] for line in split]


def meteor_table(references: Sequence[Sequence[Words]], captions: Sequence[Words]) -> Table:
    """Count what METEOR 1.5 needs of each image, from tokens; its score is in percent.

    Raises MissingExtraError, DataError: see check_java; or Java died.
    """
    check_java()
    questions = []
    for texts, caption in zip(references, captions, strict=True):
        parts = (" ".join(words).replace("|||", " ") for words in (*texts, caption))
        questions.append(" ||| ".join(["SCORE", *parts]))
    answers = _meteor(questions, count=len(questions))
    try:
        rows = np.array([[float(number) for number in line.split()] for line in answers])
    except ValueError as error:
        raise DataError(f"METEOR answered with something that is not a number: {error}") from error
    # In a sum, METEOR leaves out the one chunk of a caption that is its reference word for word.
    same = (rows[:, _CHUNKS] == 1) & (rows[:, 0] == rows[:, 1])
    same &= (rows[:, _CHUNKS + 1] == rows[:, 0]) & (rows[:, _CHUNKS + 2] == rows[:, 1])
    rows[same, _CHUNKS] = 0
    return Table(rows, _meteor_of_sums)


def _meteor_of_sums(sums: Floats) -> Floats:
    """Let METEOR score sums (..., 23) of its numbers: (...), in percent."""
    flat = sums.reshape(-1, sums.shape[-1])
    questions = [" ||| ".join(["EVAL", " ".join(map(str, row))]) for row in flat]
    # One score for the only segment, and the same again for the whole.
    scores = [float(line) for line in _meteor(questions, count=2 * len(questions))[::2]]
    return 100 * np.array(scores).reshape(sums.shape[:-1])


def _meteor(lines: Sequence[str], *, count: int) -> list[str]:
    options = ["-", "-", "-stdio", "-l", "en", "-norm"]
    return _run(["-Xmx2G", "-jar", _jar(_METEOR), *options], lines, count=count)


def _jar(name: str) -> str:
    spec = find_spec("pycocoevalcap")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError("scoring with METEOR and on PTB tokens", "eval")
    return str(Path(spec.submodule_search_locations[0]) / name)


def _run(arguments: Sequence[str], lines: Sequence[str], *, count: int) -> list[str]:
    """Give a Java program its lines, and take `count` lines back.

    Raises DataError: it could not be started, failed, or answered with fewer lines.
    """
    name = Path(next(one for one in arguments if one.endswith(".jar"))).name
    try:
        done = subprocess.run(
            ["java", "-Dfile.encoding=UTF-8", *arguments],
            input="".join(f"{line}\n" for line in lines).encode(),
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DataError(f"Java ({name}) failed: {error}") from error
    answer = done.stdout.decode(errors="replace").split("\n")[:-1]
    if done.returncode or len(answer) != count:
        errors = done.stderr.decode(errors="replace").strip().splitlines()
        raise DataError(
            f"Java ({name}) ended with exit status {done.returncode} after {len(answer):,} of "
            f"{count:,} lines{': ' + errors[-1] if errors else ''}"
        )
    return answer
