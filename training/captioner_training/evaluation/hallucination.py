"""CHAIR: how many of the objects that captions name are not there (Rohrbach et al. 2018)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from captioner_training.evaluation.bootstrap import estimate, mean_table, told
from captioner_training.evaluation.categories import named_categories

__all__ = ["hallucination"]

Words = Sequence[str]


def hallucination(
    references: Sequence[Sequence[Words]],
    captions: Sequence[Words],
    *,
    objects: Sequence[Collection[str]] | None = None,
) -> dict[str, object] | None:
    """Count objects of COCO's categories that a caption names and its image does not have.

    Args:
        references: of each image; what they name is there.
        captions: of each image.
        objects: of each image, categories that its annotated objects have: they are there too.
            Without them, an object that people left out counts as hallucinated.

    Returns:
        `CHAIR_i`, the share of mentions, and `CHAIR_s`, the share of captions with such a mention,
        in percent, with `intervals`; how many `mentions` there are; and `annotated`, whether
        objects were given. None where no object is mentioned.

    """
    wrong, mentions = [], []
    for at, (texts, caption) in enumerate(zip(references, captions, strict=True)):
        there = {category for words in texts for category in named_categories(words)}
        there |= set(objects[at]) if objects is not None else set()
        said = named_categories(caption)
        mentions.append(len(said))
        wrong.append(sum(category not in there for category in said))
    if not sum(mentions):
        return None
    tables = {
        "CHAIR_i": mean_table(wrong, mentions, scale=100),
        "CHAIR_s": mean_table([count > 0 for count in wrong], scale=100),
    }
    return {
        "mentions": sum(mentions),
        "annotated": objects is not None,
        **told(estimate(tables)),
    }
