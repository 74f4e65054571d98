"""Scores of captions against references, by nltk and by the official scorers."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from subprocess import SubprocessError

from nltk.translate.bleu_score import SmoothingFunction, corpus_bleu

from captioner.errors import DataError, MissingExtraError

__all__ = ["bleu", "check_official_scorers", "official_scores"]


def bleu(
    references: Sequence[Sequence[Sequence[str]]], captions: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Corpus BLEU-1 to BLEU-4 in percent (Papineni et al. 2002), unsmoothed, by nltk.

    Args:
        references: of each image, its tokenized references.
        captions: of each image, the words of its caption.

    An order without any match counts as 0, where nltk warns.

    """
    weights = [tuple(1 / n if i < n else 0.0 for i in range(4)) for n in (1, 2, 3, 4)]
    # method0 takes the logarithm of the smallest float where nothing matches: 0, with a warning.
    tiny = SmoothingFunction(epsilon=sys.float_info.min).method1
    scores = corpus_bleu(references, captions, weights=weights, smoothing_function=tiny)
    return {f"BLEU-{n}": 100 * score for n, score in enumerate(scores, start=1)}


def official_scores(
    references: Sequence[Sequence[str]], captions: Sequence[str]
) -> dict[str, float]:
    """BLEU-1 to BLEU-4, METEOR 1.5 and CIDEr in percent, by pycocoevalcap with its PTB tokenizer.

    Args:
        references: of each image, its references as they were written.
        captions: of each image, its caption.

    Raises:
        MissingExtraError, DataError: see check_official_scorers.

    """
    check_official_scorers()
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.meteor.meteor import Meteor
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    try:
        tokenizer = PTBTokenizer()
        with contextlib.redirect_stdout(sys.stderr):
            wanted = tokenizer.tokenize(
                {i: [{"caption": text} for text in texts] for i, texts in enumerate(references)}
            )
            given = tokenizer.tokenize({i: [{"caption": text}] for i, text in enumerate(captions)})
            bleus, _ = Bleu(4).compute_score(wanted, given, verbose=0)
            meteor, _ = Meteor().compute_score(wanted, given)
            cider, _ = Cider().compute_score(wanted, given)
    except (OSError, SubprocessError, ValueError, IndexError) as error:
        raise DataError(
            f"pycocoevalcap failed ({type(error).__name__}: {error}): see what its Java programs "
            "say above"
        ) from error
    scores = {f"BLEU-{n}": 100 * score for n, score in enumerate(bleus, start=1)}
    return {**scores, "METEOR": 100 * float(meteor), "CIDEr": 100 * float(cider)}


def check_official_scorers() -> None:
    """Say before any work whether `official_scores` will run.

    Raises:
        MissingExtraError: pycocoevalcap is not installed.
        DataError: there is no Java.
    """
    if find_spec("pycocoevalcap") is None:
        raise MissingExtraError("scoring with METEOR and CIDEr", "eval")
    if shutil.which("java") is None:
        raise DataError("pycocoevalcap's tokenizer and METEOR run on Java: install a Java runtime")
