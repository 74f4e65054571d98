"""The exported model in torch's place: the same records, sooner, where no more is asked for."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

from captioner import Captioner, ConfigError, GenerationConfig
from captioner.captioning import Written
from captioner.errors import CheckpointNotFoundError
from captioner.export import engine
from captioner.export.engine import (
    ExportedCaptioner,
    ExportedModel,
    find_export,
    keep_export,
    open_export,
)
from captioner.trust import digest_weights, trust_file
from tests.conftest import make_consensus, make_tiny, make_trust
from tests.launcher import environment

if importlib.util.find_spec("onnxruntime") is None and not os.environ.get("CI"):
    pytest.skip("the extra onnx is not installed", allow_module_level=True)

pytestmark = pytest.mark.slow  # a model is exported

OLD, NEW, NOTE = ("00" * 8 + "-1", "ab" * 8 + "-12"), ("cd" * 8 + "-1",), "ef" * 8 + "-1.txt"
MACHINE = {"device": "cpu", "dtype": "auto"}
# The command, with another checkpoint in the place of the bundled one; says whether it had torch.
COMMAND = """
import sys
from pathlib import Path
import captioner.paths
captioner.paths.bundled_checkpoint = lambda: Path(sys.argv[1])
from captioner.cli import main
status = main(sys.argv[2:])
print("with torch" if "torch" in sys.modules else "without torch", file=sys.stderr)
sys.exit(status)
"""


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A tiny checkpoint that counts as the bundled one, with trust; nothing is kept of it yet."""
    place = tmp_path_factory.mktemp("bundled")
    make_tiny().save(path := place / "tiny.safetensors")
    known = make_trust(weights=digest_weights(path), consensus=make_consensus())
    known.save(trust_file(path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "bundled_checkpoint", lambda: path)
        patch.setattr(engine.shutil, "which", lambda name: None)
        patch.setenv("CAPTIONER_CACHE", str(place / "cache"))
        yield path


@pytest.fixture(scope="module")
def kept(bundled: Path) -> Path:
    """Its export, made beside those of other versions and what is somebody's own."""
    said: list[str] = []
    cache = bundled.parent / "cache"
    for name in (*OLD, *NEW, "0123456789abcdef", "photos"):
        (cache / name / "graphs").mkdir(parents=True)
    (cache / NOTE).write_text("the decoder cannot be exported")
    for name in (*OLD, NOTE, "0123456789abcdef", "photos"):
        os.utime(cache / name, (0, 0))
    folder = keep_export(bundled, **MACHINE, say=said.append)
    assert folder is not None and len(said) == 1 and "once" in said[0]
    assert keep_export(bundled, **MACHINE, say=said.append) == folder and len(said) == 1
    return folder


def test_what_older_versions_left_goes(kept: Path) -> None:
    left = {path.name for path in kept.parent.iterdir()}
    assert left - {kept.name, "other.safetensors"} == {*NEW, "0123456789abcdef", "photos"}


def test_it_is_of_what_chooses_sentences_too(bundled: Path, kept: Path) -> None:
    known = trust_file(bundled).read_bytes()
    assert find_export(bundled, **MACHINE) == kept
    make_trust(weights=digest_weights(bundled)).save(trust_file(bundled))
    assert find_export(bundled, **MACHINE) is None
    trust_file(bundled).write_bytes(known)


def run(checkpoint: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", COMMAND, str(checkpoint), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)


def near(one: Any, other: Any) -> None:
    """Compare records to the last digits that they have."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            near(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            near(*pair)
    else:
        assert one == (pytest.approx(other, abs=2e-4) if isinstance(other, float) else other)


def test_the_command_says_the_same_without_torch(bundled: Path, kept: Path, photo: Path) -> None:
    sheet = photo.parent / "sheet.png"
    asked = ("caption", photo, "--json", "--attention", "--captions", 3)
    quick = run(bundled, *asked, "--sheet", sheet)
    exact = run(bundled, *asked, "--dtype", "float32")
    assert quick.stderr.endswith("without torch\n") and exact.stderr.endswith("with torch\n")
    record = json.loads(quick.stdout)
    near(record, json.loads(exact.stdout))
    assert "trust" in record and "familiarity" in record and sheet.exists()
    # What the exported model does not do, torch does.
    checked = run(bundled, *asked, "--check-attention")
    assert "effect" in checked.stdout and checked.stderr.endswith("with torch\n")


@pytest.mark.parametrize("settings", [{"beam_size": 1}, {"beam_size": 4, "captions": 4}])
def test_every_search_gives_the_same_records(
    bundled: Path, kept: Path, photo: Path, settings: dict[str, int]
) -> None:
    exported = ExportedCaptioner(kept, bundled, in_process=True)
    exact = Captioner.from_pretrained(bundled, device="cpu", dtype="float32", in_process=True)
    config = exact.generation.changed(**settings, length_penalty=0.8, minimum_length=3)
    for caption, wanted in zip(
        exported.caption([photo] * 2, config), exact.caption([photo] * 2, config), strict=True
    ):
        near(caption.record(attention=True), wanted.record(attention=True))
    with pytest.raises(ConfigError, match="neither samples nor checks attention"):
        exported.caption(photo, sample=True)
    with pytest.raises(ConfigError, match="do not look at each other"):
        _ = exported.caption(photo).word_attention


def test_it_stays_away_from_all_else(
    bundled: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Path(shutil.copy(bundled, kept.parent / "other.safetensors"))
    assert find_export(bundled, **MACHINE) == kept
    assert find_export(bundled, device="cpu", dtype="float32") is None
    assert find_export(bundled, device="cuda", dtype="auto") is None
    assert find_export(other, **MACHINE) is None
    if not Path("/dev/nvidiactl").exists():
        assert find_export(bundled, device="auto", dtype="auto") == kept
    monkeypatch.setattr(engine.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert find_export(bundled, device="auto", dtype="auto") is None  # there is a GPU
    with bundled.open("r+b") as file:  # other weights
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    try:
        assert find_export(bundled, **MACHINE) is None
    finally:
        shutil.copy(other, bundled)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "bundled_checkpoint", _not_installed)
        assert find_export(bundled, **MACHINE) is None  # and no error, for this one is there
    monkeypatch.setenv("CAPTIONER_CACHE", "")
    assert find_export(bundled, **MACHINE) is None


def _not_installed() -> Path:
    raise CheckpointNotFoundError("the bundled checkpoint is missing from this installation")


@pytest.mark.parametrize("name", ["captioner.json", "encoder.onnx", "step.onnx"])
def test_a_damaged_export_goes_away(kept: Path, tmp_path: Path, name: str) -> None:
    folder, said = Path(shutil.copytree(kept, tmp_path / "cache" / "kept")), list[str]()
    assert open_export(folder, _open, say=said.append) is not None and not said
    half = (folder / name).read_bytes()
    (folder / name).write_bytes(half[: len(half) // 2])
    assert open_export(folder, _open, say=said.append) is None
    assert len(said) == 1 and "cannot be opened" in said[0] and not folder.exists()


def _open(folder: Path) -> ExportedModel:
    return ExportedModel(folder, threads=1)


def test_two_commands_make_one_export(
    bundled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Later:
        """What makes an export, and finds that another has just made it."""

        def __init__(self, *_: object, **__: object) -> None: ...

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None: ...

        def submit(self, _: object, __: Path, folder: Path) -> Future[str]:
            folder.mkdir()
            done = Future[str]()
            done.set_result("it cannot be written: Directory not empty")
            return done

    monkeypatch.setenv("CAPTIONER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(engine, "ProcessPoolExecutor", Later)
    said: list[str] = []
    folder = keep_export(bundled, **MACHINE, say=said.append)
    assert folder is not None and folder.is_dir() and len(said) == 1
    assert list(folder.parent.iterdir()) == [folder]


def test_what_cannot_be_kept_costs_no_caption(
    tmp_path: Path, photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = make_tiny()
    from captioner.model import CaptionModel

    config = replace(
        tiny.model.config,
        decoder=replace(tiny.model.config.decoder, kind="transformer", value_dim=24),
    )
    model = CaptionModel(config, vocabulary_size=len(tiny.vocabulary)).eval()
    replace(tiny, model=model).save(path := tmp_path / "transformer.safetensors")
    monkeypatch.setenv("CAPTIONER_CACHE", str(tmp_path / "cache"))
    done = run(path, "caption", photo, "--device", "cpu")
    assert done.returncode == 0 and done.stdout.strip()
    (note,) = (tmp_path / "cache").iterdir()
    note.unlink()
    (folder := note.with_suffix("")).mkdir()  # all that a cleaner of caches has left
    done = run(path, "caption", photo, "--device", "cpu")
    assert done.returncode == 0 and done.stdout.strip()
    assert f"{folder} cannot be opened" in done.stderr
    assert "there is none (the decoder transformer cannot be exported" in done.stderr
    assert list(folder.parent.iterdir()) == [note]
    assert str(note) in done.stderr
    done = run(path, "caption", photo, "--device", "cpu")  # it is not tried again
    assert (done.returncode, done.stderr) == (0, "with torch\n")
    monkeypatch.setenv("CAPTIONER_CACHE", str(path / "cache"))  # it cannot be made in a file
    done = run(path, "caption", photo, "--device", "cpu")
    assert (done.returncode, done.stderr) == (0, "with torch\n")


def test_torch_leaves_it_what_it_is_faster_in(bundled: Path, kept: Path, photo: Path) -> None:
    asked: list[int] = []

    class Counted(ExportedModel):
        def write(self, pixels: Any, config: GenerationConfig) -> Written:
            asked.append(len(pixels))
            return super().write(pixels, config)

    both = Captioner.from_pretrained(
        bundled, device="cpu", dtype="float32", exported=Counted(kept, threads=1)
    )
    alone = Captioner.from_pretrained(bundled, device="cpu", dtype="float32")
    near(both.caption(photo).record(), alone.caption(photo).record())
    both.caption([photo] * 3)
    both.caption([photo] * 4)
    both.caption(photo, sample=True, seed=1)
    both.caption(photo, check_attention=True)
    assert asked == [1, 3]
    found = both.write(np.zeros((1, 3, 96, 96), np.uint8), both.generation)
    assert found.features.shape == (1, found.rows * found.columns, 576)
