"""The data that a run reads, and its messages about them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from captioner import DataError
from captioner.shared.paths import sample_photos
from captioner.vocabulary import Vocabulary
from captioner_training.data.captions import Corpus
from captioner_training.data.images import CaptionedImage, ImageStore
from captioner_training.data.reading import read_corpus, read_test
from captioner_training.data.scenes import draw_scene, scene_seed
from captioner_training.recipe import DataConfig, load_recipe
from tests.launcher import Run
from tests.training.runs import write_photos


def test_rare_words_and_long_captions_are_counted(tmp_path: Path) -> None:
    counts = {"a": 60, "dog": 30, "cat": 4, "hen": 3, "owl": 2, "emu": 1}
    words = [word for word, count in counts.items() for _ in range(count)]
    rows = tuple(tuple(words[at : at + 5]) for at in range(0, 100, 5))
    image = CaptionedImage(
        name="1.jpg", id=1, store=ImageStore(tmp_path), captions=tuple(map(" ".join, rows)),
        words=rows,
    )  # fmt: skip
    few = Corpus(train=[image], validation=[image] * 5, vocabulary=Vocabulary(["a", "dog"]))
    data = DataConfig(train=("t",), validation=("v",), maximum_length=4)
    size, rare, long = few.describe(data)
    assert size == "1 training images, 5 validation images, 2 words"
    assert rare.startswith("4 of 6 words ") and rare.endswith(": 10.0 % of the text")
    assert long.startswith("20 of 20 captions are longer") and long.endswith("has 5 words")
    more = replace(few, validation=[image], vocabulary=Vocabulary(["a", "dog", "cat", "hen"]))
    _, single, rare = more.describe(replace(data, maximum_length=5))
    assert single.startswith("note: CIDEr needs 5 validation photos, the run has 1")
    assert rare.endswith(": 3.0 % of the text")


def test_a_corpus_is_known_by_its_content_wherever_it_lies(tmp_path: Path) -> None:
    def digest(root: Path) -> str:
        recipe = load_recipe("flickr8k", {"data.root": str(root), "data.minimum_count": "1"})
        return read_corpus(recipe, out=tmp_path).digest()

    for split in ("train", "val"):
        write_photos(tmp_path / "here", split, [["a dog"], ["a cat"]])
    before = digest(tmp_path / "here")
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    assert digest(tmp_path / "there") == before
    shutil.copy(sample_photos()["coffee"], tmp_path / "there" / "val" / "1.png")
    assert digest(tmp_path / "there") != before


def test_one_photo_is_too_few_to_train_on(tmp_path: Path) -> None:
    for split in ("train", "val"):
        write_photos(tmp_path, split, [["a grey square"]])
    with pytest.raises(DataError, match=r"0\.png is the only training photo"):
        read_corpus(load_recipe("flickr8k", {"data.root": str(tmp_path)}), out=tmp_path)


def test_captions_without_spaces_need_another_tokenizer(tmp_path: Path) -> None:
    for split in ("train", "val"):
        write_photos(tmp_path, split, [["一只狗在草地上"], ["两个孩子"]])
    fields = {"data.root": str(tmp_path), "data.minimum_count": "1"}
    recipe = load_recipe("flickr8k", fields)
    with pytest.raises(DataError, match=r"no spaces .*: set --data\.tokenizer characters"):
        read_corpus(recipe, out=tmp_path)
    with pytest.raises(DataError, match=r"new-language --data\.tokenizer characters`"):
        read_corpus(recipe, out=tmp_path, origin=Vocabulary(["dog"]))
    recipe = load_recipe("flickr8k", {**fields, "data.tokenizer": "characters"})
    corpus = read_corpus(recipe, out=tmp_path)
    assert {*corpus.vocabulary.ordinary_words} == {*"一只狗在草地上两个孩子"}


def test_scenes_are_drawn_from_the_seed_of_the_run(tmp_path: Path) -> None:
    fields = {"seed": "7", "data.scenes": "{train: 3, validation: 2}"}
    corpus = read_corpus(load_recipe("smoke", fields), out=tmp_path)
    for split, images in ("train", corpus.train), ("val", corpus.validation):
        seeds = [scene_seed(seed=7, split=split, index=index) for index in range(len(images))]
        assert [image.captions for image in images] == [
            (draw_scene(seed).caption,) for seed in seeds
        ]


def test_the_test_split_of_a_run_is_that_of_its_validation_sets(
    run_main: Run, tmp_path: Path
) -> None:
    for name, splits in (
        ("plain", ("train", "val", "test")), ("few", ("train", "val")), ("of training", ("test",))
    ):  # fmt: skip
        for split in splits:
            write_photos(tmp_path / name, split, [[f"a {name} {split}"]] * 2)
    plain = tmp_path / "plain"
    result = run_main(
        "prepare", "coco-json", f"test={plain}/captions_test.json", "--images", plain / "test",
        "--to", tmp_path / "prepared", "--workers", 1,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    recipe = load_recipe(
        "flickr8k",
        {
            "data.root": str(tmp_path), "data.train": "[of training]",
            "data.validation": "[few, prepared, plain]",
        },
    )  # fmt: skip
    images = read_test(recipe, Vocabulary(["a"]))
    assert [image.captions for image in images] == [("a plain test",)] * 4
