"""The deletion test on a sentence that is given, and not made by a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from captioner.caption import Caption
from captioner.decoding.prepared import PreparedImage
from captioner.deletion import sentence_effects
from captioner.errors import ConfigError
from captioner.predictor import Captioner
from captioner.vocabulary import Vocabulary

__all__ = ["check_sentence", "require_known"]


def require_known(caption: Caption, vocabulary: Vocabulary) -> None:
    """Refuse a sentence that the model cannot have said.

    Raises:
        ConfigError: it has no words, or one that the vocabulary does not have.

    """
    if not caption.words:
        raise ConfigError("the record has no words: there is nothing to check")
    known = set(vocabulary.ordinary_words)
    if unknown := [word.text for word in caption.words if word.text not in known]:
        raise ConfigError(f"the model does not know the word {unknown[0][:40]!r}")


def check_sentence(
    captioner: Captioner, images: Sequence[PreparedImage], caption: Caption
) -> list[Caption]:
    """Give the words of a caption their `effect` on each image; see captioner.deletion.

    Where the decoder does not attend, the words stay as they are.
    """
    grid = captioner.encode(torch.stack([image.pixels for image in images]))
    tokens = captioner.vocabulary.encode(word.text for word in caption.words)
    start = captioner.vocabulary.start(caption.style or "")
    decoder = captioner.model.decoder
    with torch.inference_mode():
        found = sentence_effects(decoder, grid.features, [[tokens]] * len(images), start=start)
    checked = []
    for (effects,) in found:
        words = caption.words
        if effects is not None:
            pairs = zip(words, effects, strict=True)
            words = tuple(replace(word, effect=effect) for word, effect in pairs)
        checked.append(replace(caption, words=words))
    return checked
