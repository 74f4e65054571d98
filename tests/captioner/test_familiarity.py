"""Familiarity: distances against Mahalanobis' formula, shares of photos, and the file beside."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from captioner import Captioner
from captioner.errors import CheckpointFormatError
from captioner.familiarity import Familiarity, digest_encoder, familiarity_file
from captioner_training.evaluation.familiarity import auroc
from tests.conftest import make_tiny

Run = Callable[..., CompletedProcess[str]]


def cloud(count: int, *, seed: int) -> torch.Tensor:
    chance = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, generator=chance) * torch.tensor([3.0, 1.0, 0.5]) + 2


def test_distances_are_mahalanobis() -> None:
    seen = cloud(500, seed=0)
    known = Familiarity.fit(seen, cloud(200, seed=1), encoder="x")
    offset = (cloud(20, seed=2) - seen.mean(dim=0)).double()
    inverse = torch.linalg.inv(torch.cov(seen.double().T))
    wanted = torch.einsum("ni,ij,nj->n", offset, inverse, offset).sqrt()
    found = known.distances(cloud(20, seed=2)).double()
    torch.testing.assert_close(found, wanted, rtol=0.01, atol=0.01)  # kept in half precision


def test_familiarity_is_the_share_of_photos_farther_out() -> None:
    kept_back = cloud(200, seed=1)
    known = Familiarity.fit(cloud(500, seed=0), kept_back, encoder="x")
    middle, far = known.of(torch.stack([known.mean.float().expand(4, 3), torch.full((4, 3), 99.0)]))
    assert middle == pytest.approx(1, abs=0.01) and far == 0
    assert known.of(torch.full((1, 4, 3), torch.nan)) == [0]
    shares = torch.tensor(known.of(kept_back.unsqueeze(1)))  # of photos of this very kind
    torch.testing.assert_close(shares.sort().values, torch.linspace(0, 1, 200), rtol=0, atol=1e-4)
    assert auroc(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 3.0])) == (0.5 + 3) / 4


def test_the_file_is_of_one_checkpoint(tiny_file: Path) -> None:
    path = familiarity_file(tiny_file)
    assert path.name == "tiny.familiarity.safetensors"
    version = familiarity_file("models/model-1.5")
    assert version == Path("models/model-1.5.familiarity.safetensors")
    assert Familiarity.beside(tiny_file) is None
    seen = cloud(500, seed=0), cloud(200, seed=1)
    known = Familiarity.fit(*seen, encoder=digest_encoder(tiny_file))
    known.save(path)
    again = Familiarity.beside(tiny_file)
    points = cloud(5, seed=3)
    assert again is not None
    assert torch.equal(again.distances(points), known.distances(points))
    Familiarity.fit(*seen, encoder="another").save(path)
    assert Familiarity.beside(tiny_file) is None
    told = {"familiarity": json.dumps({"checkpoint": "as earlier versions wrote it"})}
    save_file({"mean": torch.zeros(2)}, path, metadata=told)
    assert Familiarity.beside(tiny_file) is None
    path.write_bytes(b"no statistics")
    with pytest.raises(CheckpointFormatError, match="remove it, or write it again"):
        Familiarity.beside(tiny_file)
    save_file({"mean": torch.zeros(2)}, path, metadata={"familiarity": "[" * 100_000})
    with pytest.raises(CheckpointFormatError, match="remove it, or write it again"):
        Familiarity.beside(tiny_file)


def test_statistics_stay_those_of_the_encoder(tmp_path: Path) -> None:
    """Words, decoder and name may change; weights, grid and transform may not."""
    made = make_tiny()
    made.save(first := tmp_path / "first.safetensors")
    with torch.no_grad():
        made.model.decoder.embedding.weight.zero_()
    renamed = replace(made, name="other", metrics={"CIDEr": 1.0})
    renamed.save(second := tmp_path / "second.safetensors")
    assert digest_encoder(second) == digest_encoder(first)
    wider = replace(made, transform=replace(made.transform, size=128))
    wider.save(third := tmp_path / "third.safetensors")
    with torch.no_grad():
        next(made.model.encoder.parameters())[0, 0, 0, 0] += 1
    made.save(fourth := tmp_path / "fourth.safetensors")
    assert len({digest_encoder(path) for path in (first, third, fourth)}) == 3


def test_what_was_never_seen_is_less_familiar() -> None:
    """Of fewer photos than there are numbers in a grid, too."""
    chance = torch.Generator().manual_seed(0)
    spread = torch.linspace(2, 0.01, 300)

    def drawn(count: int) -> torch.Tensor:
        return torch.randn(count, 300, generator=chance) * spread

    known = Familiarity.fit(drawn(100), drawn(50), encoder="x")
    alike, unlike = drawn(200), drawn(200) + 1
    shares = torch.tensor(known.of(alike.unsqueeze(1)))
    assert shares.mean().item() == pytest.approx(0.5, abs=0.12)
    assert max(known.of(unlike.unsqueeze(1))) < 0.05


def test_photos_that_are_all_the_same_have_no_width() -> None:
    known = Familiarity.fit(torch.ones(100, 30), torch.ones(50, 30), encoder="x")
    same, other = known.distances(torch.stack([torch.ones(30), torch.zeros(30)])).tolist()
    assert same == 0 and 0 < other < float("inf")


@pytest.fixture
def seeing_file(tmp_path: Path) -> Path:
    """A tiny checkpoint whose random encoder tells photos apart: its norms know what comes in."""
    checkpoint = make_tiny()
    encoder = checkpoint.model.encoder
    for part in encoder.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.momentum = 1.0
            part.training = True
    with torch.no_grad():
        encoder(torch.randn(16, 3, 96, 96, generator=torch.Generator().manual_seed(0)))
    encoder.eval()
    checkpoint.save(tmp_path / "seeing.safetensors")
    return tmp_path / "seeing.safetensors"


def write_data(data: Path, *, photos: int) -> None:
    for split in ("train", "val"):
        (data / split).mkdir(parents=True)
        images = [{"id": at, "file_name": f"{at}.png"} for at in range(photos)]
        notes = [{"image_id": at, "caption": "a red ball"} for at in range(photos)]
        content = {"images": images, "annotations": notes}
        (data / f"captions_{split}.json").write_text(json.dumps(content))
        for at in range(photos):
            Image.new("RGB", (40, 40), (200, 2 * at, 20)).save(data / split / f"{at}.png")


def test_the_command_lets_records_say_it(run_main: Run, seeing_file: Path) -> None:
    data = seeing_file.parent / "data"
    write_data(data, photos=100)
    photo, strange = data / "val" / "50.png", seeing_file.parent / "strange.png"
    Image.radial_gradient("L").convert("RGB").save(strange)
    caption = ("caption", photo, "--checkpoint", seeing_file, "--json")
    before = json.loads(run_main(*caption).stdout)
    assert "familiarity" not in before
    # The command mends a file that nothing else can read.
    familiarity_file(seeing_file).write_bytes(b"no statistics")
    done = run_main(*caption)
    assert done.returncode == 1 and "again with `captioner familiarity`" in done.stderr
    done = run_main("familiarity", seeing_file, data, "--device", "cpu")
    assert done.stdout.strip() == str(familiarity_file(seeing_file)), done.stderr
    record = json.loads(run_main(*caption).stdout)
    assert 0 <= record.pop("familiarity") <= 1 and record == before
    captioner = Captioner.from_pretrained(seeing_file, device="cpu")
    alike, unlike = (captioner.caption(path).familiarity for path in (photo, strange))
    assert alike is not None and unlike is not None and unlike < 0.01 < alike
    told = run_main("caption", photo, strange, "--checkpoint", seeing_file)
    assert told.returncode == 0 and len(told.stdout.splitlines()) == 2
    (line,) = told.stderr.splitlines()
    assert line.startswith(f"captioner: {strange} is unlike the photos")
    done = run_main("familiarity", seeing_file, data, "--photos", "5")
    assert done.returncode == 2 and "--photos 5 is too few" in done.stderr
    few = seeing_file.parent / "few"
    write_data(few, photos=6)
    done = run_main("familiarity", seeing_file, few, "--device", "cpu")
    assert done.returncode == 1 and "6 training photos are too few" in done.stderr
