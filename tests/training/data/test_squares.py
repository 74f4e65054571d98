"""Squares in memory and in files, against the photos that the loader crops."""

from __future__ import annotations

import errno
import io
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from captioner import DataError, OutputError
from captioner.files import writing
from captioner.paths import sample_photos
from captioner.vision.transform import Transform, TransformConfig
from captioner_training.data import cache as cache_module
from captioner_training.data.dataset import Augmentation, ImageDataset
from captioner_training.data.images import CaptionedImage, ImageStore
from captioner_training.data.loader import PixelSource
from captioner_training.data.squares import SquareSource
from captioner_training.distributed import Processes

CPU = Processes(device=torch.device("cpu"))


def samples(
    augmentation: Augmentation,
    *,
    mode: str = "squash",
    size: int = 56,
    folder: Path | None = None,
) -> ImageDataset:
    """Return the sample photos, 512 x 512 to 640 x 427; one caption names a side."""
    paths = [*sample_photos().values()]
    images = [
        CaptionedImage(
            name=path.name,
            id=number,
            store=ImageStore(folder or path.parent),
            captions=("on the left",) if number == 0 else ("a photo",),
            words=(),
        )
        for number, path in enumerate(paths)
    ]
    transform = Transform(TransformConfig(mode=mode, size=size))
    return ImageDataset(images, transform, augmentation=augmentation, seed=5)


