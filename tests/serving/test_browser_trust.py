"""The exported page's trust.js computes the library's trust, familiarity and consensus."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest
import torch

from captioner.generation.beam_search import Hypothesis
from captioner.trust.familiarity import Familiarity, pool
from captioner.trust.trust import DOUBTFUL, DOUBTFUL_SUBJECT, UNFAMILIAR, Trust
from tests.conftest import ROOT, make_consensus, make_trust
from tests.node import run_module

TRUST_JS = ROOT / "serving" / "captioner_serving" / "browser" / "static" / "trust.js"
LIMITS = {"doubtful": DOUBTFUL, "doubtful_subject": DOUBTFUL_SUBJECT, "unfamiliar": UNFAMILIAR}
END, WIDTH = 2, 8
JUDGE = """
import { readFileSync } from "node:fs";
const [module, file] = process.argv.slice(-2);
const { pool, readTensors, Trust } = await import(module);
const { limits, statistics, photos } = JSON.parse(readFileSync(file));
const bytes = Buffer.from(statistics, "base64");
const buffer = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
const trust = new Trust(limits, readTensors(buffer));
console.log(JSON.stringify(photos.map(({ grid, dims, sentences }) => {
    const pooled = pool({ data: grid, dims }), familiarity = trust.familiarity(pooled);
    const ranked = trust.choose(sentences, pooled);
    const judge = (sentence) => trust.judge(sentence, pooled, familiarity);
    return { familiarity, judged: ranked.map(judge) };
})));
"""


def make_statistics(chance: np.random.Generator) -> Trust:
    """Make a trust fitted on drawn photos, in which half of the words are nouns."""
    trust = make_trust(grid_dim=WIDTH, consensus=make_consensus(grid_dim=WIDTH))
    clouds = [pool(torch.from_numpy(chance.normal(size=(400, 9, WIDTH)))) for _ in range(2)]
    features = replace(trust.word_features, nouns=np.arange(14, dtype=np.int8) % 2)
    return replace(trust, familiarity=Familiarity.fit(*clouds), word_features=features)


@pytest.mark.needs("node")
def test_photos_are_judged_and_sentences_ranked_as_in_the_library(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    trust = make_statistics(chance)
    # An ordinary photo, a flat one, and one far from all others.
    grids = chance.normal(size=(3, 9, WIDTH)).astype(np.float32) * [[[1]], [[0.8]], [[1]]]
    grids[2] += 5
    beams = [
        [
            Hypothesis(
                tokens, 0.0, torch.from_numpy(-chance.exponential(0.5, len(tokens) + 1)).float()
            )
            for tokens in ([4, 5, 6, 4, 5], [3, 7, 13, 13], [9], [12, 3, 5, 8, 10, 11])
        ]
        for _ in grids
    ]
    features = torch.from_numpy(grids)
    assert trust.consensus is not None
    ranked = trust.consensus.rank(features, beams, attrgetter("tokens"))
    expected, familiarities = trust.assess(pool(features), ranked)
    assert [value < UNFAMILIAR for value in familiarities] == [False, False, True]

    photos = [
        {
            "grid": grid.ravel().tolist(),
            "dims": [1, *grid.shape],
            "sentences": [
                {"tokens": [*hypothesis.tokens, END], "logs": hypothesis.log_probabilities.tolist()}
                for hypothesis in beam
            ],
        }
        for grid, beam in zip(grids, beams, strict=True)
    ]
    trust.save(tmp_path / "trust.safetensors")
    statistics = base64.b64encode((tmp_path / "trust.safetensors").read_bytes()).decode()
    file = tmp_path / "photos.json"
    file.write_text(json.dumps({"limits": LIMITS, "statistics": statistics, "photos": photos}))
    found = json.loads(run_module(JUDGE, tmp_path, TRUST_JS.as_uri(), str(file)))

    for photo, familiarity, beam, judgements in zip(
        found, familiarities, ranked, expected, strict=True
    ):
        assert photo["familiarity"] == pytest.approx(familiarity, abs=1e-4)
        for judged, hypothesis, judgement in zip(photo["judged"], beam, judgements, strict=True):
            assert judged["tokens"] == [*hypothesis.tokens, END]
            assert judged["trust"] == pytest.approx(judgement.caption, abs=1e-4)
            assert judged["trusts"] == [
                None if value is None else pytest.approx(value, abs=1e-4)
                for value in judgement.words
            ]
            assert judged["doubtful"] == [
                value is not None
                and value < (DOUBTFUL_SUBJECT if place == judgement.subject else DOUBTFUL)
                for place, value in enumerate(judgement.words)
            ]
