"""The deletion test over a whole split, and what is told of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from tqdm import tqdm

from captioner.deletion import WordEffect, random_cells, word_effects
from captioner.errors import DataError
from captioner.model import CaptionModel
from captioner.transforms import Transform
from captioner.word import SHUT_GATE
from captioner_training.evaluation.bootstrap import Table, estimate, mean_table, told
from captioner_training.evaluation.captioned import Captioned
from captioner_training.evaluation.split import StoredGrids, encode_split

__all__ = ["FUNCTION_WORDS", "measure_deletion", "summarize_effects"]

_BATCH = 25  # images: each word of a batch is tested 19 times, on copies of their grids

_FUNCTION = """
a an the this that these those its his her their it he she they them who which what there
of in on at to from by with without for as into onto over under near through up down out off
and or but while is are was were be been being has have had do does did not n't 's 're
some other another each very so than then also
"""
# Words of English captions that name nothing to be seen; all others are content words.
FUNCTION_WORDS = frozenset(_FUNCTION.split())


def measure_deletion(
    model: CaptionModel,
    captioned: Sequence[Captioned],
    *,
    transform: Transform,
    autocast: torch.autocast,
    workers: int = 2,
    seed: int = 0,
    grids: tuple[StoredGrids, Sequence[int]] | None = None,
    insertion: bool = True,
) -> dict[str, object]:
    """Test every word of the captions of a split; see summarize_effects.

    `grids` are those of the images, where they have been made before, and their places there.

    Raises:
        DataError: the model captions without attention.

    """
    device = next(model.parameters()).device
    model.eval()
    draws = random_cells(torch.Generator().manual_seed(seed))
    batches = encode_split(
        model,
        [one.image for one in captioned],
        transform,
        autocast=autocast,
        workers=workers,
        batch_size=_BATCH,
        grids=grids,
    )
    found: list[WordEffect] = []
    first = 0
    with tqdm(desc="deletion", total=len(captioned), leave=False, disable=None) as bar:
        for grid in batches:
            tokens = [one.hypothesis.tokens for one in captioned[first : first + _BATCH]]
            with autocast:
                effects = word_effects(
                    model.decoder,
                    grid.features.to(device),
                    tokens,
                    draws=draws,
                    insertion=insertion,
                )
            found += [one._replace(caption=first + one.caption) for one in effects]
            first += len(tokens)
            bar.update(len(tokens))
    if not found:
        raise DataError("the model captions without attention: there is nothing to delete")
    return summarize_effects(found, [one.words for one in captioned])


def summarize_effects(
    effects: Sequence[WordEffect], captions: Sequence[Sequence[str]]
) -> dict[str, object]:
    """Average over content words, function words, and content words whose gate is shut.

    Returns:
        For each kind: `words`, how many; means over them in nats, with `intervals` over images:
        `deletion`, `random_deletion`, their difference `effect`, `insertion`, `random_insertion`;
        and `cells`, `entropy` and `gate` of the attention.

    """
    kinds: dict[str, list[WordEffect]] = {"content": [], "content_shut_gate": [], "function": []}
    for one in effects:
        content = captions[one.caption][one.place] not in FUNCTION_WORDS
        shut = one.gate is not None and one.gate < SHUT_GATE
        kind = "content_shut_gate" if shut else "content"
        kinds[kind if content else "function"].append(one)
    return {
        kind: {"words": len(some), **told(estimate(_tables(some, len(captions))))}
        for kind, some in kinds.items()
        if some
    }


def _tables(effects: Sequence[WordEffect], images: int) -> dict[str, Table]:
    at = np.array([one.caption for one in effects])
    counts = np.bincount(at, minlength=images)
    columns = {
        "effect": [one.effect for one in effects],
        "deletion": [one.deletion for one in effects],
        "random_deletion": [one.random_deletion for one in effects],
        "insertion": [one.insertion for one in effects],
        "random_insertion": [one.random_insertion for one in effects],
        "cells": [float(one.cells) for one in effects],
        "entropy": [one.entropy for one in effects],
        "gate": [math.nan if one.gate is None else one.gate for one in effects],
    }
    return {
        name: mean_table(np.bincount(at, weights=values, minlength=images), counts)
        for name, values in columns.items()
        if not any(map(math.isnan, values))
    }
