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
from captioner_training.evaluation.bootstrap import Floats

Words = Sequence[str]

_TOKENIZER = "tokenizer/stanford-corenlp-3.4.1.jar"
_METEOR = "meteor/meteor-1.5.jar"
_SECONDS = 1800  # timeout
# Columns of METEOR's statistics, each for the caption and the reference: words, function words; for
# each stage (exact, stem, synonym, paraphrase) the matched content words and function words; then
# the chunks and all matched words.
_LENGTHS, _FUNCTION_WORDS, _STAGES = slice(0, 2), slice(2, 4), slice(4, 20)
_CHUNKS, _MATCHES = 20, slice(21, 23)
_ALPHA, _BETA, _GAMMA, _DELTA = 0.85, 0.2, 0.6, 0.75
_STAGE_WEIGHTS = (1.0, 0.6, 0.8, 0.6)
# METEOR prints numbers in the format of the locale.
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
    split = _run([*program, "-preserveLines", "-lowerCase"], lines)
    return [[word for word in line.split() if word not in PUNCTUATIONS] for line in split]


def meteor_rows(references: Sequence[Sequence[Words]], captions: Sequence[Words]) -> Floats:
    """Return METEOR's statistics (N, 23) of captions, from tokens."""
    requests = []
    for texts, caption in zip(references, captions, strict=True):
        parts = (" ".join(words).replace("|||", " ") for words in (*texts, caption))
        requests.append(" ||| ".join(["SCORE", *parts]))
    program = ["-Xmx2G", "-jar", _jar(_METEOR), "-", "-", "-stdio", "-l", "en", "-norm"]
    lines = _run(program, requests)
    try:
        rows = np.array([[float(number) for number in line.split()] for line in lines])
    except ValueError as error:
        raise DataError(f"METEOR returned an invalid line: {error}") from error
    # When METEOR sums statistics, a caption that equals its reference has no chunk.
    equal = (rows[:, _CHUNKS] == 1) & (rows[:, _MATCHES] == rows[:, _LENGTHS]).all(axis=1)
    rows[equal, _CHUNKS] = 0
    return rows


def meteor(sums: Floats) -> Floats:
    """Return METEOR 1.5 (...) in percent from sums (..., 23) of statistics.

    These are the formula and the English parameters of Denkowski and Lavie 2014. Two starts of
    Java, which read the paraphrases again, are saved.
    """
    stages = sums[..., _STAGES].reshape(*sums.shape[:-1], 4, 4)
    matches = np.einsum("s,...sk->...k", _STAGE_WEIGHTS, stages)
    content = matches[..., :2], sums[..., _LENGTHS] - sums[..., _FUNCTION_WORDS]
    function = matches[..., 2:], sums[..., _FUNCTION_WORDS]
    found, total = (_DELTA * a + (1 - _DELTA) * b for a, b in zip(content, function, strict=True))
    with np.errstate(divide="ignore", invalid="ignore"):  # without matches
        precision, recall = np.moveaxis(found / total, -1, 0)
        mean = 1 / ((1 - _ALPHA) / precision + _ALPHA / recall)
        fragmentation = sums[..., _CHUNKS] / sums[..., _MATCHES].mean(axis=-1)
        score = mean * (1 - _GAMMA * fragmentation**_BETA)
    return np.asarray(100 * np.nan_to_num(score), np.float64)


def _jar(name: str) -> str:
    spec = find_spec("pycocoevalcap")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError("scoring with METEOR and on PTB tokens", "eval")
    return str(Path(spec.submodule_search_locations[0]) / name)


def _run(arguments: Sequence[str], lines: Sequence[str]) -> list[str]:
    """Write lines to a Java program and return the lines that it prints, one for each.

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
    if result.returncode or len(answer) != len(lines):
        errors = result.stderr.decode(errors="replace").strip().splitlines()
        raise DataError(
            f"Java ({name}) ended with exit status {result.returncode} after {len(answer):,} of "
            f"{len(lines):,} lines{': ' + errors[-1] if errors else ''}"
        )
    return answer
