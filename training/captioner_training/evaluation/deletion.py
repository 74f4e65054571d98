"""The deletion test over a whole split; see captioner.deletion."""

from __future__ import annotations

from collections.abc import Sequence

from captioner.errors import DataError
from captioner_training.data.images import Captioned
from captioner_training.evaluation.bootstrap import mean_table, summary
from captioner_training.evaluation.words import FUNCTION_WORDS


def measure_deletion(captioned: Sequence[Captioned]) -> dict[str, object]:
    """Return the mean effect of the attended cells on content words and on function words.

    Returns:
        For `content` and `function`, if there are such words, the number of `words` and their mean
        `effect` in nats, with its interval over images.

    Raises DataError: the model has no attention.
    """
    if all(caption.effects is None for caption in captioned):
        raise DataError("the deletion test needs a model with attention")
    kinds: dict[str, object] = {}
    for kind in ("content", "function"):
        effects = [
            [
                effect
                for word, effect in zip(caption.words, caption.effects or (), strict=False)
                if (word in FUNCTION_WORDS) == (kind == "function")
            ]
            for caption in captioned
        ]
        counts = list(map(len, effects))
        if sum(counts):
            table = mean_table(list(map(sum, effects)), counts)
            kinds[kind] = {"words": sum(counts), **summary({"effect": table})}
    return kinds
