"""What a reader must know of a score: which images, which references, what kind of captions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence

import numpy as np

from captioner.vocabulary import Tokenizer, tokenize
from captioner_training.evaluation.bleu import n_grams
from captioner_training.evaluation.hallucination import hallucination
from captioner_training.evaluation.predictions import Target

__all__ = ["describe_captions", "describe_split", "hash_split"]

Words = Sequence[str]

_AGAIN = 3  # words: two are said twice in many a good caption ("a man", "on the")


def hash_split(images: Sequence[Target]) -> str:
    """Digest the ids and references of a split, whatever its order: equal hash, equal split."""
    lines = sorted(json.dumps([str(one.id), sorted(one.references)]) for one in images)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def describe_split(images: Sequence[Target]) -> dict[str, object]:
    """Name the split that scores belong to."""
    return {
        "images": len(images),
        "references": sum(len(one.references) for one in images),
        "hash": hash_split(images),
    }


def describe_captions(
    captions: Sequence[Words],
    *,
    references: Sequence[Sequence[Words]],
    training: Sequence[Target] | None = None,
    objects: Sequence[Collection[str]] | None = None,
    tokenizer: Tokenizer = "words",
) -> dict[str, object]:
    """Say how long, how varied, how new and how true captions are; shares are in percent.

    Args:
        captions: the words of each.
        references: of each image, its tokenized references.
        training: the images of the training with their captions; None: not at hand.
        objects: of each image, the categories of its annotated objects; None: not at hand.
        tokenizer: that the captions' words come from.

    """
    known = None
    if training is not None:
        texts = (text for one in training for text in one.references)
        known = {tuple(tokenize(text, tokenizer)) for text in texts}
    lengths = np.array([len(words) for words in captions])
    said = [tuple(words) for words in captions]
    again = [any(n > 1 for n in n_grams(words, _AGAIN).values()) for words in said]
    novel = None if known is None else 100 * float(np.mean([one not in known for one in said]))
    return {
        "words": {
            "mean": float(lengths.mean()),
            "deviation": float(lengths.std()),
            "shortest": int(lengths.min()),
            "longest": int(lengths.max()),
        },
        "distinct": 100 * len(set(said)) / len(said),
        "vocabulary": len({word for words in said for word in words}),
        "empty": int((lengths == 0).sum()),
        "repeats_three_words": 100 * float(np.mean(again)),
        "novel": novel,
        "hallucination": hallucination(references, captions, objects=objects),
    }
