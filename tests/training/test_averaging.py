"""Averages of checkpoints, through the command."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from captioner.checkpoint import Checkpoint, load_checkpoint
from tests.conftest import WORDS, rewrite_header
from tests.launcher import Run
from tests.refusals import check_refusals


@pytest.fixture
def shifted(tiny_checkpoint: Checkpoint, tmp_path: Path) -> Path:
    """The tiny model with 1 added to every vector: float32 in the file, so that nothing rounds."""
    for tensor in tiny_checkpoint.model.state_dict().values():
        if tensor.is_floating_point() and tensor.ndim == 1:
            tensor.add_(1)
    path = tmp_path / "shifted.safetensors"
    replace(tiny_checkpoint, metrics={"CIDEr": 50.0}).save(path)
    return path


@pytest.mark.parametrize(
    ("more", "by_hand"), [(("--shares", "2", "6"), 3 / 4), (("{saved}", "--version", "2"), 1 / 3)]
)
def test_the_mean_is_that_of_the_weights(
    run_main: Run, saved_tiny: Path, shifted: Path, tmp_path: Path,
    more: tuple[str, ...], by_hand: float,
) -> None:  # fmt: skip
    out = tmp_path / "mean.safetensors"
    # A run may drop out other units than the one that it went on from (recipe coco-scst does).
    rewrite_header(shifted, lambda document: document["decoder"].update(dropout=0.25))
    more = tuple(one.format(saved=saved_tiny) for one in more)
    result = run_main("average", saved_tiny, shifted, *more, "--out", out)
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{out}\n", "")
    first, mean = load_checkpoint(saved_tiny), load_checkpoint(out)
    assert (mean.name, mean.vocabulary.words) == (first.name, first.vocabulary.words)
    assert mean.metrics == {} and mean.version == ("2" if "--version" in more else first.version)
    before, after = first.model.state_dict(), mean.model.state_dict()
    for name, tensor in before.items():
        added = by_hand if tensor.is_floating_point() and tensor.ndim == 1 else 0
        torch.testing.assert_close(after[name], tensor + added, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("share", "noise"), [(0.0, 1.0), (1.0, 0.6)])
def test_checkpoints_from_other_initial_weights_are_refused(
    run_main: Run, tiny_checkpoint: Checkpoint, tmp_path: Path, share: float, noise: float
) -> None:
    """Those that went on far from one start (a cosine of 1 / sqrt(1 + 0.6^2) = 0.86) are not.

    Their biases are equal and large, as they may be without one start.
    """
    torch.manual_seed(1)
    first, other, out = (tmp_path / f"{name}.safetensors" for name in ("first", "other", "mean"))
    parameters = [*tiny_checkpoint.model.decoder.parameters()]
    with torch.no_grad():
        for tensor in parameters:
            if tensor.ndim == 1:
                tensor.fill_(9)
        tiny_checkpoint.save(first)
        for tensor in parameters:
            if tensor.ndim > 1:
                size = tensor.square().mean().sqrt()
                tensor.mul_(share).add_(noise * size * torch.randn_like(tensor))
    tiny_checkpoint.save(other)
    result = run_main("average", first, other, "--out", out)
    assert result.returncode == (0 if share else 1) and out.exists() == bool(share)
    if not share:
        assert f"{other} and {first} cannot be averaged" in result.stderr
        assert "they started from different weights" in result.stderr


def test_checkpoints_that_cannot_be_averaged_are_refused(
    run_main: Run, tiny_file: Path, shifted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint = load_checkpoint(tiny_file)
    for name in ("nan", "inf"):
        next(iter(checkpoint.model.state_dict().values())).view(-1)[0] = float(name)
        checkpoint.save(Path(name))
    others = {
        "words": {"vocabulary": [*WORDS[:-1], "zebra"]},
        "order": {"vocabulary": [*WORDS[::-1]]},
        "letters": {"tokenizer": "characters"},
    }
    for name, header in others.items():
        shutil.copy(tiny_file, name)
        rewrite_header(Path(name), lambda document, header=header: document.update(header))
    tiny, two = "average --out mean tiny.safetensors", f"{tiny_file.name} {shifted.name}"
    refused = {
        tiny: (2, "name two or more"),
        f"{tiny} {two} --shares 1": (2, "--shares 1: 3 checkpoints need 3 numbers above 0"),
        f"average --out mean {two} --shares 1 nan": (2, "need 2 numbers above 0"),
        f"average --out mean {two} --version \x1b[2J": (2, "is empty or not plain text"),
        f"{tiny} bundled": (1, "encoder.name is 'efficientnet_v2_b0' and "),
        f"{tiny} words": (1, "2 words differ"),
        f"{tiny} order": (1, "their words have different orders"),
        f"{tiny} letters": (1, "tokenizer is 'characters' and 'words'"),
        f"{tiny} inf": (1, "inf has NaN or infinity in "),
        f"average --out {shifted.name} {two}": (1, "exists: choose another name"),
        f"average --out mean nan {two}": (1, "nan has NaN or infinity in "),
    }
    check_refusals(run_main, refused, tmp_path)
