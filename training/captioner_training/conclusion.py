"""The end of a run: fit trust, measure the gain, write the report.

Running the same command again makes the parts that are missing or have failed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from captioner.captioner import Captioner
from captioner.checkpoint import load_checkpoint
from captioner.errors import CaptionerError
from captioner.shared.text import counted, printable
from captioner.trust.trust import trust_file
from captioner_training.data.captions import Corpus
from captioner_training.data.reading import read_corpus, read_test
from captioner_training.distributed import memory_errors
from captioner_training.evaluation.bootstrap import mean_table, summary
from captioner_training.evaluation.captioning import caption_images
from captioner_training.evaluation.fit_trust import MIN_PHOTOS, write_trust
from captioner_training.evaluation.scores import score_tables
from captioner_training.evaluation.words import FUNCTION_WORDS
from captioner_training.initialization import load_initial
from captioner_training.losses.cider import MIN_IMAGES
from captioner_training.recipe import Recipe
from captioner_training.report.page import write_run
from captioner_training.run_folder import read_json, write_json

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
    if note.get("concluded", True) and (out / "report.html").exists():
        return
    best, failed = out / "best.safetensors", list[str]()

    @contextmanager
    def attempt(part: str) -> Iterator[None]:
        try:
            with memory_errors():
                yield
        except CaptionerError as error:
            _print(f"{part}: {error}")
            failed.append(part)

    corpus: Corpus | None = None
    with attempt("data"):
        origin = load_initial(recipe)
        words = origin.vocabulary if origin else None
        del origin  # its model takes memory
        corpus = read_corpus(recipe, out=out, origin=words, drawn=True)
    if corpus is None:
        return
    with attempt("trust"):
        _write_trust(recipe, corpus, best, device=device)
    gain, best_at = None, (note.get("progress") or {}).get("best_at")
    notes: list[str] = []
    if recipe.max_steps is not None:
        notes = ["This was a dry run; its scores mean nothing."]
    elif recipe.weights is not None and best_at is None:
        notes = ["No epoch was better than the original model, so best.safetensors is a copy."]
    else:
        with attempt("gain"):
            gain = note.get("gain") or measure_gain(recipe, corpus, best, device=device)
            notes = [describe_gain(gain)]
    if gain is not None:
        note["gain"] = gain
        write_json(out / "finished.json", note)
    for line in notes:
        _print(f"{line} ({best})")
    with attempt("report"):
        validation = corpus.validation
        shown = validation[:: -(-len(validation) // _SHOWN)]  # evenly spread over the split
        captioner = Captioner.from_pretrained(best, device=device)
        write_run(
            out / "report.html",
            recipe,
            caption_images(captioner, shown, recipe.generation),
            gain=gain,
            notes=notes,
            best_at=best_at,
            has_cider=len(validation) >= MIN_IMAGES,
        )
        write_json(out / "finished.json", {**note, "concluded": not failed})


def _write_trust(recipe: Recipe, corpus: Corpus, best: Path, *, device: torch.device) -> None:
    """Write the trust of the best checkpoint, given enough photos with English captions."""
    if recipe.max_steps or recipe.data.scenes or trust_file(best).exists():
        return
    train, held_out = corpus.train, corpus.validation
    words = [word for image in train[:_MAX_PHOTOS] for words in image.words for word in words]
    if sum(word in FUNCTION_WORDS for word in words) < _ENGLISH * len(words):
        _print("No trust is fitted: the captions are not English.")
    elif min(len(train), len(held_out)) < MIN_PHOTOS:
        _print(
            f"No trust is fitted: it needs {MIN_PHOTOS} training photos and {MIN_PHOTOS} "
            f"validation photos; there are {len(train)} and {len(held_out)}."
        )
    else:
        captioner = Captioner(load_checkpoint(best), device=device)
        photos = train[:: -(-len(train) // _MAX_PHOTOS)]
        for line in write_trust(captioner, best, photos, held_out[: _MAX_PHOTOS // 2]):
            _print(line)


def measure_gain(
    recipe: Recipe, corpus: Corpus, best: Path, *, device: torch.device
) -> dict[str, Any]:
    """Measure CIDEr-D of the best checkpoint on the test split; if there is none, on validation.

    Returns `split`, `images`, the mean score `after`, and `intervals`. If the run started from a
    model, also its mean score `before`, and `gain`, the mean difference over images.
    """

    def ciders(captioner: Captioner) -> list[float]:
        captioned = caption_images(captioner, images, recipe.generation)
        words = [caption.words for caption in captioned]
        return score_tables([image.words for image in images], words)["CIDEr"].of_images()

    test = read_test(recipe, corpus.vocabulary)
    images = test or corpus.validation
    origin = load_initial(recipe)
    before = None if origin is None else ciders(Captioner(origin, device=device))
    after = ciders(Captioner.from_pretrained(best, device=device))
    tables = {"after": mean_table(after)}
    if before is not None:
        tables["before"] = mean_table(before)
        tables["gain"] = mean_table(np.subtract(after, before))
    return {"split": "test" if test else "val", "images": len(images), **summary(tables)}


def _print(text: str) -> None:
    print(printable(text), file=sys.stderr)


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
