"""Generation against exhaustive search and hand-made models."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from captioner import ConfigError, GenerationConfig, GenerationError
from captioner.generation.beam_search import beam_search, read_sentences
from captioner.generation.constraints import Constraints
from captioner.generation.generate import generate
from captioner.generation.sampling import draw, filter_top
from captioner.model.decoder import State, StepOutput, log_probabilities
from captioner.vocabulary import END, PAD, START, UNK, Tokenizer, Vocabulary

VOCABULARY = 7  # three words: 4, 5 and 6
CELLS = 1009  # a prime: a history's own cell
HISTORIES = 2**31 - 1  # a prime: long histories are told apart by their remainder


def extend(history: int, word: int, words: int = VOCABULARY) -> int:
    """The number of a history, one word longer."""
    return (history * words + word) % HISTORIES


class Historian:
    """A hand-made decoder: logits and attention are functions of image and history alone.

    The state is the history as a number in base VOCABULARY. The attention is one-hot at
    history modulo CELLS and the gate tells the history's length, so each word's attention gives
    away which hypothesis it belongs to. A second head is at half the history.
    """

    def __init__(self, words: int = VOCABULARY, scale: float = 2.0, *, blind: bool = False) -> None:
        self.words = words
        self.scale = scale
        self.blind = blind  # says nothing of attention and gate

    def start(self, features: Tensor) -> State:
        nothing = torch.zeros(len(features), 1, dtype=torch.long)
        return State(image={"image": features[:, :, 0].long()}, hypothesis={"history": nothing})

    def step(self, tokens: Tensor, state: State) -> StepOutput:
        histories = (state.hypothesis["history"] * self.words + tokens) % HISTORIES
        images = state.image["image"][:, 0].tolist()
        logits = torch.stack(
            [
                torch.stack([self.logits(image, history) for history in row])
                for image, row in zip(images, histories.tolist(), strict=True)
            ]
        )
        following = State(state.image, {"history": histories})
        if self.blind:
            return StepOutput(logits, following)
        heads = histories.unsqueeze(-1) // torch.tensor([1, 2]) % CELLS
        attention = torch.zeros(*tokens.shape, 2, CELLS).scatter(-1, heads.unsqueeze(-1), 1.0)
        gate = histories.float().log1p()
        return StepOutput(logits, following, attention[:, :, 0], gate, attention)

    def logits(self, image: int, history: int) -> Tensor:
        generator = torch.Generator().manual_seed(image * 7919 + history)
        return self.scale * torch.randn(self.words, generator=generator)


def features(*images: int) -> Tensor:
    return torch.tensor(images, dtype=torch.float32).view(-1, 1, 1)


class Hasty(Historian):
    """Would rather end after each word than go on. Counts the images of its steps."""

    rows = 0

    def step(self, tokens: Tensor, state: State) -> StepOutput:
        self.rows += len(tokens)
        return super().step(tokens, state)

    def logits(self, image: int, history: int) -> Tensor:
        logits = super().logits(image, history)
        logits[END] += 3.0 if history > START else 0.0
        return logits


def widen(config: GenerationConfig, **widths: int) -> GenerationConfig:
    """Widths that no front end takes; the search itself has no limit."""
    wide = replace(config)
    for name, width in widths.items():
        object.__setattr__(wide, name, width)
    return wide


def exhaustive(
    model: Historian, image: int, *, longest: int, penalty: float
) -> list[tuple[float, tuple[int, ...]]]:
    """Score every sentence of at most `longest` words, the best first."""
    scored = []

    def grow(sentence: tuple[int, ...], history: int, total: float) -> None:
        logs = model.logits(image, history).log_softmax(-1).tolist()
        if sentence:
            scored.append(((total + logs[END]) / (len(sentence) + 1) ** penalty, sentence))
        if len(sentence) < longest:
            for word in range(4, model.words):
                grow((*sentence, word), extend(history, word, model.words), total + logs[word])

    grow((), START, 0.0)
    return sorted(scored, reverse=True)


@pytest.mark.parametrize(
    ("penalty", "captions"), [(0.0, 5), (0.5, 1), (0.5, 5), (0.5, 780), (1.0, 5)]
)
def test_a_beam_that_holds_everything_is_exhaustive_search(penalty: float, captions: int) -> None:
    model, longest = Hasty(words=9, scale=1.0, blind=True), 4
    images = range(1, 13 if captions < 780 else 4)
    config = widen(
        GenerationConfig(maximum_length=longest, length_penalty=penalty, no_repeat_ngram=0),
        beam_size=780,
        captions=captions,
    )
    for image, hypotheses in zip(images, generate(model, features(*images), config), strict=True):
        expected = exhaustive(model, image, longest=longest, penalty=penalty)
        assert len(expected) == 780  # 5 + 25 + 125 + 625
        scores = {sentence: score for score, sentence in expected}
        assert len({tuple(h.tokens) for h in hypotheses}) == captions
        for hypothesis, (score, _) in zip(hypotheses, expected, strict=False):
            # Two sentences may be as good as each other, but for float32.
            assert scores[tuple(hypothesis.tokens)] == pytest.approx(score, abs=1e-5)
            assert hypothesis.score == pytest.approx(score, abs=1e-5)
        ranked = [hypothesis.score for hypothesis in hypotheses]
        assert ranked == sorted(ranked, reverse=True)


def plain_search(
    model: Historian, image: int, config: GenerationConfig
) -> list[tuple[float, tuple[int, ...]]]:
    """Beam search with lists: 2K ways to go on, of which the K best may be ends.

    It runs to the maximum length.
    """
    beam, penalty = config.beam_size, config.length_penalty
    ends: list[tuple[float, tuple[int, ...]]] = []
    open_ = [(0.0, (), START)]
    for step in range(config.maximum_length + 1):
        ways = []
        for total, sentence, history in open_:
            logs = model.logits(image, history).log_softmax(-1).tolist()
            said = range(4, model.words) if step < config.maximum_length else ()
            for word in (*said, *([END] if sentence else [])):
                ways.append((total + logs[word], sentence, word, history))
        ways = sorted(ways, reverse=True)[: 2 * beam]
        ends += [(way[0] / (step + 1) ** penalty, way[1]) for way in ways[:beam] if way[2] == END]
        open_ = [
            (total, (*sentence, word), extend(history, word, model.words))
            for total, sentence, word, history in ways
            if word != END
        ][:beam]
        if not open_:
            break
    return sorted(ends, reverse=True)[: config.captions]


@pytest.mark.parametrize("words", [9, 300])
@pytest.mark.parametrize(
    ("beam", "captions", "penalty"),
    [(2, 2, 0.0), (3, 1, 0.5), (3, 1, 1.0), (3, 3, 1.0), (4, 2, 2.0)],
)
def test_a_narrow_beam_is_beam_search_with_lists(
    beam: int, captions: int, penalty: float, words: int
) -> None:
    images = range(1, 41 if words == 9 else 13)
    config = GenerationConfig(
        beam_size=beam, captions=captions, length_penalty=penalty, maximum_length=7,
        no_repeat_ngram=0,
    )  # fmt: skip
    for model in (Hasty(words=words, scale=1.0, blind=True), Historian(words=words, blind=True)):
        together = generate(model, features(*images), config)
        for image, found in zip(images, together, strict=True):
            expected = plain_search(model, image, config)
            assert [tuple(made.tokens) for made in found] == [said for _, said in expected]
            for hypothesis, (score, _) in zip(found, expected, strict=True):
                assert hypothesis.score == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize("captions", [1, 3])
def test_a_search_that_never_reads_from_the_device_finds_the_same(captions: int) -> None:
    """A CUDA graph holds a search without checks, which takes all steps."""
    config = GenerationConfig(beam_size=3, captions=captions, maximum_length=7)
    constraints = Constraints(maximum_length=7, minimum_length=1, no_repeat_ngram=2)
    images, model = features(*range(1, 21)), Hasty(words=9, scale=1.0)
    wanted = generate(model, images, config)
    assert model.rows < 20 * 8  # the sentences end earlier
    starts = torch.full((20,), START)
    search = beam_search(
        model, images, starts, config=config, constraints=constraints, checks=False
    )
    for ours, theirs in zip(read_sentences(search), wanted, strict=True):
        for mine, other in zip(ours, theirs, strict=True):
            assert (mine.tokens, mine.score) == (other.tokens, other.score)
            for part in ("log_probabilities", "attention", "gate", "heads"):
                assert torch.equal(getattr(mine, part), getattr(other, part))


def test_greedy_search_stops_when_all_captions_have_ended() -> None:
    model = Hasty(words=9, scale=1.0)
    captions = generate(model, features(1, 2, 3), GenerationConfig(beam_size=1, maximum_length=50))
    longest = max(len(hypothesis.tokens) for (hypothesis,) in captions)
    assert longest < 50 and model.rows == 3 * (longest + 1)


def test_consensus_chooses_from_the_whole_beam() -> None:
    class Reverse:
        def rank(self, _features: Tensor, beams: list[list[Any]], _tokens: object) -> Any:
            return [beam[::-1] for beam in beams]

    model, images = Historian(), features(1, 2, 3)
    config = GenerationConfig(beam_size=4, captions=4, maximum_length=6, consensus=False)
    beams = generate(model, images, config)
    consensus: Any = Reverse()
    chosen = generate(
        model, images, replace(config, captions=1, consensus=True), consensus=consensus
    )
    for beam, (hypothesis,) in zip(beams, chosen, strict=True):
        assert hypothesis.tokens == beam[-1].tokens


@pytest.mark.parametrize(
    "config",
    [
        GenerationConfig(beam_size=4, captions=4, maximum_length=6, length_penalty=0.7),
        GenerationConfig(beam_size=1, maximum_length=6, length_penalty=0.7),
        GenerationConfig(sample=True, captions=5, maximum_length=6, seed=1, length_penalty=0.7),
    ],
    ids=["beam", "greedy", "sampling"],
)
def test_attention_and_gate_follow_their_own_hypothesis(config: GenerationConfig) -> None:
    crossed, model = 0, Historian()
    for image, hypotheses in enumerate(generate(model, features(1, 2, 3), config), start=1):
        for hypothesis in hypotheses:
            history, logs = START, []
            for word in (*hypothesis.tokens, END):
                logs.append(model.logits(image, history).log_softmax(-1)[word].item())
                history = extend(history, word)
            assert hypothesis.log_probabilities.tolist() == pytest.approx(logs, abs=1e-5)
            assert hypothesis.score == pytest.approx(sum(logs) / len(logs) ** 0.7, abs=1e-5)
            history = START
            for t, word in enumerate(hypothesis.tokens):
                places = [history % CELLS, history // 2 % CELLS]
                assert hypothesis.attention[t].argmax() == places[0]
                assert hypothesis.heads[t].argmax(-1).tolist() == places
                assert hypothesis.gate[t].item() == pytest.approx(math.log1p(history), rel=1e-6)
                history = extend(history, word)
            assert len(hypothesis.attention) == len(hypothesis.tokens) == len(hypothesis.gate)
        crossed += len({h.tokens[0] for h in hypotheses}) < len(hypotheses)
    # The beams of at least one image must have shared a parent, or this shows nothing.
    assert config.beam_size == 1 or crossed


def test_a_copy_does_not_keep_the_batch_in_memory() -> None:
    (hypothesis,), *_ = generate(Historian(), features(1, 2, 3), GenerationConfig(beam_size=2))
    copy = hypothesis.copy()
    for name in ("log_probabilities", "attention", "gate", "heads"):
        part = getattr(copy, name)
        assert torch.equal(part, getattr(hypothesis, name))
        assert part.untyped_storage().nbytes() == part.nbytes
    assert copy[:2] == hypothesis[:2]


class Stammerer(Historian):
    """Prefers special tokens, then its last word."""

    def logits(self, image: int, history: int) -> Tensor:
        logits = super().logits(image, history)
        logits[[PAD, START, UNK]] += 100
        if history > START:
            logits[history % self.words] += 3
        return logits


@pytest.mark.parametrize(
    "method", [{"beam_size": 4}, {"beam_size": 1}, {"sample": True, "captions": 20, "seed": 3}]
)
@pytest.mark.parametrize("n", [0, 1, 2, 3, 5])
def test_constraints_hold_in_every_method(n: int, method: dict[str, object]) -> None:
    """Lengths, n-grams, words twice in a row, special tokens."""
    config = GenerationConfig(
        no_repeat_ngram=n,
        minimum_length=3,
        maximum_length=7,
        **method,  # type: ignore[arg-type]
    )

    def doubles(tokenizer: Tokenizer) -> int:
        model, vocabulary = Stammerer(words=9), Vocabulary([*"abcde"], tokenizer=tokenizer)
        found = generate(model, features(*range(8)), config, vocabulary=vocabulary)
        sentences = [hypothesis.tokens for hypotheses in found for hypothesis in hypotheses]
        for words in sentences:
            assert 3 <= len(words) <= 7 and min(words) >= 4
            grams = [tuple(words[at : at + n]) for at in range(len(words) - n + 1)] if n else []
            assert len(grams) == len(set(grams)), words
        return sum(a == b for words in sentences for a, b in itertools.pairwise(words))

    for tokenizer in ("words", "unicode"):
        assert (doubles(tokenizer) > 5) == (n == 0)
    assert (doubles("characters") > 5) == (n != 1)  # as in 人人, everybody


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_greedy_search_equals_a_search_with_rules_over_lists(n: int) -> None:
    """Greedy, with the rules over lists: nothing else is forbidden either."""
    model, vocabulary = Historian(words=8), Vocabulary(["and", "red", "blue", "dog"])
    config = GenerationConfig(beam_size=1, no_repeat_ngram=n, minimum_length=12, maximum_length=16)
    images = range(30)
    found = generate(model, features(*images), config, vocabulary=vocabulary)
    for image, (hypothesis,) in zip(images, found, strict=True):
        said: list[int] = []
        history = START
        while len(said) < config.maximum_length:
            grams = {tuple(said[at : at + n]) for at in range(len(said) - n + 1)} if n else set()
            logs = model.logits(image, history).tolist()
            allowed = [
                word
                for word in (END, 4, 5, 6, 7)
                if (word != END or len(said) >= config.minimum_length)
                and (word == END or not n or tuple([*said, word][-n:]) not in grams)
                and not (n and said and word == said[-1])
                and not (len(said) >= 2 and said[-1] == 4 and word == said[-2])  # "and"
            ]
            word = max(allowed or [END], key=lambda word: logs[word])
            if word == END:
                break
            said.append(word)
            history = extend(history, word, model.words)
        assert hypothesis.tokens == said


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_log_probabilities_are_exact_in_half_precision(dtype: torch.dtype) -> None:
    logits = torch.linspace(-8, 8, 500).to(dtype)
    exact = logits.double() - logits.double().exp().sum().log()
    torch.testing.assert_close(log_probabilities(logits).double(), exact, atol=1e-5, rtol=0)


@pytest.mark.parametrize("method", [{"beam_size": 3}, {"beam_size": 1}, {"sample": True}])
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_nan_scores_raise_a_clear_error(method: dict[str, object], poison: float) -> None:
    class Broken(Historian):
        def logits(self, image: int, history: int) -> Tensor:
            logits = super().logits(image, history)
            if history > 100:  # the first steps are healthy
                logits[5] = poison
            return logits

    with pytest.raises(GenerationError, match="NaN or infinity"):
        generate(Broken(), features(1), GenerationConfig(minimum_length=4, **method))


@pytest.mark.parametrize("method", [{"beam_size": 3}, {"beam_size": 1}, {"sample": True}])
def test_models_that_never_end_or_end_at_once_give_hypotheses(method: dict[str, object]) -> None:
    class Endless(Historian):
        def logits(self, image: int, history: int) -> Tensor:
            logits = super().logits(image, history)
            logits[END] = -math.inf
            return logits

    (endless,) = generate(Endless(), features(1), GenerationConfig(no_repeat_ngram=0, **method))[0]
    assert len(endless.tokens) == GenerationConfig().maximum_length

    class Mute(Historian):
        def logits(self, image: int, history: int) -> Tensor:
            return torch.full((VOCABULARY,), -math.inf).index_fill(0, torch.tensor([END]), 0.0)

    (mute,) = generate(Mute(), features(1), GenerationConfig(minimum_length=0, **method))[0]
    assert mute.tokens == [] and mute.score == pytest.approx(0)

    # One word, no repetition, at least five words: the constraints cannot all hold.
    config = GenerationConfig(minimum_length=5, no_repeat_ngram=1, **method)
    assert generate(Historian(words=5), features(1), config)[0][0].tokens == [4]


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_sampling_draws_from_the_models_distribution(temperature: float) -> None:
    model = Historian(scale=1.0)
    config = GenerationConfig(
        sample=True, maximum_length=1, no_repeat_ngram=0, seed=0, temperature=temperature
    )
    config = widen(config, captions=4000)
    drawn = Counter(h.tokens[0] for h in generate(model, features(3), config)[0])
    expected = (model.logits(3, START)[4:] / temperature).softmax(-1)
    for word in (4, 5, 6):
        p = expected[word - 4].item()
        spread = math.sqrt(p * (1 - p) / 4000)
        assert abs(drawn[word] / 4000 - p) < 4 * spread  # four standard deviations


def test_sampling_repeats_with_its_seed_only() -> None:
    def draw(seed: int | None) -> list[list[int]]:
        config = GenerationConfig(sample=True, captions=6, seed=seed)
        return [h.tokens for h in generate(Historian(words=50), features(1), config)[0]]

    assert draw(1) == draw(1) != draw(2)
    assert draw(None) != draw(None)


def test_top_k_and_top_p() -> None:
    logits = torch.tensor([[0.5, 0.25, 0.15, 0.1]]).log()

    def kept(**limits: float) -> list[int]:
        filtered = filter_top(logits, **{"top_k": 0, "top_p": 1.0, **limits})  # type: ignore[arg-type]
        return torch.isfinite(filtered[0]).nonzero().flatten().tolist()

    assert kept() == kept(top_k=9) == [0, 1, 2, 3]
    assert kept(top_k=2) == kept(top_p=0.7) == [0, 1]  # 0.5 does not reach 0.7, 0.75 does
    assert kept(top_p=0.8) == [0, 1, 2] and kept(top_p=0.01) == [0]
    assert kept(top_k=3, top_p=0.8) == [0, 1]  # of 0.9, 0.75 is more than 0.8


def test_for_request_combines_options_and_settings() -> None:
    own = GenerationConfig(beam_size=5, length_penalty=0.7)
    assert own.for_request() == own
    assert own.for_request(captions=8) == replace(own, beam_size=8, captions=8)  # as wide as needed
    assert own.for_request(beam_size=20, captions=20).captions == 20
    for asked in ({"beam_size": 2, "captions": 3}, {"captions": 21}, {"beam_size": 21}):
        with pytest.raises(ConfigError, match="is out of range"):
            own.for_request(**asked)
    with pytest.raises(ConfigError, match="beam_size, 5: set beam_size 6 too, or ask for fewer"):
        GenerationConfig(captions=6)
    assert replace(own, sample=True).for_request(captions=20).captions == 20
    with pytest.raises(ConfigError, match="it is at most 20"):
        replace(own, sample=True).for_request(captions=21)


def test_every_field_that_is_out_of_bounds_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        GenerationConfig(beam_size=21, top_p=0, temperature=math.nan, seed=10**400)
    assert all(name in str(caught.value) for name in ("beam_size", "top_p", "temperature", "seed"))
    with pytest.raises(ConfigError, match="minimum_length 9 is out of range: it is at most"):
        GenerationConfig(minimum_length=9, maximum_length=8)
    with pytest.raises(ConfigError, match="sample 1 is invalid: it should be a valid boolean"):
        GenerationConfig(sample=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("chance", [0.0, 1.0])
def test_a_word_without_probability_is_never_drawn(
    monkeypatch: pytest.MonkeyPatch, chance: float
) -> None:
    """Also at both ends of the random numbers; a number just below 1 is rounded to 1."""
    monkeypatch.setattr(torch, "rand", lambda size, **_: torch.full(size, chance))
    probabilities = torch.tensor([[[0.0, 0.25, 0.0, 0.75, 0.0]]])
    assert draw(probabilities).tolist() == [[1 if chance == 0 else 3]]
