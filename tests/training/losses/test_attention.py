"""Attention supervised by boxes: where words are told to look, and the loss, worked by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from captioner.decoders.config import DecoderConfig
from captioner.decoders.decoder import DecoderOutput, build_decoder
from captioner.errors import DataError
from captioner.vision.transform import Box
from captioner.vocabulary import END, PAD, Vocabulary, tokenize
from captioner_training.data.corpus import Corpus
from captioner_training.data.images import CaptionedImage, ImageStore
from captioner_training.evaluation.boxes import BoxedObject
from captioner_training.losses.attention import (
    AttentionEntropy,
    AttentionSupervision,
    DoublyStochastic,
)
from captioner_training.losses.objective import Captions, Reading
from captioner_training.recipe import Recipe
from captioner_training.recipe_file import load_recipe
from tests.training.runs import RECIPE

LEFT, TOP_LEFT = Box(0, 0, 0.5, 1), Box(0, 0, 0.5, 0.5)


def image(number: int, *captions: str) -> CaptionedImage:
    words = tuple(tuple(tokenize(text)) for text in captions)
    store = ImageStore.from_members((), pattern=Path("nowhere"), identity="none")  # never read
    return CaptionedImage(name=str(number), id=number, store=store, captions=captions, words=words)


def test_words_for_what_has_boxes_look_there_and_others_are_free() -> None:
    images = [
        image(7, "a man", "two hot dogs by a man"),
        image(8, "a man"),
        image(9, "a kite and a cat"),
    ]
    boxes = {
        7: [BoxedObject("person", LEFT), BoxedObject("hot dog", TOP_LEFT)],
        9: [BoxedObject("kite", Box(1.5, 0, 2, 1))],  # outside of what the encoder sees
    }
    supervision = AttentionSupervision(1.0, images, boxes, side=2)
    assert supervision.words == 4  # man, hot, dogs, man
    targets = torch.full((2, 2, 6), 5)
    targets[0, 1, 5] = PAD  # a caption that was cut before its last word
    looks = supervision.looks([1, 0], torch.stack([targets[1], targets[0]]))
    assert looks.shape == (2, 2, 6, 4) and not looks[0].any()
    assert looks[1, 0].nonzero()[:, 0].unique().tolist() == [1]
    assert looks[1, 0, 1].tolist() == [0.5, 0, 0.5, 0]
    assert looks[1, 1, 1].tolist() == looks[1, 1, 2].tolist() == [1, 0, 0, 0]
    assert not looks[1, 1, 5].any() and not looks[1, 1, 3].any()


def test_boxes_without_a_category_are_of_people_too() -> None:
    boxes = {7: [BoxedObject("", LEFT), BoxedObject("person", Box(0.5, 0, 1, 0.5))]}
    supervision = AttentionSupervision(1.0, [image(7, "a man")], boxes, side=2)
    looks = supervision.looks([0], torch.full((1, 1, 2), 5))
    assert looks[0, 0, 1].tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])


def test_the_term_is_the_cross_entropy_between_boxes_and_attention() -> None:
    config = DecoderConfig(embedding_dim=6, hidden_dim=5)
    decoder = build_decoder(config, grid_dim=4, vocabulary_size=9)
    attention = torch.tensor([[[[0.25, 0.75, 0, 0], [0.5, 0.5, 0, 0]]]], requires_grad=True)
    made = DecoderOutput(torch.randn(1, 1, 2, 6), attention, torch.ones(1, 1, 2))
    targets = torch.tensor([[[5, END]]])
    supervision = AttentionSupervision(
        3.0, [image(7, "man")], {7: [BoxedObject("person", TOP_LEFT)]}, side=2
    )
    captions = Captions(targets, targets)
    loss = supervision.loss(Reading(decoder, made, captions, positions=torch.tensor([0])))
    # -log 0.25 for the first of two tokens; the end is free.
    assert loss.item() == pytest.approx(3 * math.log(4) / 2, abs=1e-6)
    loss.backward()
    assert attention.grad is not None
    assert attention.grad.flatten().tolist() == pytest.approx([-6.0, *[0] * 7])


def test_heads_may_disagree() -> None:
    # Word 1: two heads, each sharp, on different cells: no entropy, though their mean has log 2.
    # Word 2: one head sharp, one even over two of the three cells: log 2 / 2 on average.
    # Word 3 is padding.
    first, second = [[1.0, 0, 0], [0, 1, 0]], [[1, 0, 0], [0, 0.5, 0.5]]
    heads = torch.tensor([[[first, second, [[9.0, 9, 9]] * 2]]])
    made = DecoderOutput(torch.randn(1, 1, 3, 6), heads.mean(-2), None, heads)
    decoder = build_decoder(DecoderConfig(embedding_dim=6), grid_dim=4, vocabulary_size=9)
    targets = torch.tensor([[[4, END, PAD]]])
    reading = Reading(decoder, made, Captions(targets, targets))
    entropy = AttentionEntropy(3.0).loss(reading)
    assert entropy.item() == pytest.approx(3 * (0 + math.log(2) / 2) / 2, abs=1e-5)
    # Head 1 sums to 2, 0, 0 over the words: (1-2)^2 + 1 + 1 = 3; head 2 to 0, 1.5, 0.5: 1 + .25 +
    # .25 = 1.5; over three cells and two heads 4.5 / 6.
    stochastic = DoublyStochastic(2.0).loss(reading)
    assert stochastic.item() == pytest.approx(2 * 4.5 / 6, abs=1e-5)


def with_boxes(folder: Path, *categories: str) -> Recipe:
    """Give a recipe whose first stage learns from boxes of these, a file each."""
    (folder / "recipe.yaml").write_text(RECIPE)
    for category in categories:
        content = {
            "images": [{"id": 7, "width": 64, "height": 64}],
            "categories": [{"id": 1, "name": category}],
            "annotations": [{"image_id": 7, "category_id": 1, "bbox": [0, 0, 32, 64]}],
        }
        (folder / f"{category}.json").write_text(json.dumps(content))
    named = json.dumps([str(folder / f"{category}.json") for category in categories])
    fields = {"data.boxes": named, "stages.1.attention_supervision": "0.3"}
    return load_recipe(str(folder / "recipe.yaml"), fields)


def corpus(*captions: str) -> Corpus:
    return Corpus(train=[image(7, *captions)], validation=[], vocabulary=Vocabulary([]))


def test_boxes_of_an_image_are_those_of_every_file(tmp_path: Path) -> None:
    data = corpus("a man and dog")
    one = AttentionSupervision.build(0.3, with_boxes(tmp_path, "dog"), data)
    both = AttentionSupervision.build(0.3, with_boxes(tmp_path, "person", "dog"), data)
    assert (one.words, both.words) == (1, 2)


def test_boxes_of_what_no_caption_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing to learn from"):
        AttentionSupervision.build(0.3, with_boxes(tmp_path, "dog"), corpus("a red circle"))
