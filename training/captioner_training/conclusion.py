"""The end of a run: fit trust, measure the gain, write the report.

Running the same command again adds the parts that are missing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from captioner.captioner import Captioner
from captioner.checkpoint import Checkpoint, load_checkpoint
from captioner.errors import CaptionerError, CheckpointError
from captioner.paths import bundled_checkpoint, checkpoint_file
from captioner.terminal import printable
from captioner.trust.consensus import Consensus
from captioner.trust.familiarity import Familiarity
from captioner.trust.trust import Trust, digest_weights, trust_file
from captioner_training.data.corpus import Corpus
from captioner_training.data.images import CaptionedImage
from captioner_training.data.reading import read_corpus, read_test
from captioner_training.distributed import memory_errors
from captioner_training.evaluation.consensus import FEWEST_FOR_CONSENSUS, fit_consensus
from captioner_training.evaluation.content import FUNCTION_WORDS
from captioner_training.evaluation.familiarity import pooled_grids
from captioner_training.evaluation.gain import describe_gain, measure_gain
from captioner_training.evaluation.measures import CaptionedSplit
from captioner_training.evaluation.trust import (
    FEWEST_PHOTOS,
    fit_trust,
    fit_word_features,
    measure_trust,
)
from captioner_training.initialization import load_initial
from captioner_training.log import report_photos
from captioner_training.recipe import Recipe
from captioner_training.report.numbers import part_of
from captioner_training.report.run import write_run
from captioner_training.run_folder import read_json, write_json

T = TypeVar("T")

_MOST_PHOTOS = 20_000  # largest number of training photos to fit trust on
_ENGLISH = 0.15  # English captions have at least this share of function words


def conclude(recipe: Recipe, *, out: Path, device: torch.device) -> None:
    """Write best.trust.safetensors, `gain` in finished.json, and report.html of a finished run.

    CIDEr is measured as in `captioner evaluate`, on the saved checkpoint with its consensus. If one
    part fails, its error is printed and the other parts are still written.
    """
    if not (out / "report.html").exists():
        _Conclusion(recipe=recipe, out=out, device=device).run()


@dataclass(frozen=True, kw_only=True)
class _Conclusion:
    recipe: Recipe
    out: Path
    device: torch.device

    @property
    def best(self) -> Path:
        return self.out / "best.safetensors"

    @cached_property
    def corpus(self) -> Corpus:
        origin = load_initial(self.recipe)
        words = origin.vocabulary if origin else None
        return read_corpus(self.recipe, out=self.out, origin=words, drawn=True)

    @cached_property
    def test(self) -> Sequence[CaptionedImage] | None:
        """The test split; None for a dry run."""
        if self.recipe.max_steps is not None:
            return None
        return _attempt("test", partial(read_test, self.recipe, self.corpus.vocabulary))

    def run(self) -> None:
        note = read_json(self.out / "finished.json") or {}
        best_at = (note.get("progress") or {}).get("best_at")
        initial_is_best = self.recipe.weights is not None and best_at is None
        _attempt("trust", self._write_trust)
        gain = None
        if self.recipe.max_steps is not None:
            notes = ["This was a dry run; its scores mean nothing."]
        elif initial_is_best:
            notes = ["No epoch was better than the original model, so best.safetensors is a copy."]
        else:
            gain = note.get("gain") or _attempt("gain", self._measure_gain)
            notes = [] if gain is None else [describe_gain(gain)]
        for line in notes:
            _print(f"{line} ({self.best})")

        def write() -> None:
            write_run(
                self.out / "report.html",
                self.recipe,
                self._caption_best(report_photos(self.corpus.validation)).captioned,
                gain=gain,
                notes=notes,
                best_at=best_at and tuple(best_at),
            )

        _attempt("report", write)

    def _caption_best(self, images: Sequence[CaptionedImage]) -> CaptionedSplit:
        return self._caption(Captioner.from_pretrained(self.best, device=self.device), images)

    def _caption(self, captioner: Captioner, images: Sequence[CaptionedImage]) -> CaptionedSplit:
        captioner.generation = self.recipe.generation
        return CaptionedSplit(captioner, images)

    def _measure_gain(self) -> dict[str, Any]:
        """Compare best.safetensors with the original model and store the result."""
        images, before = self.test or self.corpus.validation, None
        if (origin := load_initial(self.recipe)) is not None:
            before = self._caption(Captioner(origin, device=self.device), images).set.ciders
        after = self._caption_best(images).set.ciders
        gain = measure_gain(after, before, split="test" if self.test else "val")
        note = read_json(self.out / "finished.json") or {}
        write_json(self.out / "finished.json", {**note, "gain": gain})
        return gain

    def _write_trust(self) -> None:
        """Write the trust of best.safetensors, given enough photos with English captions."""
        recipe, train, held_out = self.recipe, self.corpus.train, self.corpus.validation
        if recipe.max_steps is not None or recipe.data.scenes is not None:
            return
        if trust_file(self.best).exists():
            return
        words = [word for image in train[:_MOST_PHOTOS] for words in image.words for word in words]
        if sum(word in FUNCTION_WORDS for word in words) < _ENGLISH * len(words):
            _print("No trust is fitted: the captions are not English.")
            return
        if len(held_out) < FEWEST_PHOTOS:
            held_out = [*held_out, *(self.test or ())]
        if min(len(train), len(held_out)) < FEWEST_PHOTOS:
            _print(
                f"No trust is fitted: it needs {FEWEST_PHOTOS} training photos and {FEWEST_PHOTOS} "
                f"other photos; there are {len(train)} and {len(held_out)}."
            )
            return
        if len(held_out) > len(self.corpus.validation):
            _print(
                f"Trust is fitted on the {len(held_out)} photos of val and test, because val has "
                f"fewer than {FEWEST_PHOTOS}; trust measured on test is then too optimistic."
            )
        captioner = Captioner(load_checkpoint(self.best), device=self.device)
        photos = train[:: -(-len(train) // _MOST_PHOTOS)]
        for line in write_trust(captioner, self.best, photos, held_out[: _MOST_PHOTOS // 2]):
            _print(line)


def _attempt(part: str, work: Callable[[], T]) -> T | None:
    try:
        with memory_errors():
            return work()
    except CaptionerError as error:
        _print(f"{part}: {error}")
        return None


def _print(text: str) -> None:
    print(printable(text), file=sys.stderr)


def write_trust(
    captioner: Captioner,
    checkpoint: str | os.PathLike[str],
    train: Sequence[CaptionedImage],
    held_out: Sequence[CaptionedImage],
) -> list[str]:
    """Fit trust, familiarity and consensus of a checkpoint and write them beside it.

    Args:
        captioner: the checkpoint, loaded without its trust. Its consensus is replaced.
        checkpoint: the path of the checkpoint, or "hf:" and the name of a Hugging Face model.
        train: photos that the model was trained on.
        held_out: photos that it was not trained on. Every second one is used for fitting; the
            quality of trust is measured on the rest.

    Returns:
        Messages about the quality of trust, and about parts that were not fitted.

    Raises:
        DataError: the captions have too few content words, or the photos are too similar.
        OutputError: the file cannot be written.
    """
    seen, is_ours = pooled_grids(captioner, train), captioner.source is None
    notes = []
    if len(train) >= FEWEST_FOR_CONSENSUS:
        captioner.consensus = fit_consensus(seen, train, captioner.vocabulary)
    else:
        captioner.consensus = _bundled_consensus(captioner.checkpoint) if is_ours else None
        source = "none is used" if captioner.consensus is None else "the bundled model's is used"
        notes = [
            f"Consensus needs {FEWEST_FOR_CONSENSUS:,} training photos, there are {len(train):,}: "
            f"{source}."
        ]
    split = CaptionedSplit(captioner, held_out)
    vocabulary = captioner.vocabulary
    if not is_ours:  # its vocabulary has only words of captions so far; add those of references
        for image in train:
            for words in image.words:
                vocabulary.encode(words)
    trust = fit_trust(
        split.captioned[::2],
        split.pooled[::2],
        word_features=fit_word_features(seen, train, vocabulary),
        familiarity=Familiarity.fit(seen, split.pooled),
        weights=digest_weights(checkpoint_file(checkpoint)) if is_ours else captioner.fingerprint,
        consensus=captioner.consensus,
        words=() if is_ours else vocabulary.ordinary_words,
    )
    rest = split.captioned[1::2]
    judged = trust.judge(split.pooled[1::2], [[caption.hypothesis] for caption in rest])
    measured = measure_trust(rest, [best for (best,) in judged])
    trust.save(trust_file(checkpoint))
    parts = ((kind, part_of(measured, kind)) for kind in ("words", "captions"))
    return notes + [
        f"Trust in {kind} on held-out photos: AUROC {part.text('auroc', 3)}, calibration error "
        f"{part.text('error')} points; {part.text('right')} % are right."
        for kind, part in parts
        if part is not None
    ]


def _bundled_consensus(checkpoint: Checkpoint) -> Consensus | None:
    """Return the bundled model's consensus, or None if it does not fit the checkpoint.

    It fits if the encoders and transforms are equal and the vocabulary starts with the bundled
    words.
    """
    try:
        path = bundled_checkpoint()
        trust, bundled = Trust.for_checkpoint(path), load_checkpoint(path)
    except CheckpointError:  # missing or damaged
        return None
    models = (checkpoint, bundled)
    words, bundled_words = (model.vocabulary.ordinary_words for model in models)
    ours, theirs = (model.model.encoder.state_dict() for model in models)
    if (
        trust is None
        or words[: len(bundled_words)] != bundled_words
        or checkpoint.transform != bundled.transform
        or ours.keys() != theirs.keys()
        or not all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())
    ):
        return None
    return trust.consensus
