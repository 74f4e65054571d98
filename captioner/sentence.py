"""From what generation found to a sentence with words: the numbers get names and places."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from captioner.caption import Alternative
from captioner.generation.hypothesis import Hypothesis
from captioner.vision.encoder import Grid
from captioner.vocabulary import Vocabulary
from captioner.word import Word

__all__ = ["read_sentence"]


def read_sentence(
    hypothesis: Hypothesis,
    grid: Grid,
    vocabulary: Vocabulary,
    *,
    effects: Sequence[float] | None = None,
) -> Alternative:
    """Give the words of a hypothesis with all that is known of them.

    Args:
        hypothesis: of T words.
        grid: that was attended over.
        vocabulary: numbers the words.
        effects: (T,), what the deletion test found of each; None: nobody asked.

    """
    texts = vocabulary.decode(hypothesis.tokens)
    count = len(texts)
    maps: Sequence[Tensor | None] = [None] * count
    if hypothesis.attention is not None:
        maps = hypothesis.attention.reshape(-1, grid.rows, grid.columns).unbind()
    heads: Sequence[Tensor | None] = [None] * count
    if hypothesis.heads is not None:
        shape = hypothesis.heads.shape[1], grid.rows, grid.columns
        heads = hypothesis.heads.reshape(-1, *shape).unbind()
    words = tuple(
        Word(
            text=text,
            probability=probability,
            gate=gate,
            attention=attention,
            heads=own,
            effect=effect,
        )
        for text, probability, gate, attention, own, effect in zip(
            texts,
            hypothesis.log_probabilities.exp().tolist(),
            [None] * count if hypothesis.gate is None else hypothesis.gate.tolist(),
            maps,
            heads,
            [None] * count if effects is None else effects,
            strict=False,  # the probabilities have one more, the end's
        )
    )
    return Alternative(text=vocabulary.join(texts), score=hypothesis.score, words=words)
