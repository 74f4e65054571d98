"""Squares augmented on the device against the photos that the loader crops."""

from __future__ import annotations

import pytest
import torch

from captioner.paths import sample_photos
from captioner.vision.transform import Transform, TransformConfig
from captioner_training.data.dataset import Augmentation, ImageDataset
from captioner_training.data.images import CaptionedImage, ImageStore
from captioner_training.data.loader import PixelSource
from captioner_training.data.squares import SquareSource
from captioner_training.distributed import Processes

CPU = Processes(device=torch.device("cpu"))


def samples(augmentation: Augmentation, *, mode: str = "squash") -> ImageDataset:
    """Return the sample photos, 512 x 512 to 640 x 427; one caption names a side."""
    paths = [*sample_photos().values()]
    images = [
        CaptionedImage(
            name=path.name,
            id=number,
            store=ImageStore(path.parent),
            captions=("on the left",) if number == 0 else ("a photo",),
            words=(),
        )
        for number, path in enumerate(paths)
    ]
    transform = Transform(TransformConfig(mode=mode, size=56))
    return ImageDataset(images, transform, augmentation=augmentation, seed=5)


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


def test_squares_are_for_gpus_and_transforms_that_show_the_whole_photo(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = Processes(device=torch.device("cuda"))
    dataset = samples(Augmentation(crop=0.5))
    needed = len(dataset) * 3 * 112**2  # half of a side may be cut

    def resident(dataset: ImageDataset, processes: Processes, *, free: float) -> bool:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (int(free), int(free)))
        monkeypatch.setattr(SquareSource, "decode", lambda *_, **__: True)
        return bool(SquareSource.resident(dataset, workers=0, processes=processes))

    assert resident(dataset, gpu, free=needed / 0.59)
    assert not resident(dataset, gpu, free=needed / 0.61)
    assert not resident(dataset, CPU, free=1e12)
    assert not resident(samples(Augmentation(), mode="crop"), gpu, free=1e12)
