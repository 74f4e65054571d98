"""Measure how well trust predicts which words and captions are right."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from captioner.trust.trust import DOUBTFUL, DOUBTFUL_SUBJECT, Judgement
from captioner_training.data.images import Captioned
from captioner_training.evaluation.bootstrap import mean_table, ranking_table, summary
from captioner_training.evaluation.calibration import reliability
from captioner_training.evaluation.words import right_words


def measure_trust(captioned: Sequence[Captioned], judged: Sequence[Judgement]) -> dict[str, object]:
    """Measure how well the trust in captions predicts whether words and captions are right.

    Returns:
        `words`, `captions`: for each, the count, the percentage that is right, the AUROC of trust
            and of the probability or score, and the calibration error. A caption is right if all
            its words are.
        `marks`: see measure_marks.
    """
    words, captions = [], []
    for at, (caption, judgement) in enumerate(zip(captioned, judged, strict=True)):
        right = right_words(caption.words, caption.image.words)
        probabilities = caption.hypothesis.log_probabilities.exp().tolist()
        for trust, probability, is_right in zip(
            judgement.words, probabilities, right, strict=False
        ):
            if trust is not None and is_right is not None:
                words.append((trust, probability, is_right, at))
        if judgement.caption is not None:
            all_right = False not in right
            captions.append((judgement.caption, caption.hypothesis.score, all_right, at))
    images = len(captioned)
    return {
        "words": _measure(words, images, "probability"),
        "captions": _measure(captions, images, "score"),
        "marks": measure_marks(captioned, judged),
    }


def _measure(
    rows: Sequence[tuple[float, float, bool, int]], images: int, plain: str
) -> dict[str, object]:
    """Measure rows of trust, another score named `plain`, whether it is right, and the image."""
    trust, score, right, place = np.array(rows, np.float64).reshape(-1, 4).T
    image = place.astype(int)
    count = np.bincount(image, minlength=images)
    error, bins = reliability(trust, right)
    tables = {
        "right": mean_table(np.bincount(image, right, minlength=images), count, scale=100),
        "auroc": ranking_table(trust, right, image, images=images),
        f"auroc_{plain}": ranking_table(score, right, image, images=images),
    }
    return {"count": len(image), "error": error, **summary(tables), "bins": bins}


def measure_marks(captioned: Sequence[Captioned], judged: Sequence[Judgement]) -> dict[str, object]:
    """Measure whether the words marked as doubtful are wrong.

    Returns:
        `wrong`: the percentage of marked words that are wrong.
        `flawed`: among captions with a wrong word, the percentage in which a wrong word is marked.
        `right`: among captions without a wrong word, the percentage in which a word is marked.
        `per_right`: the number of marks per caption without a wrong word.
        `intervals`: the 95 % intervals of these values.
    """
    counts = np.zeros((len(captioned), 7))
    for row, caption, judgement in zip(counts, captioned, judged, strict=True):
        right = right_words(caption.words, caption.image.words)
        marked = [
            trust is not None
            and trust < (DOUBTFUL_SUBJECT if place == judgement.subject else DOUBTFUL)
            for place, trust in enumerate(judgement.words)
        ]
        hit = sum(mark and is_right is False for mark, is_right in zip(marked, right, strict=True))
        is_flawed, count = False in right, sum(marked)
        row[:2] = hit, count
        row[2:4] = is_flawed and hit > 0, is_flawed
        row[4:] = not is_flawed and count > 0, not is_flawed, 0 if is_flawed else count
    hits, marks, detected, flawed, marked_right, right_captions, false_marks = counts.T
    return summary(
        {
            "wrong": mean_table(hits, marks, scale=100),
            "flawed": mean_table(detected, flawed, scale=100),
            "right": mean_table(marked_right, right_captions, scale=100),
            "per_right": mean_table(false_marks, right_captions),
        }
    )
