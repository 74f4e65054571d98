"""Trust: numbers by hand, the file beside a checkpoint, and the command that writes it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file
from safetensors.numpy import save_file as save_arrays

from captioner import Captioner
from captioner.errors import CheckpointFormatError, UntrustedError
from captioner.generation.beam_search import Hypothesis
from captioner.trust.familiarity import Familiarity, pool
from captioner.trust.trust import Trust, WordFeatures, digest_weights, trust_file
from captioner.vocabulary import Vocabulary
from tests.conftest import make_consensus, make_tiny, make_trust
from tests.launcher import Run
from tests.training.runs import write_data


def test_trust_is_the_logistic_of_three_logarithms() -> None:
    """Two kinds of words, grids of one number whose usual value is 2, and tokens 4 to 6."""
    word_features = WordFeatures(
        kinds=np.array([-1, -1, -1, -1, -1, 0, 1]),
        feature_mean=np.array([2.0]),
        coefficients=np.array([[0.5, -0.25]]),
        shares=np.array([0.1, 0.2]),
    )
    known = make_trust()
    trust = replace(
        known,
        word_features=word_features,
        word=np.array([6.0, 0.5, 0.8, 2.0]),
        caption=np.array([0.5, 0.7]),
    )
    logs = torch.tensor([0.9, 0.6, 0.5, 0.8]).log()
    made = [[Hypothesis([4, 5, 6], 0.0, logs), Hypothesis([4], 0.0, logs[:2])]]
    ((judged, empty),), _ = trust.assess(np.array([[3.0, 1.0]]), made)
    # Of this photo people would say the first kind in 0.1 + 0.5 * (3 - 2), the second in
    # 0.2 - 0.25 of the cases, which counts as a thousandth.
    logits = [
        6 + 0.5 * math.log(seen) + 0.8 * math.log(share) + 2 * math.log(said)
        for seen, share, said in ((0.6, 0.1, 0.6), (0.001, 0.2, 0.5))
    ]
    words = [1 / (1 + math.exp(-logit)) for logit in logits]
    assert judged.words == [None, *map(pytest.approx, words)]
    whole = 0.5 + 0.7 * math.log(words[0] * words[1])
    assert judged.caption == pytest.approx(1 / (1 + math.exp(-whole)))
    assert empty == ([None], None, None)  # it names nothing
    # Of a picture that is no photo a caption is hardly right, whatever its words say.
    flat = replace(trust.familiarity, spreads=np.array([0.9, 1.9]))
    for spread, most in ((0.5, 0.0), (0.9004, 0.004), (0.92, 1.0)):
        ((odd, _),), _ = replace(trust, familiarity=flat).assess(np.array([[3.0, spread]]), made)
        assert odd.words == judged.words
        assert odd.caption == pytest.approx(min(judged.caption or 0, most), rel=1e-3)


def test_each_photo_of_a_batch_is_judged_as_alone() -> None:
    trust, chance = make_trust(), np.random.default_rng(3)
    pooled = chance.normal(size=(3, 577)).astype(np.float32)
    sentences = [Hypothesis(tokens, 0.0, torch.zeros(len(tokens) + 1))
                 for tokens in ([4, 5, 6], [], [7], [5, 5, 8, 2], [6, 4])]  # fmt: skip
    beams = [sentences[:2], sentences[2:3], sentences[3:]]
    together, _ = trust.assess(pooled, beams)
    alone = [trust.assess(pooled[[at]], [beam])[0][0] for at, beam in enumerate(beams)]
    for batch, photo in zip(together, alone, strict=True):
        for judged, expected in zip(batch, photo, strict=True):
            assert judged.caption == pytest.approx(expected.caption)
            assert judged.words == pytest.approx(expected.words)
    same = [trust.assess(pooled[[at]], beams[:1])[0][0][0].words for at in range(3)]
    assert same[0] != same[1] != same[2]  # photos differ


def test_the_first_noun_is_doubtful_below_a_higher_trust(tiny_file: Path) -> None:
    """Tokens 5 to 8 name something; 6 and 8 are nouns. The file keeps which."""
    nouns = np.zeros(50, np.int8)
    nouns[[6, 8]] = 1
    known = make_trust(weights=digest_weights(tiny_file))
    replace(known, word_features=replace(known.word_features, nouns=nouns)).save(
        trust_file(tiny_file)
    )
    trust = Trust.for_checkpoint(tiny_file)
    assert trust is not None
    logs = torch.zeros(5)
    beams = [[[5, 6, 7, 8], [5, 7, 8, 6]], [[5, 7, 5, 7], [5, 6, 7, 8]]]
    made = [[Hypothesis(tokens, 0.0, logs) for tokens in beam] for beam in beams]
    judged, _ = trust.assess(np.zeros((2, 577)), made)
    assert [[sentence.subject for sentence in beam] for beam in judged] == [[1, 2], [None, 1]]
    # Words of an open vocabulary that the file does not know are no nouns.
    nouns[-1] = 1
    features = replace(known.word_features, nouns=nouns)
    assert features.is_noun([8, 49, 50, 99, 7]).tolist() == [True, True, False, False, False]
    photo = Image.radial_gradient("L")
    caption = Captioner.from_pretrained(tiny_file).caption(photo, captions=5, no_repeat_ngram=1)
    subjects = []
    for sentence in (caption, *caption.alternatives):
        is_noun = [word.text in ("cat", "sits") for word in sentence.words]  # tokens 6 and 8
        subject = [word.subject for word in sentence.words]
        subjects.append(is_noun.index(True) if True in is_noun else None)
        assert subject == [at == subjects[-1] for at in range(len(subject))]
    assert {*subjects} - {None, 0}


def test_a_trust_file_belongs_to_one_checkpoint(tiny_file: Path) -> None:
    path = trust_file(tiny_file)
    assert path.name == "tiny.trust.safetensors"
    assert trust_file("runs/v1/model-1.5") == Path("runs/v1/model-1.5.trust.safetensors")
    assert Trust.for_checkpoint(tiny_file) is None
    known = make_trust(weights=digest_weights(tiny_file))
    known.save(path)
    known.save(copy := tiny_file.parent / "new" / "folder" / path.name)
    assert copy.read_bytes() == path.read_bytes()
    again = Trust.for_checkpoint(tiny_file)
    means = np.random.default_rng(0).normal(size=(2, 577)).astype(np.float32)
    made = [[Hypothesis([4, 5], 0.0, torch.tensor([-1.0, -2.0, 0.0]))]] * 2
    assert again is not None and again.assess(means, made) == known.assess(means, made)
    open_words = replace(known, words=("a", "dog", "cat", "runs", "sits", *"bcdef"))
    open_words.save(path)
    again = Trust.for_checkpoint(tiny_file)
    assert again is not None and again.words == open_words.words
    replace(known, words=open_words.words[1:]).save(path)
    with pytest.raises(CheckpointFormatError, match="some words have no kind"):
        Trust.for_checkpoint(tiny_file)
    replace(known, weights="others").save(path)
    assert Trust.for_checkpoint(tiny_file) is None
    whole = make_trust(weights=digest_weights(tiny_file), consensus=make_consensus())
    whole.save(path)
    again = Trust.for_checkpoint(tiny_file)
    assert again is not None and again.consensus is not None and whole.consensus is not None
    offset, sentences = np.ones(576, np.float32), [[4, 5, 12]]
    expected = whole.consensus.expect(offset, sentences)
    assert again.consensus.expect(offset, sentences) == expected
    assert again.consensus.coefficients.dtype == np.int8
    parts, metadata = load_file(path), {"trust": json.dumps({"weights": whole.weights})}
    damaged = [
        ("consensus.slopes", np.zeros((3, 576), np.int8), ""),
        ("consensus.rarity", np.ones(3, np.float32), ""),
        ("consensus.grams", np.zeros((46, 2), np.float32), ""),
        ("consensus.middle", np.full(576, np.nan, np.float32), ""),
        ("sight.kinds", parts["sight.kinds"] + 1, "some words have an unknown kind"),
        ("sight.kinds", parts["sight.kinds"] - 1, "some words have an unknown kind"),
    ]
    for name, part in parts.items():
        if not name.startswith("consensus.") and name != "familiarity.rest":
            damaged += [(name, part[..., None], "")]
            damaged += [(name, part[:-1], "")] if name != "sight.kinds" else []
    for name in ("word", "caption", "sight.shares", "familiarity.quantiles"):
        for value in (np.nan, np.inf):
            damaged.append((name, np.full_like(parts[name], value), f"{name} has values that are"))
    for name, other, message in damaged:
        save_arrays({**parts, name: np.ascontiguousarray(other)}, path, metadata=metadata)
        with pytest.raises(CheckpointFormatError, match=message + ".*remove it, or write it again"):
            Trust.for_checkpoint(tiny_file)
    path.write_bytes(b"nothing")
    for content in (None, {"trust": "{}"}, {"trust": "[" * 100_000}):
        if content is not None:
            save_arrays({"word": np.zeros(4)}, path, metadata=content)
        with pytest.raises(CheckpointFormatError, match="remove it, or write it again"):
            Trust.for_checkpoint(tiny_file)


def test_a_trust_file_of_another_vocabulary_is_refused(tiny_file: Path) -> None:
    known, path = make_trust(weights=digest_weights(tiny_file)), trust_file(tiny_file)
    known.save(path)
    assert Captioner.from_pretrained(tiny_file).trust is not None
    features = replace(known.word_features, kinds=known.word_features.kinds[:-1])
    replace(known, word_features=features).save(path)
    with pytest.raises(CheckpointFormatError, match="13 words, its vocabulary has 14: remove it"):
        Captioner.from_pretrained(tiny_file)


def test_the_digest_depends_on_weights_and_transform_not_on_the_name(tmp_path: Path) -> None:
    """The name and the scores of a checkpoint may change; weights and transform may not."""
    made = make_tiny()
    made.save(first := tmp_path / "first.safetensors")
    replace(made, name="other", metrics={"CIDEr": 1.0}).save(second := tmp_path / "2.safetensors")
    assert digest_weights(second) == digest_weights(first)
    wider = replace(made, transform=replace(made.transform, size=128))
    wider.save(third := tmp_path / "third.safetensors")
    words = Vocabulary(made.vocabulary.ordinary_words[::-1])
    replace(made, vocabulary=words).save(fifth := tmp_path / "fifth.safetensors")
    with torch.no_grad():
        made.model.decoder.embedding.weight[5, 0] += 1
    made.save(fourth := tmp_path / "fourth.safetensors")
    assert len({digest_weights(path) for path in (first, third, fourth, fifth)}) == 4


@pytest.mark.slow
def test_captioner_trust_adds_trust_to_records(run_main: Run, tiny_file: Path) -> None:
    data = tiny_file.parent / "data"
    write_data(data, photos=100)
    photo, strange = data / "val" / "70.png", tiny_file.parent / "strange.png"
    Image.radial_gradient("L").convert("RGB").save(strange)
    caption = ("caption", photo, "--checkpoint", tiny_file, "--json")
    before = json.loads(run_main(*caption).stdout)
    assert "familiarity" not in before and "trust" not in before
    # The command mends a file that nothing else can read.
    trust_file(tiny_file).write_bytes(b"nothing")
    done = run_main(*caption)
    assert done.returncode == 1 and "again with `captioner trust`" in done.stderr
    done = run_main("trust", tiny_file, data, "--device", "cpu")
    assert done.stdout.strip() == str(trust_file(tiny_file)), done.stderr
    assert "captioner: Held-out photos: words: right, %: " in done.stderr
    record = json.loads(run_main(*caption).stdout)
    said, sure = record["caption"], max(0, record["trust"] - 0.001)
    assert 0 <= record.pop("familiarity") <= 1 and 0 <= record.pop("trust") <= 1
    trusts = [word.pop("trust", None) for word in record["words"]]
    marks = [word.pop("doubtful", False) for word in record["words"]]
    assert all(trust < 0.75 for trust, mark in zip(trusts, marks, strict=True) if mark)
    named = [word["word"] not in ("a", "in", "the") for word in record["words"]]
    assert [trust is not None for trust in trusts] == named and record == before
    captioner = Captioner.from_pretrained(tiny_file, device="cpu")
    alike, unlike = captioner.caption([photo, strange])
    assert alike.familiarity is not None and unlike.familiarity is not None
    assert unlike.familiarity < 0.01 < alike.familiarity
    result = run_main("caption", photo, strange, "--checkpoint", tiny_file)
    assert result.returncode == 0 and len(result.stdout.splitlines()) == 2
    lines = result.stderr.splitlines()
    (line,) = [line for line in lines if "looks unlike the training photos" in line]
    assert line.startswith(f"captioner: {strange} ") and unlike.doubt is not None
    doubts = {photo: alike.doubt, strange: unlike.doubt}
    assert {*lines} - {line} == {
        f"captioner: {path}: {doubt}" for path, doubt in doubts.items() if doubt
    }
    least = (*caption[:-1], "--minimum-trust")
    some, none = run_main(*least, sure), run_main(*least, 1, "--json")
    assert (some.returncode, some.stdout.strip()) == (0, said)
    assert none.returncode == 1 and json.loads(none.stdout)["error"]["type"] == "untrusted"
    with pytest.raises(UntrustedError, match=r"caption dropped \(trust"):
        captioner.caption(photo, minimum_trust=1)
    (left,) = captioner.caption([photo], errors="return", minimum_trust=1)
    assert isinstance(left, UntrustedError)
    done = run_main("trust", tiny_file, data, "--photos", "5")
    assert done.returncode == 2 and "photos is 5; it must be at least" in done.stderr
    few = tiny_file.parent / "few"
    write_data(few, photos=6)
    done = run_main("trust", tiny_file, few, "--device", "cpu")
    assert done.returncode == 1 and "6 training photos are too few" in done.stderr


# Familiarity: distances against Mahalanobis' formula, and shares of photos


def cloud(count: int, *, seed: int) -> np.ndarray:
    chance = np.random.default_rng(seed)
    means = chance.normal(size=(count, 3)) * [3.0, 1.0, 0.5] + 2
    return np.concatenate([means, chance.random((count, 1)) + 1], axis=1).astype(np.float32)


def test_a_grid_is_pooled_to_its_mean_and_how_much_its_cells_differ() -> None:
    features = torch.tensor([[[0.0, 5.0], [2.0, 5.0], [4.0, 2.0], [2.0, 8.0]]])
    deviations = 2.0**0.5, 4.5**0.5
    wanted = pytest.approx(np.array([[2.0, 5.0, sum(deviations) / 2]]))
    assert pool(features) == wanted


def test_distances_are_mahalanobis() -> None:
    seen = cloud(500, seed=0)
    known = Familiarity.fit(seen, cloud(200, seed=1))
    offset = (cloud(20, seed=2) - seen.mean(axis=0))[:, :3].astype(float)
    inverse = np.linalg.inv(np.cov(seen[:, :3].T))
    wanted = np.sqrt(np.einsum("ni,ij,nj->n", offset, inverse, offset))
    found = known.distances(cloud(20, seed=2))
    np.testing.assert_allclose(found, wanted, rtol=0.01, atol=0.01)  # kept in half precision


def test_familiarity_is_the_share_of_photos_that_are_farther_away() -> None:
    """Farther out, or flatter."""
    kept_back = cloud(200, seed=1)
    known = Familiarity.fit(cloud(500, seed=0), kept_back)
    far = np.full(3, 99.0)
    means = np.stack([known.mean, known.mean, far])
    pooled = np.concatenate([means, [[1.5], [0.5], [1.5]]], axis=1)
    assert known.of(pooled) == [pytest.approx(1, abs=0.1), 0, 0]
    assert known.of(np.full((1, 4), np.nan)) == [0]
    # Of photos of this very kind each share is there; but a flat one is no photo.
    flatter = np.sort(kept_back[:, -1])
    shares = {}
    for part in (0, 1, 100):
        kept_back[:, -1] = flatter[part]
        shares[part] = np.sort(known.of(kept_back))
    wanted = np.linspace(0, 1, 200)
    for part, most in ((0, 0.0), (1, 10 / 199), (100, 1.0)):
        np.testing.assert_allclose(shares[part], wanted.clip(max=most), rtol=0, atol=1e-3)


def test_identical_photos_give_finite_distances() -> None:
    known = Familiarity.fit(np.ones((20, 31)), np.ones((50, 31)))  # and fewer than numbers
    same, other = known.distances(np.stack([np.ones(31), np.zeros(31)])).tolist()
    assert same == 0 and 0 < other < float("inf")