@pytest.fixture
def short_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make cache files of one photo each."""
    monkeypatch.setattr(cache_module, "IMAGES_A_FILE", 1)
    monkeypatch.setattr(cache_module, "_BATCH", 1)


def cached(
    dataset: ImageDataset, folder: Path, *, processes: Processes = CPU, workers: int = 0
) -> SquareSource:
    source = cached_or_none(dataset, folder, processes=processes, workers=workers)
    assert source is not None
    return source


def cached_or_none(
    dataset: ImageDataset, folder: Path, *, processes: Processes = CPU, workers: int = 0
) -> SquareSource | None:
    return SquareSource.cached(
        dataset, folder=folder, reserve=int, workers=workers, processes=processes
    )


@pytest.mark.parametrize("cut", [0.0, 0.15, 0.5])
def test_an_epoch_on_the_device_shows_the_same_views_as_the_loader(cut: float) -> None:
    dataset = samples(Augmentation(flip=True, crop=cut))
    squares = SquareSource.decode(dataset, workers=0, processes=CPU)
    loaded = PixelSource(dataset, workers=0, device=CPU.device)
    order, differences, others = [[*range(len(dataset))], [2, 1]], [], []
    means = []
    for epoch in range(6):
        ours, theirs = (
            torch.cat([*source.batches(order, epoch=epoch)]).float() for source in (squares, loaded)
        )
        assert ours.shape == (len(dataset) + 2, 3, 56, 56)
        assert torch.equal(ours[1], ours[-1]) and torch.equal(ours[2], ours[-2])
        differences += (ours - theirs).abs().mean(dim=(1, 2, 3)).tolist()
        others += (ours.flip(-1) - theirs).abs().mean(dim=(1, 2, 3)).tolist()
        means.append([(batch.mean().item(), batch.std().item()) for batch in (ours, theirs)])
    # Of 255 levels: resampling twice blurs; a mirrored photo is another one.
    assert max(differences) < (6 if cut else 1e-6) < 10 < min(others)
    for (our_mean, our_std), (mean, std) in means:
        assert our_mean == pytest.approx(mean, abs=1)
        assert our_std == pytest.approx(std, rel=0.05)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_from_files_equal_those_from_memory(tmp_path: Path, workers: int) -> None:
    dataset = samples(Augmentation(flip=True, crop=0.3))
    resident = SquareSource.decode(dataset, workers=workers, processes=CPU)
    order = [[3, 0], [1, 1, 2], [0]]
    for _ in range(2):  # the second time no photo is decoded
        source = cached(dataset, tmp_path, workers=workers)
        for epoch in range(2):
            batches = [*source.batches(order, epoch=epoch)]
            assert [len(batch) for batch in batches] == [2, 3, 1]
            expected = resident.batches(order, epoch=epoch)
            assert all(map(torch.equal, batches, expected))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == len(dataset) * 3 * 80**2


@pytest.mark.usefixtures("short_files")
def test_decoding_resumes_and_replaced_photos_are_decoded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(next(iter(sample_photos().values())).parent, photos := tmp_path / "photos")
    dataset, cache = samples(Augmentation(), folder=photos), tmp_path / "cache"
    pixels, decoded = Transform.pixels, list[int]()

    def interrupted(transform: Transform, photo: Any) -> torch.Tensor:
        decoded.append(transform.config.size)
        if len(decoded) == 3:
            raise KeyboardInterrupt  # as SIGTERM does while a stage begins
        return pixels(transform, photo)

    monkeypatch.setattr(Transform, "pixels", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cached(dataset, cache)
    before = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    assert len(before) == 2  # complete files; the third is not there
    cached(dataset, cache)
    files = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    assert len(files) == len(dataset) == 4 and before.items() < files.items()
    assert len(decoded) == 3 + 2

    cached(samples(Augmentation(crop=0.5), folder=photos), cache)  # larger squares
    assert decoded[5:] == [112] * 4 and len([*cache.iterdir()]) == 8
    second = photos / dataset.images[1].name
    shutil.copy(photos / dataset.images[2].name, second)
    (batch,) = cached(samples(Augmentation(), folder=photos), cache).batches([[1, 2]], epoch=0)
    assert torch.equal(batch[0], batch[1]) and len([*cache.iterdir()]) == 12


def test_large_crops_of_large_photos_are_enlarged(tmp_path: Path) -> None:
    source = cached(samples(Augmentation(crop=0.5), size=1000), tmp_path)
    (batch,) = source.batches([[1]], epoch=0)
    assert batch.shape == (1, 3, 1000, 1000)
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size == 4 * 3 * 1024**2  # the largest squares that a transform makes


@dataclass(frozen=True, kw_only=True)
class Rank(Processes):
    """One of several processes that run one after the other.

    `sent` is what rank 0 broadcast, `gathered` the values of the other processes.
    """

    sent: list[Any] = field(default_factory=list)
    gathered: tuple[Any, ...] = ()

    def broadcast(self, value: Any) -> Any:
        if self.main:
            self.sent.append(value)
            return value
        return self.sent.pop(0)

    def gather(self, value: Any) -> list[Any]:
        return [value, *self.gathered]


@pytest.mark.usefixtures("short_files")
def test_each_process_decodes_a_part_of_the_files(tmp_path: Path) -> None:
    dataset, order, sent = samples(Augmentation(flip=True)), [[2, 3], [0, 1]], list[Any]()
    cached(dataset, tmp_path, processes=Rank(device=CPU.device, world=2, sent=sent))
    first = {*tmp_path.iterdir()}
    assert len(first) == 2
    other = Rank(device=CPU.device, world=2, rank=1, sent=sent)
    source = cached(dataset, tmp_path, processes=other)
    assert len({*tmp_path.iterdir()} - first) == 2 and not sent
    expected = SquareSource.decode(dataset, workers=0, processes=CPU).batches(order, epoch=3)
    assert all(map(torch.equal, source.batches(order, epoch=3), expected))


@contextmanager
def unwritable(path: Path) -> Iterator[io.BytesIO]:
    with writing(path):
        yield io.BytesIO()
        raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.usefixtures("short_files")
def test_errors_of_photos_and_files_are_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(next(iter(sample_photos().values())).parent, photos := tmp_path / "photos")
    dataset, cache = samples(Augmentation(), folder=photos), tmp_path / "cache"
    name = dataset.images[1].name
    whole = (photos / name).read_bytes()
    (photos / name).write_bytes(whole[:60])
    with pytest.raises(DataError, match=rf"photo {name} in .* cannot be used"):
        cached(dataset, cache)
    (kept,) = cache.iterdir()  # no part of the second file
    (photos / name).write_bytes(whole)

    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, unlimited[1]))
    try:
        assert cached_or_none(dataset, cache) is None  # as with a quota
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    said = f"no room in {cache} for 0.00 GB of decoded photos: every epoch decodes them again\n"
    assert [*cache.iterdir()] == [kept] and capsys.readouterr().err.endswith(said)
    with monkeypatch.context() as patch:
        patch.setattr(cache_module, "replace_file", unwritable)
        with pytest.raises(OutputError, match="cannot be written: Input/output error"):
            cached(dataset, cache)
    full = Rank(device=CPU.device, world=2, gathered=(True,))  # for another process
    assert cached_or_none(dataset, cache, processes=full) is None
    assert [*cache.iterdir()] == [kept]

    source = cached(dataset, cache)
    last = max(path for path in cache.iterdir() if path.name.endswith("3.u8"))
    last.write_bytes(last.read_bytes()[:-1])
    batches = source.batches([[0], [3]], epoch=0)
    assert next(batches).shape == (1, 3, 56, 56)
    with pytest.raises(DataError, match=rf"{last.name} is truncated: delete it and run"):
        next(batches)
    last.unlink()
    with pytest.raises(DataError, match=rf"{last.name} cannot be read \(No such file"):
        list(source.batches([[0], [3]], epoch=0))


def test_squares_are_kept_where_they_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Processes(device=torch.device("cuda"))
    dataset = samples(Augmentation(crop=0.5))
    needed = len(dataset) * 3 * 112**2  # half of a side may be cut
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(SquareSource, "decode", lambda *_, **__: "memory")
    monkeypatch.setattr(cache_module.CachedTensors, "fill", lambda *_, **__: True)

    def place(
        dataset: ImageDataset, processes: Processes = gpu, *, gpu_free: float, disk_free: int = 0
    ) -> str | None:
        memory = int(gpu_free), int(gpu_free)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: memory)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=disk_free))
        source: Any = SquareSource.create(
            dataset, folder=tmp_path / "cache", reserve=lambda: 1000, workers=0, processes=processes
        )
        return source if source in ("memory", None) else "files"

    assert place(dataset, gpu_free=needed / 0.59) == "memory"
    assert place(dataset, gpu_free=needed / 0.61, disk_free=needed + 1000) == "files"
    assert place(dataset, gpu_free=needed / 0.61, disk_free=needed + 999) is None
    # The GPU of another process has too little memory.
    several = Rank(device=gpu.device, world=2, gathered=(False,))
    assert place(dataset, several, gpu_free=1e12, disk_free=10 * needed) == "files"
    assert place(dataset, CPU, gpu_free=1e12, disk_free=10 * needed) is None
    cropped = samples(Augmentation(), mode="crop")
    assert place(cropped, gpu_free=1e12, disk_free=10 * needed) is None
    key = cache_module.cache_key(
        dataset.images, Transform(TransformConfig(mode="squash", size=112)).config
    )
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / f"squares-{key}-00000.u8").touch()  # written before an interruption
    assert place(dataset, gpu_free=0) == "files"
