"""Data: COCO's format from folders and tars, deterministic augmentation, padded batches."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from captioner import DataError
from captioner.photos.transform import Transform, TransformConfig
from captioner.vocabulary import END, PAD, START
from captioner_training.data import pixels as loader_module
from captioner_training.data.batches import BucketSampler, StageBatches, stage_sampler
from captioner_training.data.captions import CaptionTable
from captioner_training.data.images import CaptionedImage, ImageStore
from captioner_training.data.pixels import ImageDataset, split_loader
from captioner_training.data.reading import read_coco, read_dataset
from captioner_training.distributed import Processes
from captioner_training.recipe import DataConfig, Recipe, ScenesConfig, Stage
from tests.training.runs import write_split


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three photos, half red and half blue, in a folder and in a tar, with their captions."""
    picture = Image.new("RGB", (40, 20), "blue")
    picture.paste("red", (0, 0, 20, 20))
    texts = [["A dog.", "The red dog!"], ["A cat on the left."], ["Two birds."]]
    write_split(tmp_path, "images", [picture] * 3, texts)
    with tarfile.open(tmp_path / "images-00.tar", "w") as tar:
        for number in range(3):
            tar.add(tmp_path / "images" / f"{number}.png", f"{number}.png")
    return tmp_path


@pytest.mark.parametrize("images", ["images", "images-*.tar"])
def test_coco_format_from_folder_and_tar(
    data: Path, images: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = read_coco(data / "captions_images.json", data / images)
    assert [image.id for image in found] == [0, 1, 2]
    assert [image.name for image in found] == ["0.png", "1.png", "2.png"]
    assert found[0].captions == ("A dog.", "The red dog!")
    assert found[0].words == (("a", "dog"), ("the", "red", "dog"))
    assert [image.mentions_left_or_right for image in found] == [False, True, False]
    assert found[1].store.read("1.png") == (data / "images" / "1.png").read_bytes()
    assert capsys.readouterr().out == ""


def test_data_that_cannot_be_used_is_named(data: Path) -> None:
    path, tar = data / "captions_images.json", data / "images-00.tar"
    with pytest.raises(DataError, match=r"there is no file .*nowhere\.json"):
        read_coco(data / "nowhere.json", tar)
    with pytest.raises(DataError, match=r"there is no folder or tar file .*nowhere-\*\.tar"):
        read_coco(path, data / "nowhere-*.tar")
    (data / "images" / "2.png").unlink()
    with pytest.raises(DataError, match=r"images not found in .*images: 1 \(first: 2\.png\)"):
        read_coco(path, data / "images")
    content = json.loads(path.read_text())
    images, annotations = content["images"], content["annotations"]
    empty = [{"id": 8, "image_id": 2, "caption": text} for text in ("a", "!")]
    for wrong, problem in (
        ({"annotations": annotations[:-1]}, r"without a caption: 1 \(first: 2\.png\)"),
        ({"annotations": annotations[:-1] + empty}, r"with an empty caption: 1 \(first: 2\.png\)"),
        ({"images": [*images[:2], images[0]]}, r"with the id of another image: 2 \(first: 0"),
    ):
        path.write_text(json.dumps(content | wrong))
        with pytest.raises(DataError, match=f"images {problem}"):
            read_coco(path, tar)
    path.write_text("{}")
    with pytest.raises(DataError, match="not in COCO's captions format"):
        read_coco(path, tar)
    (data / "broken.tar").write_bytes(b"\1" * 2000)
    with pytest.raises(DataError, match="not an uncompressed tar"):
        ImageStore(data / "broken.tar")
    whole = bytearray(tar.read_bytes())
    with tarfile.open(tar) as opened:
        second = opened.getmembers()[1].offset
    whole[second : second + 512] = b"\1" * 512  # where tarfile ends without a word
    (data / "broken.tar").write_bytes(whole)
    with pytest.raises(DataError, match=f"is damaged: damaged or cut off at byte {second:,}"):
        ImageStore(data / "broken.tar")


def test_a_glob_matches_tar_files_and_folders_without_conflicts(data: Path) -> None:
    (data / "images-00.log").write_text("no tar file")
    (data / "images-01.tar").write_bytes((data / "images-00.tar").read_bytes())
    assert "1.png" in ImageStore(data / "images*")
    assert "1.png" in ImageStore(shutil.copytree(data / "images", data / "images [2020]"))
    with tarfile.open(data / "images-00.tar", "a") as tar:  # in one file the newer one counts
        tar.add(data / "captions_images.json", "2.png")
    newer = (data / "captions_images.json").read_bytes()
    (data / "images-00.tar").rename(data / "images-03.TAR")
    assert ImageStore(data / "images-03*").read("2.png") == newer
    store = ImageStore(whole := data / "images-01.tar")
    before = store.cache_token("2.png")
    assert before == ImageStore(whole).cache_token("2.png")
    os.utime(whole, (1, 1))  # another file, so that cached grids are not of this one
    assert store.cache_token("2.png") != before
    with pytest.raises(
        DataError, match=r"-01\.tar and .*-03\.TAR have different images named 2\.png"
    ):
        ImageStore(data / "images*")
    for path, last in ((data / "same-1.tar", b"a"), (data / "same-2.tar", b"b")):
        with tarfile.open(path, "w") as tar:
            (data / "9.png").write_bytes(bytes(9000) + last)  # of equal size and beginning
            tar.add(data / "9.png", "9.png")
    with pytest.raises(DataError, match=r"-1\.tar and .*-2\.tar have different images named 9"):
        ImageStore(data / "same*")
    with tarfile.open(whole) as tar:
        os.truncate(whole, tar.getmember("2.png").offset_data + 20)
    with pytest.raises(DataError, match=r"-01\.tar ends inside 2\.png: copy or prepare it again"):
        store.read("2.png")


def test_mirroring_knows_left_from_right(data: Path) -> None:
    images = read_coco(data / "captions_images.json", data / "images")
    transform = Transform(TransformConfig(mode="squash", size=16))
    dataset = ImageDataset(images, transform, flip=True, seed=3)
    mirrored: Counter[int] = Counter()
    for epoch in range(40):
        dataset.epoch = epoch
        for index in range(3):
            pixels = dataset[index]
            assert pixels.shape == (3, 16, 16) and pixels.dtype == torch.uint8
            mirrored[index] += int(pixels[0, 8, 14] > 128)  # red on the right
    assert mirrored[1] == 0  # "on the left" must stay true
    assert 8 <= mirrored[0] <= 32 and 8 <= mirrored[2] <= 32  # 20 expected, 3.2 the deviation
    assert not replace(images[0], captions=("a bright leftover",)).mentions_left_or_right
    for caption in (
        "Ein Hund auf der linken Seite", "un chien à droite", "RECHTS steht ein Haus",
        "un perro a la izquierda", "le sue mani destre", "os carros da esquerda", "狗在左边",
    ):  # fmt: skip
        assert replace(images[0], captions=("Dog", caption)).mentions_left_or_right
    views = []
    for seed, index in (3, 0), (3, 2), (4, 0):  # each photo and each seed has its own
        dataset = ImageDataset(images, transform, flip=True, crop=0.3, seed=seed)
        views.append([dataset.view(index) for dataset.epoch in range(4)])
    assert not {*views[0]} & {*views[1]} and not {*views[0]} & {*views[2]}
    assert not {*views[1]} & {*views[2]} and all(len({*drawn}) == 4 for drawn in views)


def test_batches_are_framed_and_padded() -> None:
    captions = [[[7, 8, 9], [9]], [[4, 5, 6, 7]]]
    table = CaptionTable(captions, starts=[START] * 2, maximum_length=3)
    assert table.batch([0, 1]).tolist() == [
        [[START, 7, 8, 9, END], [START, 9, END, PAD, PAD]],
        # Cut: the model must not learn to end there.
        [[START, 4, 5, 6, PAD], [PAD, PAD, PAD, PAD, PAD]],
    ]


def test_sampler_sees_every_image_once_and_groups_shapes() -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(5, 25, (1000,), generator=generator).tolist()
    sampler = BucketSampler([(5, length) for length in lengths], batch_size=32, seed=1)
    batches = sampler.order(0)
    counts = Counter(index for batch in batches for index in batch)
    assert set(counts) == set(range(1000)) and counts.total() == 32 * 32  # 24 come twice
    assert max(counts.values()) == 2 and {len(batch) for batch in batches} == {32}
    padded = sum(max(lengths[i] for i in batch) * len(batch) for batch in batches)
    assert padded < 1.1 * sum(lengths)  # at random it is 1.6 times
    assert sampler.order(0) == batches != sampler.order(1)
    few = BucketSampler([(5, 9)] * 61, batch_size=60, seed=1).order(0)
    assert [len(batch) for batch in few] == [31, 31]  # not 60, most of them twice


def test_the_error_for_unprepared_data_names_the_command(tmp_path: Path) -> None:
    (photos := tmp_path / "my photos").mkdir()
    for folder, remedy in (
        (tmp_path / "my photo", r"no folder .*my photo, did you mean .*my photos\?$"),
        (photos, rf"\n  captioner prepare folder '{photos}' --to DIR\n"),
    ):
        with pytest.raises(DataError, match=remedy):
            read_dataset(folder, split="train")
    (photos / "captions_val.json").write_text("{}")
    with pytest.raises(DataError, match="has no split 'train'; it has val"):
        read_dataset(photos, split="train")


def test_processes_share_the_cores_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = list[int]()
    monkeypatch.setattr(loader_module, "cores", lambda: 6)
    monkeypatch.setattr(
        loader_module, "DataLoader", lambda *_, num_workers, **__: counts.append(num_workers)
    )
    cases: Any = (("1", "auto"), ("4", "auto"), ("4", 5), ("4", 9), ("4", 0))
    for local, workers in cases:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
        split_loader([], Transform(TransformConfig()), workers=workers, batch_size=1)
    assert counts == [6, 1, 5, 6, 0]  # at most one per core


def test_random_crops_of_a_tall_photo_move_along_both_sides(tmp_path: Path) -> None:
    """Red is the place from left to right and green from top to bottom, 50 to 200."""
    photo = Image.new("RGB", (20, 60))
    for x in range(20):
        for y in range(60):
            photo.putpixel((x, y), (50 + 150 * x // 19, 50 + 150 * y // 59, 0))
    photo.save(tmp_path / "tall.png")
    image = CaptionedImage(name="tall.png", id=1, store=ImageStore(tmp_path), captions=(), words=())
    transform = Transform(TransformConfig(mode="squash", size=8))
    dataset = ImageDataset([image], transform, crop=0.5)
    centres = []
    for dataset.epoch in range(200):
        pixels = dataset[0][:2].float()
        assert pixels.min() >= 50  # nothing from beyond the photo
        centres.append(((pixels.mean((1, 2)) - 50) / 150).tolist())
    for across in zip(*centres, strict=True):  # in fractions of width and of height
        assert min(across) < 0.38 and max(across) > 0.62
        assert abs(sum(across) / len(across) - 0.5) < 0.03


class Nothing(StageBatches):
    def load(self, order: Sequence[Sequence[int]], *, epoch: int) -> Generator[torch.Tensor]:
        yield from (torch.zeros(len(batch), epoch) for batch in order)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_compiled_loss_gets_batches_of_few_shapes(*, compiled: bool) -> None:
    stages, data = (Stage(epochs=1, batch_size=2),), DataConfig(scenes=ScenesConfig())
    recipe = Recipe(name="t", data=data, compile=compiled, stages=stages)
    captions = [[[5] * length] * 6 for length in range(1, 9)]
    table = CaptionTable(captions, starts=[START] * 8, maximum_length=9)
    sampler = stage_sampler(recipe, 0, table, Processes(device=torch.device("cpu")))
    photos: Any = None
    batches = Nothing(
        recipe=recipe, stage=stages[0], photos=photos, captions=table, sampler=sampler
    )
    read = [part for parts in batches.epoch(0, skip=0, max_batches=4) for part in parts]
    # <start>, and up to eight words with <end>.
    longest = {(6, max(part.positions) + 3) for part in read}
    few = {(5, 7), (5, 10)}  # five captions; the median of the images, and the longest
    assert {tuple(part.tokens.shape[1:]) for part in read} == (few if compiled else longest)
    for part in read:
        for row, position in zip(part.tokens, part.positions, strict=True):
            assert ((row[:, 1:] == 5).sum(-1) == position + 1).all()
