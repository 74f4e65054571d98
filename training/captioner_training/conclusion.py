"""The end of a run: fit trust, measure the gain, write the report.

Running the same command again makes the parts that are missing or have failed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from captioner.captioner import Captioner
from captioner.checkpoint import load_checkpoint
from captioner.errors import CaptionerError
from captioner.shared.text import counted, printable
from captioner.trust.trust import trust_file
from captioner_training.data.corpus import Corpus
from captioner_training.data.reading import read_corpus, read_test
from captioner_training.distributed import memory_errors
from captioner_training.evaluation.bootstrap import mean_table, summary
from captioner_training.evaluation.captioning import caption_images
from captioner_training.evaluation.evaluate import image_scores
from captioner_training.evaluation.fit_trust import MIN_PHOTOS, write_trust
from captioner_training.evaluation.scores import score_tables
from captioner_training.evaluation.words import FUNCTION_WORDS
from captioner_training.initialization import load_initial
from captioner_training.losses.cider import MIN_IMAGES
from captioner_training.recipe import Recipe
from captioner_training.report.page import write_run
from captioner_training.run_folder import read_json, write_json

T = TypeVar("T")

_SHOWN = 10  # validation photos in a report, at most
_MAX_PHOTOS = 20_000  # largest number of training photos to fit trust on
_ENGLISH = 0.15  # English captions have at least this share of function words


def conclude(recipe: Recipe, *, out: Path, device: torch.device) -> None:
    """Write best.trust.safetensors, `gain` in finished.json, and report.html of a finished run.

    CIDEr is measured as in `captioner evaluate`, on the saved checkpoint with its consensus. If one
    part fails, its error is printed and the other parts are still written. Another call tries the
    failed parts again.
    """
    note = read_json(out / "finished.json") or {}
    if not (note.get("concluded", True) and (out / "report.html").exists()):
        _Conclusion(recipe=recipe, out=out, device=device, note=note).run()


@dataclass(kw_only=True)
class _Conclusion:
    """note: the content of finished.json."""

    recipe: Recipe
    out: Path
    device: torch.device
    note: dict[str, Any]
    has_failed: bool = False  # whether a part has failed

    @cached_property
    def corpus(self) -> Corpus:
        origin = load_initial(self.recipe)
        words = origin.vocabulary if origin else None
        return read_corpus(self.recipe, out=self.out, origin=words, drawn=True)

    def run(self) -> None:
        recipe, best = self.recipe, self.out / "best.safetensors"
        best_at = (self.note.get("progress") or {}).get("best_at")
        self._attempt("trust", lambda: self._write_trust(best))
        gain = None
        if recipe.max_steps is not None:
            notes = ["This was a dry run; its scores mean nothing."]
        elif recipe.weights is not None and best_at is None:
            notes = ["No epoch was better than the original model, so best.safetensors is a copy."]
        else:
            gain = self.note.get("gain") or self._attempt("gain", lambda: self._measure_gain(best))
            notes = [] if gain is None else [describe_gain(gain)]
        for line in notes:
            _print(f"{line} ({best})")

        def report() -> None:
            validation = self.corpus.validation
            shown = validation[:: -(-len(validation) // _SHOWN)]  # evenly spread over the split
            captioner = Captioner.from_pretrained(best, device=self.device)
            write_run(
                self.out / "report.html",
                recipe,
                caption_images(captioner, shown, recipe.generation),
                gain=gain,
                notes=notes,
                best_at=None if best_at is None else (best_at[0], best_at[1]),
                has_cider=len(validation) >= MIN_IMAGES,
            )
            write_json(self.out / "finished.json", {**self.note, "concluded": not self.has_failed})

        self._attempt("report", report)

    def _attempt(self, part: str, work: Callable[[], T]) -> T | None:
        try:
            with memory_errors():
                return work()
        except CaptionerError as error:
            _print(f"{part}: {error}")
            self.has_failed = True
            return None

    def _measure_gain(self, best: Path) -> dict[str, Any]:
        """Compare the best checkpoint with the original model and store the result."""

        def ciders(captioner: Captioner) -> list[float]:
            captioned = caption_images(captioner, images, self.recipe.generation)
            words = [caption.words for caption in captioned]
            return image_scores(score_tables([image.words for image in images], words)["CIDEr"])

        test = self._attempt("test", partial(read_test, self.recipe, self.corpus.vocabulary))
        images = test or self.corpus.validation
        origin = load_initial(self.recipe)
        before = None if origin is None else ciders(Captioner(origin, device=self.device))
        after = ciders(Captioner.from_pretrained(best, device=self.device))
        gain = measure_gain(after, before, split="test" if test else "val")
        self.note["gain"] = gain
        write_json(self.out / "finished.json", self.note)
        return gain

    def _write_trust(self, best: Path) -> None:
        """Write the trust of the best checkpoint, given enough photos with English captions."""
        recipe = self.recipe
        if recipe.max_steps or recipe.data.scenes or trust_file(best).exists():
            return
        train, held_out = self.corpus.train, self.corpus.validation
        words = [word for image in train[:_MAX_PHOTOS] for words in image.words for word in words]
        if sum(word in FUNCTION_WORDS for word in words) < _ENGLISH * len(words):
            _print("No trust is fitted: the captions are not English.")
        elif min(len(train), len(held_out)) < MIN_PHOTOS:
            _print(
                f"No trust is fitted: it needs {MIN_PHOTOS} training photos and {MIN_PHOTOS} "
                f"validation photos; there are {len(train)} and {len(held_out)}."
            )
        else:
            captioner = Captioner(load_checkpoint(best), device=self.device)
            photos = train[:: -(-len(train) // _MAX_PHOTOS)]
            for line in write_trust(captioner, best, photos, held_out[: _MAX_PHOTOS // 2]):
                _print(line)


def _print(text: str) -> None:
    print(printable(text), file=sys.stderr)


def measure_gain(
    after: Sequence[float], before: Sequence[float] | None, *, split: str
) -> dict[str, Any]:
    """Compare the CIDEr-D of each image of a split after a run and before it, in percent.

    Returns `split`, `images`, the mean score `after`, and `intervals`. If the run started from a
    model, also the mean score `before`, and `gain`, the mean difference over images.
    """
    tables = {"after": mean_table(after)}
    if before is not None:
        tables["before"] = mean_table(before)
        tables["gain"] = mean_table(np.subtract(after, before))
    return {"split": split, "images": len(after), **summary(tables)}


def describe_gain(gain: Mapping[str, Any]) -> str:
    """Describe a gain, its interval and its photos in one line."""
    images = gain["images"]
    if images < MIN_IMAGES:
        return f"CIDEr is not measured: it needs {MIN_IMAGES} photos (there: {images})"
    photos = counted(images, "test photo")
    if gain["split"] != "test":
        photos = f"{counted(images, 'validation photo')} (optimistic: they selected the epoch)"
    score, change = f"CIDEr {gain['after']:.1f}", gain.get("gain")
    if change is not None:
        verb = "gained" if change >= 0 else "lost"
        score += f", before training {gain['before']:.1f}: {verb} {abs(change):.1f}"
    low, high = gain["intervals"]["after" if change is None else "gain"]
    return f"{score} [{low:.1f}, {high:.1f}] on {photos}"
