"""How sentences are made from scores of words: the settings of generation."""

from __future__ import annotations

from dataclasses import dataclass

from captioner.errors import ConfigError

__all__ = ["GenerationConfig"]

_WIDEST_BEAM = 500  # a wider one finds no better sentences, and takes all memory


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """How sentences are made from scores of words."""

    beam_size: int = 5  # hypotheses kept an image; 1 is greedy
    captions: int = 1  # how many of the best are returned
    length_penalty: float = 0.5  # a in sum / length^a: 0 prefers short captions, 1 takes the mean
    no_repeat_ngram: int = 2  # no n words stand twice in this order; 0 allows it
    minimum_length: int = 1  # words, before <end> may come
    maximum_length: int = 24  # words; then <end> must come
    sample: bool = False  # draw words at random instead of searching for the likeliest
    temperature: float = 1.0  # below 1 sharpens, above 1 flattens what is drawn from
    top_k: int = 0  # draw from the k likeliest words only; 0: from all
    top_p: float = 1.0  # draw from the likeliest words that together have this probability
    seed: int | None = None  # of sampling; None draws anew every time

    def __post_init__(self) -> None:
        beam = self.beam_size if not self.sample else self.captions
        checks = {
            "beam_size": 1 <= self.beam_size <= _WIDEST_BEAM,
            "captions": 1 <= self.captions <= beam,
            "length_penalty": 0 <= self.length_penalty < 10,
            "no_repeat_ngram": self.no_repeat_ngram >= 0,
            "maximum_length": self.maximum_length >= 1,
            "minimum_length": 0 <= self.minimum_length <= self.maximum_length,
            "temperature": 0 < self.temperature < float("inf"),
            "top_k": self.top_k >= 0,
            "top_p": 0 < self.top_p <= 1,
        }
        for name, good in checks.items():
            if not good:
                hint = {
                    "beam_size": f": it is 1 to {_WIDEST_BEAM}",
                    "captions": f"; it is at most beam_size, {beam}",
                }.get(name, "")
                raise ConfigError(f"{name} {getattr(self, name)} is out of range{hint}")
