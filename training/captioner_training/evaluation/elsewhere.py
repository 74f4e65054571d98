"""Captions that were made elsewhere, and what can be said of them without a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial

from captioner.vocabulary import Tokenizer, has_no_spaces, tokenize
from captioner_training.evaluation.boxes import Boxes
from captioner_training.evaluation.facts import describe_captions
from captioner_training.evaluation.hallucination import categories_there
from captioner_training.evaluation.image_row import ImageRow
from captioner_training.evaluation.predictions import Predictions, Target, tokenized
from captioner_training.evaluation.rows import image_rows
from captioner_training.evaluation.scores import fallback_scores, official_scores

__all__ = ["CaptionsElsewhere"]

Parts = dict[str, Callable[[], object]]


class CaptionsElsewhere:
    """A split with captions from a file; what can be scored is scored.

    Args:
        read: the captions.
        split: the images.
        corpus: the whole split of which they are a part; None: they are all of it.

    Attributes:
        places: of the images that have a caption, in the split.
        problems: what is wrong with the file, a sentence each.

    """

    def __init__(
        self, read: Predictions, split: Sequence[Target], *, corpus: Sequence[Target] | None = None
    ) -> None:
        self.problems = read.problems
        self.places = [at for at, caption in enumerate(read.captions) if caption is not None]
        self.targets = [split[at] for at in self.places]
        self.captions = [read.captions[at] or "" for at in self.places]
        self._corpus = split if corpus is None else corpus
        unspaced = has_no_spaces(text for one in self._corpus for text in one.references)
        self._tokenizer: Tokenizer = "characters" if unspaced else "words"
        self.words = [tokenize(caption, self._tokenizer) for caption in self.captions]
        self._references = tokenized(self.targets, self._tokenizer)
        self._whole = self._references
        if corpus is not None or len(self.targets) < len(split):
            self._whole = tokenized(self._corpus, self._tokenizer)

    def parts(
        self, *, official: bool, training: Sequence[Target] | None, boxes: Boxes | None
    ) -> Parts:
        """Name what is asked for; each is measured when it is called."""
        parts: Parts = {
            "nltk": partial(fallback_scores, self._references, self.words, corpus=self._whole),
            "captions": lambda: describe_captions(
                self.words,
                references=self._references,
                training=training,
                objects=categories_there(boxes, [one.id for one in self.targets]),
                tokenizer=self._tokenizer,
            ),
        }
        if official:
            parts["pycocoevalcap"] = partial(
                official_scores,
                [one.references for one in self.targets],
                self.captions,
                corpus=[one.references for one in self._corpus],
            )
        return parts

    @cached_property
    def rows(self) -> list[ImageRow]:
        """The images one by one, each scored by itself."""
        return image_rows(
            self.targets,
            self.captions,
            words=self.words,
            references=self._references,
            corpus=self._whole,
        )
