"""A model with several caption styles; each has its own start token."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from captioner import ConfigError, GenerationConfig
from captioner.checkpoint import Checkpoint, load_checkpoint
from captioner.generation.generate import generate
from captioner.vocabulary import END, START, UNK, Vocabulary

WORDS = ["a", "dog", "cat"]
STYLES = ["long", "short"]


def test_style_tokens_follow_the_words_and_are_not_words() -> None:
    vocabulary = Vocabulary(WORDS, styles=STYLES)
    assert [vocabulary.start(style) for style in ("", *STYLES)] == [7, 7, 8]
    assert vocabulary.style() == "long" and vocabulary.style("short") == "short"
    assert vocabulary.ordinary_words == tuple(WORDS) and len(vocabulary) == 9
    assert vocabulary.decode([8, 4, 5, END, 6]) == ["a", "dog"]
    plain = Vocabulary(WORDS)
    assert plain.start() == START and plain.style() is None
    assert plain.never_generated == (0, START) and vocabulary.never_generated == (0, START, 7, 8)
    with pytest.raises(ConfigError, match="no style 'loud': the model has 'long', 'short'"):
        vocabulary.start("loud")
    with pytest.raises(ConfigError, match="one style of captions only"):
        plain.start("loud")
    assert Vocabulary(WORDS, styles=["s" * 100]).style() == "s" * 100
    for odd in ([""], ["a\x1b[31m"], ["long", "long"], [3], "ab", {"a": 1}, ["s" * 101]):
        with pytest.raises(ConfigError):
            Vocabulary(WORDS, styles=odd)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", [{"beam_size": 3}, {"beam_size": 1}, {"sample": True}])
def test_captions_start_with_the_style_token_and_do_not_contain_it(
    styled: Checkpoint, method: dict[str, Any]
) -> None:
    decoder, vocabulary = styled.model.decoder, styled.vocabulary
    features = torch.randn(4, 9, 576)
    for style in STYLES:
        config = GenerationConfig(style=style, seed=1, maximum_length=6, **method)
        found = generate(decoder, features, config, vocabulary=vocabulary)
        for image, (best,) in enumerate(found):
            assert best.tokens and max(best.tokens) < vocabulary.start()
            assert not {*vocabulary.never_generated, UNK} & set(best.tokens)
            # Teacher forcing from the style's token scores the words as the search did.
            tokens = torch.tensor([vocabulary.start(style), *best.tokens])[None, None]
            deep = decoder(features[image : image + 1], tokens).deep
            logs = decoder.logits(deep).log_softmax(-1)[0, 0]
            wanted = logs.gather(1, torch.tensor([*best.tokens, END])[:, None]).squeeze(1)
            assert torch.allclose(best.log_probabilities, wanted, atol=1e-3)
    both = [styled.vocabulary.start(style) for style in (*STYLES, *STYLES)]
    mixed = generate(decoder, features, config, vocabulary=vocabulary, starts=both)
    if "sample" not in method:  # each image as if all had its style
        assert mixed[1][0].tokens == found[1][0].tokens
        assert mixed[3][0].tokens == found[3][0].tokens


def test_the_command_captions_in_the_style_that_is_asked_for(
    run_main: Callable[..., Any], styled: Checkpoint, saved_tiny: Path, photo: Path, tmp_path: Path
) -> None:
    path = tmp_path / "styled.safetensors"
    replace(styled, generation=GenerationConfig(style="short")).save(path)
    assert load_checkpoint(path).vocabulary.styles == tuple(STYLES)

    def caption(style: str, checkpoint: Path = path) -> Any:
        command = ("caption", photo, "--checkpoint", checkpoint, "--json", "--style", style)
        return run_main(*command)

    own, short, long = (json.loads(caption(style).stdout) for style in ("", "short", "long"))
    assert own == short  # the checkpoint's own, not the first
    assert short["style"] == "short" and long["style"] == "long"
    assert short["caption"] != long["caption"]
    refused = caption("loud")
    assert refused.returncode == 2 and "the model has 'long', 'short'" in refused.stderr
    refused = caption("long", saved_tiny)
    assert refused.returncode == 2 and "has one style of captions only" in refused.stderr
    assert "style" not in json.loads(caption("", saved_tiny).stdout)
