"""The bundled checkpoint on the sample photos, and the wheel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from PIL import Image

from captioner.shared.paths import bundled_checkpoint
from captioner.trust.trust import DOUBTFUL_CAPTION
from tests.launcher import Run, environment

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = sorted((ROOT / "assets" / "samples").glob("*.jpg"))


def test_the_checkpoint_is_small_and_sample_photos_are_credited() -> None:
    assert bundled_checkpoint().stat().st_size <= 30_000_000
    credits_ = (ROOT / "assets" / "samples" / "CREDITS.md").read_text()
    assert len(SAMPLES) >= 4
    assert all(sample.name in credits_ for sample in SAMPLES)


def test_sample_photos_get_captions_with_attention(run_main: Run) -> None:
    result = run_main("caption", *SAMPLES, "--json", "--attention")
    assert result.returncode == 0
    records = [json.loads(line) for line in result.stdout.splitlines()]
    strange = [record["image"] for record in records if record["familiarity"] < 0.01]
    wrong = [record["image"] for record in records if record["trust"] < DOUBTFUL_CAPTION]
    assert [Path(image).stem for image in wrong] == ["rocket"]
    warnings = [f"captioner: {name}: This may be wrong: '" for name in wrong]
    warnings += [f"captioner: {name} looks unlike the training photos" for name in strange]
    lines = result.stderr.splitlines()
    assert len(lines) == len(warnings)
    assert all(any(line.startswith(start) for line in lines) for start in warnings)
    assert {Path(image).stem for image in strange} - {"chelsea"} == {"rocket"}
    assert [record["image"] for record in records] == [str(sample) for sample in SAMPLES]
    assert len({record["caption"] for record in records}) == len(SAMPLES)
    for record in records:
        assert 0 <= record["familiarity"] <= 1
        assert len(record["words"]) >= 4
        for word in record["words"]:
            attention = word["attention"]
            assert (attention["rows"], attention["columns"]) == (7, 7)
            assert sum(attention["weights"]) == pytest.approx(1, abs=1e-4)
    said = {Path(record["image"]).stem: record["caption"].split() for record in records}
    right = {"coffee": "cup", "chelsea": "cat", "camera": "camera"}
    assert all(word in said[name] for name, word in right.items())


@pytest.mark.slow
def test_captioning_imports_no_library_of_other_models() -> None:
    libraries = ("torchvision", "torch._dynamo", "timm", "transformers", "huggingface_hub")
    program = (
        "import sys; from captioner import Captioner\n"
        f"Captioner.from_pretrained().caption({str(SAMPLES[0])!r})\n"
        f"print([name for name in {libraries} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        env=environment(),
    )  # fmt: skip
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_the_wheel_captions_outside_the_checkout(tmp_path: Path) -> None:
    """The wheel contains the checkpoint and the recipes, and installs the command."""
    pip = (sys.executable, "-m", "pip")
    venv = tmp_path / "venv"
    _run(*pip, "wheel", "--no-deps", "-w", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("captioner-*.whl")
    assert wheel.stat().st_size < 40e6  # README
    _run(sys.executable, "-m", "venv", "--without-pip", venv)
    _run(*pip, "--python", venv / "bin/python", "install", "--no-deps", "--no-index", wheel)
    # Dependencies come from this environment; its own installation of Captioner does not.
    (site,) = (venv / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    tops = {path.name for path in site.glob("captioner*") if path.suffix != ".dist-info"}
    assert tops == {"captioner", "captioner_serving", "captioner_training"}
    assert (site / "captioner/py.typed").exists()
    sheet = tmp_path / "sheet.png"
    captioner = venv / "bin/captioner"
    record = json.loads(_run(captioner, "caption", SAMPLES[0], "--json", "--sheet", sheet))
    assert record["caption"] and record["trust"] is not None
    with Image.open(sheet) as picture:
        assert picture.width > 500
    assert "smoke" in _run(captioner, "train", "smoke", "--show")
    program = "import captioner, pathlib; print(pathlib.Path(captioner.__file__).parents[1])"
    assert _run(venv / "bin/python", "-c", program).strip() == str(site)


def _run(*command: str | Path) -> str:
    isolated = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd="/", env=isolated, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
