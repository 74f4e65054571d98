"""What is made of a run when it is over: what it gained, its trust, and a page to look at.

Each part is made once, so that the same command makes what an interruption left out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from captioner.checkpoint import Checkpoint, load_checkpoint
from captioner.errors import CaptionerError, CheckpointError
from captioner.paths import bundled_checkpoint, checkpoint_file
from captioner.predictor import Captioner
from captioner.terminal import printable
from captioner.trust.consensus import Consensus
from captioner.trust.familiarity import Familiarity
from captioner.trust.trust import Trust, digest_weights, trust_file
from captioner_training.data.corpus import Corpus
from captioner_training.data.images import CaptionedImage
from captioner_training.data.reading import read_corpus, read_test
from captioner_training.evaluation.consensus import FEWEST_FOR_CONSENSUS, fit_consensus
from captioner_training.evaluation.content import FUNCTION_WORDS
from captioner_training.evaluation.familiarity import pooled_grids
from captioner_training.evaluation.gain import captions_of, measure_gain, told
from captioner_training.evaluation.measures import CaptionedSplit
from captioner_training.evaluation.trust import (
    FEWEST_PHOTOS,
    fit_sight,
    fit_trust,
    measure_trust,
)
from captioner_training.initialization import load_origin
from captioner_training.log import some_of
from captioner_training.pages.figures import part_of
from captioner_training.pages.run import write_run
from captioner_training.recipe import Recipe
from captioner_training.state import read_json, write_json
from captioner_training.step import autocast_of

__all__ = ["conclude", "write_trust"]

T = TypeVar("T")

_TRUSTED = 20_000  # photos of training, at most, that trust is learned from
_ENGLISH = 0.15  # of the words of English captions, at least, are articles and their like


def conclude(recipe: Recipe, *, out: Path, device: torch.device) -> None:
    """Say what a finished run gained, let its checkpoint say how far it can be trusted, draw it.

    Writes `gain` into finished.json, best.trust.safetensors and report.html; what cannot be made
    is said, and costs nothing else.
    """
    page = out / "report.html"
    if page.exists():
        return
    origin = load_origin(recipe)
    corpus = read_corpus(recipe, out=out, known=origin.vocabulary if origin else None)
    test = None
    if recipe.max_steps is None:  # by it nothing was chosen; the run has not read it
        test = _attempt("test", partial(read_test, recipe, corpus.vocabulary))
    best = load_checkpoint(out / "best.safetensors")
    caption = partial(captions_of, recipe=recipe, autocast=autocast_of(recipe, device))
    progress = (read_json(out / "finished.json") or {}).get("progress") or {}
    untouched = origin is not None and progress.get("best_at") is None
    gain, notes = None, []
    if recipe.max_steps is not None:
        notes = ["this was a dry run: it says nothing of what a whole one gains"]
    elif untouched:
        notes = ["no epoch was better than the model as it was: best.safetensors is that model"]
    else:
        gain = _attempt("gain", partial(_gain, out, corpus, test, best, origin, caption))
        notes = [] if gain is None else [told(gain)]
    for note in notes:
        _say(f"{note} ({out / 'best.safetensors'})")
    _attempt("trust", partial(_trust, recipe, out, corpus, test, device))
    _attempt(
        "report",
        lambda: write_run(
            page,
            recipe,
            caption(best, some_of(corpus.validation)),
            gain=gain,
            notes=notes,
            untouched=untouched,
        ),
    )


def _attempt(what: str, work: Callable[[], T]) -> T | None:
    try:
        return work()
    except CaptionerError as error:
        _say(f"{what}: {error}")
        return None


def _say(text: str) -> None:
    print(printable(text), file=sys.stderr)


def _gain(
    out: Path,
    corpus: Corpus,
    test: Sequence[CaptionedImage] | None,
    best: Checkpoint,
    origin: Checkpoint | None,
    caption: Callable[..., Any],
) -> dict[str, Any] | None:
    note = read_json(out / "finished.json") or {}
    if origin is None and not test:
        return None
    gain: dict[str, Any] | None = note.get("gain")
    if gain is None:
        images = test or corpus.validation
        gain = measure_gain(
            caption(best, images),
            None if origin is None else caption(origin, images),
            split="test" if test else "val",
        )
        write_json(out / "finished.json", {**note, "gain": gain})
    return gain


def _trust(
    recipe: Recipe,
    out: Path,
    corpus: Corpus,
    test: Sequence[CaptionedImage] | None,
    device: torch.device,
) -> None:
    """Make what records say of trust and familiarity, where there are photos enough to learn it."""
    path = out / "best.safetensors"
    if recipe.max_steps is not None or recipe.data.scenes is not None or trust_file(path).exists():
        return
    words = [word for image in corpus.train[:_TRUSTED] for each in image.words for word in each]
    if sum(word in FUNCTION_WORDS for word in words) < _ENGLISH * len(words):
        _say("records will say nothing of trust: its tables of words are English")
        return
    held_out = corpus.validation
    if len(held_out) < FEWEST_PHOTOS:
        held_out = [*held_out, *(test or ())]
    if min(len(corpus.train), len(held_out)) < FEWEST_PHOTOS:
        _say(
            f"records will say nothing of trust: it is learned from {FEWEST_PHOTOS} photos of the "
            f"training and as many others, and there are {len(corpus.train)} and {len(held_out)}"
        )
        return
    if len(held_out) > len(corpus.validation):
        _say(
            f"trust is learned from the {len(held_out)} photos of val and test together, as val "
            f"has fewer than {FEWEST_PHOTOS}: on test, `evaluate` asks it about photos it knows"
        )
    captioner = Captioner(load_checkpoint(path), device=device)
    train = corpus.train[:: -(-len(corpus.train) // _TRUSTED)]
    for line in write_trust(captioner, path, train, held_out[: _TRUSTED // 2]):
        _say(line)


def write_trust(
    captioner: Captioner,
    checkpoint: Path,
    train: Sequence[CaptionedImage],
    held_out: Sequence[CaptionedImage],
) -> list[str]:
    """Learn what a checkpoint's photos are like and when it is right; write that beside it.

    Args:
        captioner: the checkpoint, ready for use, without trust; it gets the consensus.
        checkpoint: its file.
        train: photos of its training.
        held_out: photos that it was not trained on: every second one is learned from.

    Returns:
        How well it does on the others, and what could not be learned, in sentences.

    Raises:
        DataError: the captions have too few words that name something, or the photos look alike.
        OutputError: the file cannot be written.
    """
    seen = pooled_grids(captioner, train)
    sight = fit_sight(seen, train, captioner.vocabulary)
    notes = []
    if len(train) >= FEWEST_FOR_CONSENSUS:
        captioner.consensus = fit_consensus(seen, train, captioner.vocabulary)
    else:
        captioner.consensus = _bundled_consensus(captioner.checkpoint)
        notes = [
            "which of a beam's sentences people would agree with is learned from "
            f"{FEWEST_FOR_CONSENSUS:,} photos or more, and there are {len(train):,}: "
            + (
                "the likeliest is said"
                if captioner.consensus is None
                else "the bundled model tells"
            )
        ]
    made = CaptionedSplit(captioner, held_out)
    trust = fit_trust(
        made.captioned[::2],
        made.pooled[::2],
        sight=sight,
        familiarity=Familiarity.fit(seen, made.pooled),
        weights=digest_weights(checkpoint_file(checkpoint)),
        consensus=captioner.consensus,
    )
    others = made.captioned[1::2]
    judged = trust.judge(made.pooled[1::2], [[one.hypothesis] for one in others])
    measured = measure_trust(others, [one for (one,) in judged])
    trust.save(trust_file(checkpoint))
    known = ((kind, part_of(measured, kind)) for kind in ("words", "captions"))
    return notes + [
        f"{kind} of the other photos: {part.text('right')} % are right, AUROC "
        f"{part.text('auroc', 3)}, calibration error {part.text('error')} points"
        for kind, part in known
        if part is not None
    ]


def _bundled_consensus(checkpoint: Checkpoint) -> Consensus | None:
    """Take over what chooses among the bundled model's sentences.

    None where the checkpoint sees photos otherwise, or does not begin with the same words.
    """
    try:
        path = bundled_checkpoint()
        trust, bundled = Trust.beside(path), load_checkpoint(path)
    except CheckpointError:  # there is none, or what is to be written anew is damaged
        return None
    words, theirs = checkpoint.vocabulary.ordinary_words, bundled.vocabulary.ordinary_words
    ours, same = checkpoint.model.encoder.state_dict(), bundled.model.encoder.state_dict()
    if (
        trust is None
        or words[: len(theirs)] != theirs
        or checkpoint.transform != bundled.transform
        or ours.keys() != same.keys()
        or not all(torch.equal(ours[name], tensor) for name, tensor in same.items())
    ):
        return None
    return trust.consensus
