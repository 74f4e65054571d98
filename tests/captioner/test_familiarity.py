"""Familiarity: distances against Mahalanobis' formula, shares of photos, and the file beside."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch
from PIL import Image

from captioner import Captioner
from captioner.errors import CheckpointFormatError
from captioner.familiarity import Familiarity, digest_header, familiarity_file
from captioner_training.evaluation.familiar import auroc

Run = Callable[..., CompletedProcess[str]]


def cloud(count: int, *, seed: int) -> torch.Tensor:
    chance = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, generator=chance) * torch.tensor([3.0, 1.0, 0.5]) + 2


def test_distances_are_mahalanobis() -> None:
    seen = cloud(500, seed=0)
    known = Familiarity.fit(seen, cloud(200, seed=1), checkpoint="x")
    offset = (cloud(20, seed=2) - seen.mean(dim=0)).double()
    inverse = torch.linalg.inv(torch.cov(seen.double().T))
    wanted = torch.einsum("ni,ij,nj->n", offset, inverse, offset).sqrt()
    found = known.distances(cloud(20, seed=2)).double()
    torch.testing.assert_close(found, wanted, rtol=0.01, atol=0.01)  # kept in half precision


def test_familiarity_is_the_share_of_photos_farther_out() -> None:
    kept_back = cloud(200, seed=1)
    known = Familiarity.fit(cloud(500, seed=0), kept_back, checkpoint="x")
    middle, far = known.of(torch.stack([known.mean.float().expand(4, 3), torch.full((4, 3), 99.0)]))
    assert middle == pytest.approx(1, abs=0.01) and far == 0
    shares = torch.tensor(known.of(kept_back.unsqueeze(1)))  # of photos of this very kind
    assert shares.mean().item() == pytest.approx(0.5, abs=0.02)
    assert auroc(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 3.0])) == (0.5 + 3) / 4


def test_the_file_is_of_one_checkpoint(tiny_file: Path) -> None:
    path = familiarity_file(tiny_file)
    assert path.name == "tiny.familiarity.safetensors"
    assert Familiarity.beside(tiny_file) is None
    seen = cloud(500, seed=0), cloud(200, seed=1)
    known = Familiarity.fit(*seen, checkpoint=digest_header(tiny_file))
    known.save(path)
    again = Familiarity.beside(tiny_file)
    points = cloud(5, seed=3)
    assert again is not None
    assert torch.equal(again.distances(points), known.distances(points))
    Familiarity.fit(*seen, checkpoint="another").save(path)
    assert Familiarity.beside(tiny_file) is None
    path.write_bytes(b"no statistics")
    with pytest.raises(CheckpointFormatError, match="remove it, or write it again"):
        Familiarity.beside(tiny_file)


def test_the_command_lets_records_say_it(run_captioner: Run, tiny_file: Path) -> None:
    data = tiny_file.parent / "data"
    for split in ("train", "val"):
        (data / split).mkdir(parents=True)
        images = [{"id": at, "file_name": f"{at}.png"} for at in range(6)]
        notes = [{"image_id": at, "caption": "a red ball"} for at in range(6)]
        content = {"images": images, "annotations": notes}
        (data / f"captions_{split}.json").write_text(json.dumps(content))
        for at in range(6):
            Image.new("RGB", (40, 40), (200, 30 * at, 20)).save(data / split / f"{at}.png")
    photo = data / "val" / "0.png"
    before = json.loads(run_captioner("caption", photo, "--checkpoint", tiny_file, "--json").stdout)
    assert "familiarity" not in before
    done = run_captioner("familiarity", tiny_file, data, "--device", "cpu")
    assert done.stdout.strip() == str(familiarity_file(tiny_file)), done.stderr
    record = json.loads(run_captioner("caption", photo, "--checkpoint", tiny_file, "--json").stdout)
    assert 0 <= record.pop("familiarity") <= 1 and record == before
    caption = Captioner.from_pretrained(tiny_file, device="cpu").caption(photo)
    assert caption.familiarity is not None
    done = run_captioner("familiarity", tiny_file, data, "--photos", "5")
    assert done.returncode == 2 and "--photos 5 is too few" in done.stderr
