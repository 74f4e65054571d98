"""The captions of a split with the scores that need no model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from captioner.trust.consensus import n_grams
from captioner.vocabulary import Tokenizer, has_no_spaces, tokenize
from captioner_training.evaluation.bootstrap import Table, summary
from captioner_training.evaluation.boxes import Boxes
from captioner_training.evaluation.hallucination import hallucination, named_categories
from captioner_training.evaluation.predictions import Predictions, Target
from captioner_training.evaluation.report import ImageRow
from captioner_training.evaluation.scores import (
    Tables,
    human_tables,
    official_scores,
    score_tables,
    token_name,
)

Words = Sequence[str]
Parts = dict[str, Callable[[], object]]
"""Functions that compute the parts of a report, by the part's name."""

_REPEATED_WORDS = 3


@dataclass(frozen=True, kw_only=True)
class CaptionSet:
    """Captions of a split, from a model or a file, and their scores.

    targets: the images.
    captions: the caption of each image as text.
    words: the caption of each image as tokens.
    tokenize: splits text into tokens.
    tokens: description of the tokens.
    corpus: the whole split, if the images are only a part of it.
    """

    targets: Sequence[Target]
    captions: Sequence[str]
    words: Sequence[Words]
    tokenize: Callable[[str], list[str]]
    tokens: str
    corpus: Sequence[Target] | None = None

    @classmethod
    def from_predictions(
        cls, read: Predictions, split: Sequence[Target], *, corpus: Sequence[Target] | None = None
    ) -> CaptionSet:
        """Return the captions of a file. Images without a caption are left out."""
        whole = split if corpus is None else corpus
        unspaced = has_no_spaces(text for target in whole for text in target.references)
        tokenizer: Tokenizer = "characters" if unspaced else "words"
        pairs = [
            (target, caption)
            for target, caption in zip(split, read.captions, strict=True)
            if caption is not None
        ]
        return cls(
            targets=[target for target, _ in pairs],
            captions=[caption for _, caption in pairs],
            words=[tokenize(caption, tokenizer) for _, caption in pairs],
            tokenize=partial(tokenize, by=tokenizer),
            tokens=token_name(tokenizer),
            corpus=None if corpus is None and len(pairs) == len(split) else whole,
        )

    def parts(
        self, *, official: bool, training: Sequence[Target] | None, boxes: Boxes | None
    ) -> Parts:
        """Return the functions that compute the requested parts."""
        parts: Parts = {
            "nltk": self.plain_scores,
            "captions": partial(self._describe, training, boxes),
        }
        if official:
            texts = [target.references for target in self.targets]
            corpus = None if self.corpus is None else [target.references for target in self.corpus]
            parts["pycocoevalcap"] = partial(official_scores, texts, self.captions, corpus=corpus)
        return parts

    @cached_property
    def references(self) -> list[list[list[str]]]:
        """The tokenized references of each image."""
        return self._tokenized(self.targets)

    @cached_property
    def tables(self) -> Tables:
        """The tables of all scores that need no Java."""
        return self._score(self.references, self.words)

    @property
    def ciders(self) -> list[float]:
        """CIDEr-D of each image, in percent."""
        return _image_scores(self.tables["CIDEr"])

    def rows(self, **columns: Sequence[Any]) -> list[ImageRow]:
        """Return a row per image with its scores; `columns` are further fields of the rows."""
        rows, ciders, rouges = [], self.ciders, _image_scores(self.tables["ROUGE-L"])
        for at, (target, caption) in enumerate(zip(self.targets, self.captions, strict=True)):
            present = {name for words in self.references[at] for name in named_categories(words)}
            named = dict.fromkeys(named_categories(self.words[at]))
            rows.append(
                ImageRow(
                    id=target.id,
                    name=target.name,
                    caption=caption,
                    references=target.references,
                    cider=ciders[at],
                    rouge_l=rouges[at],
                    invented=tuple(name for name in named if name not in present),
                    **{name: values[at] for name, values in columns.items()},
                )
            )
        return rows

    def _tokenized(self, images: Sequence[Target]) -> list[list[list[str]]]:
        return [[self.tokenize(text) for text in image.references] for image in images]

    @cached_property
    def _score(self) -> Callable[..., Tables]:
        corpus = self.references if self.corpus is None else self._tokenized(self.corpus)
        return partial(score_tables, corpus=corpus)

    def plain_scores(self) -> dict[str, object]:
        """Return the scores with their intervals, and the scores of human captions."""
        human = summary(human_tables(self.references, self._score))
        return {"tokenizer": self.tokens, **summary(self.tables), "human": human}

    def _describe(
        self, training: Sequence[Target] | None, boxes: Boxes | None
    ) -> dict[str, object]:
        """Return length, variety, novelty and absent objects of captions; shares in percent."""
        captions = [tuple(words) for words in self.words]
        novel = None
        if training is not None:
            old = {tuple(words) for texts in self._tokenized(training) for words in texts}
            novel = 100 * float(np.mean([caption not in old for caption in captions]))
        objects = None
        if boxes is not None:
            objects = [
                {boxed.category or "person" for boxed in boxes.get(target.id, ())}
                for target in self.targets
            ]
        lengths = np.array([len(words) for words in captions])
        return {
            "words": {
                "mean": float(lengths.mean()),
                "shortest": int(lengths.min()),
                "longest": int(lengths.max()),
            },
            "distinct": 100 * len(set(captions)) / len(captions),
            "vocabulary": len({word for words in captions for word in words}),
            "empty": int((lengths == 0).sum()),
            "repeats_three_words": 100 * float(np.mean([_repeats(words) for words in captions])),
            "novel": novel,
            "hallucination": hallucination(self.references, self.words, objects=objects),
        }


def _image_scores(table: Table) -> list[float]:
    """Return each image's score in percent, given the table of a mean."""
    scores: list[float] = (100 * table.rows[:, 0]).tolist()
    return scores


def _repeats(words: Words) -> bool:
    """Whether a caption contains the same three words twice."""
    grams = list(n_grams(words, _REPEATED_WORDS))
    return len(set(grams)) < len(grams)
